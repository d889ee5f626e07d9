"""The step metrics of a run in at most MAX_BINS stretches of steps, kept up to date at the cost of
what is new.

    steps      1 2 3 4 5 6 7 8 9          MAX_BINS = 4
    stretches  1 2 3 4 | 12 34 | 12 34 56 78 | 1234 5678, and 9 waits for the rest of its stretch

Every number of a step is read at once, since a visitor who looks at one metric asks for the next;
the mean, the smallest and the largest value of a stretch are kept, so that a spike stays visible.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from scalerl.runs.fields import Record
from scalerl.runs.lines import StepLine
from scalerl.runs.table import to_float
from scalerl.runs.tail import TailReader, select_columns

Array = npt.NDArray[np.float32]

#: Stretches that are kept of a run, an even number: more than a chart has pixels, so that there is
#: something to zoom into. With every metric they take about 1.5 MB.
MAX_BINS = 1024
#: Bytes read at a time, which bounds the memory of the lines.
BLOCK_BYTES = 4_000_000
#: Bytes of a file that are read for one request. A longer record takes several requests.
MAX_READ_BYTES = 128_000_000
#: Metrics with names of their own (reward functions, metrics of a loss) that are kept.
MAX_NAMED = 64
#: The field of a step with metrics that have names of their own.
NAMED = "metrics"
#: Rows of a stretch: mean, smallest and largest value, and the number of values.
MEAN, LOW, HIGH, COUNT = range(4)


@dataclass(frozen=True, slots=True)
class StepMetric:
    """A number of every step."""

    name: str
    meaning: str
    unit: str


@cache
def step_metrics() -> Mapping[str, StepMetric]:
    """All numbers that a line of steps.jsonl has, by name, as `StepLine` describes them.

    >>> step_metrics()["length/mean"]
    StepMetric(name='length/mean', meaning='length of the rollouts: mean', unit='tokens')
    """
    return {each.name: each for each in _numbers(StepLine, "", "")}


def _numbers(kind: Any, start: str, before: str) -> list[StepMetric]:
    found = []
    hints = typing.get_type_hints(kind)
    for each in fields(kind):
        hint = hints[each.name]
        if typing.get_origin(hint) in (Union, types.UnionType):
            (hint,) = [part for part in typing.get_args(hint) if part is not type(None)]
        name, meaning = f"{start}{each.name}", each.metadata["meaning"]
        if hint in (int, float):
            found.append(StepMetric(name, f"{before}{meaning}", each.metadata["unit"]))
        elif isinstance(hint, type) and issubclass(hint, Record):
            found += _numbers(hint, f"{name}/", f"{meaning}: ")
    return found


class StepBins:
    """The step metrics of one run. `refresh()` reads what is new."""

    def __init__(self, path: Path) -> None:
        columns = tuple(step_metrics())
        select = select_columns((*columns, NAMED))
        self._columns = columns
        self._reader: TailReader[tuple[Any, ...]] = TailReader(
            path / StepLine.FILE, select, BLOCK_BYTES
        )
        self._clear()

    def _clear(self) -> None:
        #: Name -> column.
        self.names = {name: i for i, name in enumerate(self._columns)}
        #: Steps of a stretch.
        self.every = 1
        self.count = 0
        #: (stretches, 4, metrics)
        self._bins = np.empty((0, 4, len(self.names)), np.float32)
        #: (steps, metrics), fewer steps than a stretch has.
        self._pending = np.empty((0, len(self.names)), np.float32)

    def refresh(self) -> None:
        """Read the new lines."""
        end = self._reader.bytes_read + MAX_READ_BYTES
        while self._reader.bytes_read < end:
            at = self._reader.at
            rows = self._reader.new()
            if self._reader.at == at and not self._reader.restarted:
                return
            if self._reader.restarted:
                self._clear()
            if rows:
                self._add(rows)

    def _add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        for row in rows:
            if isinstance(row[-1], dict):
                self._add_names(row[-1])
        new = np.full((len(rows), len(self.names)), np.nan, np.float32)
        fixed = len(self._columns)
        # Numbers that no 32-bit float holds become infinite, and are then left out.
        with np.errstate(over="ignore"):
            new[:, :fixed] = [[to_float(v) for v in row[:-1]] for row in rows]
            for i, row in enumerate(rows):
                for name, value in row[-1].items() if isinstance(row[-1], dict) else ():
                    if (column := self.names.get(f"{NAMED}/{name}")) is not None:
                        new[i, column] = to_float(value)
        self.count += len(rows)
        self._pending = np.concatenate([self._pending, new])
        while whole := len(self._pending) // self.every:
            take = min(whole, MAX_BINS - len(self._bins)) * self.every
            self._bins = np.concatenate([self._bins, _stretches(self._pending[:take], self.every)])
            self._pending = self._pending[take:]
            if len(self._bins) == MAX_BINS:
                self._bins = _merged(self._bins, 2)
                self.every *= 2

    def _add_names(self, found: Mapping[str, Any]) -> None:
        for name in found:
            key = f"{NAMED}/{name}"
            if key in self.names or len(self.names) >= len(self._columns) + MAX_NAMED:
                continue
            self.names[key] = len(self.names)
            self._pending = np.pad(self._pending, ((0, 0), (0, 1)), constant_values=np.nan)
            wider = np.pad(self._bins, ((0, 0), (0, 0), (0, 1)), constant_values=np.nan)
            wider[:, COUNT, -1] = 0.0
            self._bins = wider

    @property
    def known(self) -> list[str]:
        """The metrics that some step has."""
        bins = self._all()
        return [name for name, i in self.names.items() if bins[:, COUNT, i].any()]

    def _all(self) -> Array:
        if not len(self._pending):
            return self._bins
        return np.concatenate([self._bins, _stretches(self._pending, len(self._pending))])

    def lines(
        self, names: Sequence[str], most: int, lo: float | None = None, hi: float | None = None
    ) -> dict[str, Any]:
        """Metrics over at most `most` stretches of the steps from `lo` to `hi`: `step` is the last
        one of each stretch, `every` the steps of a stretch, and each metric has its means, and
        where a stretch has several steps its smallest and largest values."""
        bins, last = self._all(), self.names["step"]
        with np.errstate(invalid="ignore"):
            keep = np.isfinite(bins[:, HIGH, last])
            keep &= bins[:, HIGH, last] >= (-np.inf if lo is None else lo)
            keep &= bins[:, LOW, last] <= (np.inf if hi is None else hi)
        bins = bins[keep]
        each = max(-(-len(bins) // most), 1)
        bins = _merged(bins, each) if len(bins) else bins
        found: dict[str, Any] = {
            "steps": self.count,
            "every": self.every * each,
            "step": [int(v) for v in bins[:, HIGH, last]],
            "metrics": {},
        }
        for name in names:
            column = self.names.get(name)
            if column is None or not bins[:, COUNT, column].any():
                continue
            line = {"mean": _numbers_of(bins[:, MEAN, column])}
            if self.every * each > 1:
                line["low"] = _numbers_of(bins[:, LOW, column])
                line["high"] = _numbers_of(bins[:, HIGH, column])
            found["metrics"][name] = line
        return found


def _stretches(rows: Array, every: int) -> Array:
    """(steps, metrics) -> (stretches, 4, metrics)."""
    single = np.stack([rows, rows, rows, np.ones_like(rows)], axis=1)
    single[~np.isfinite(single[:, MEAN])[:, None].repeat(4, axis=1)] = np.nan
    single[:, COUNT] = np.nan_to_num(single[:, COUNT], nan=0.0)
    return _merged(single, every)


def _merged(bins: Array, each: int) -> Array:
    """Every `each` neighbouring stretches as one; the last one may be of fewer."""
    if each == 1:
        return bins
    starts = np.arange(0, len(bins), each)
    count = np.add.reduceat(bins[:, COUNT], starts)
    known = bins[:, COUNT] > 0
    total = np.add.reduceat(np.where(known, bins[:, MEAN] * bins[:, COUNT], 0.0), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(count > 0, total / count, np.nan)
    # fmin and fmax pass over nan; they return it where there is nothing else.
    low = np.fmin.reduceat(bins[:, LOW], starts)
    high = np.fmax.reduceat(bins[:, HIGH], starts)
    return np.stack([mean, low, high, count], axis=1).astype(np.float32)


def _numbers_of(values: Array) -> list[float | None]:
    # Six digits: 32-bit floats have seven, and a reader sees four.
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]
