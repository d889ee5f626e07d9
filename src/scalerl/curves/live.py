"""The curve of a run in progress: collect points as they come, forecast, and apply a stopping rule.

It is independent of the trainer: `scalerl.callbacks` adds points from Hugging Face and TRL,
`scalerl train` adds its own validations.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np

from scalerl.curves.fit import MIN_POINTS, fit
from scalerl.curves.forecast import gain
from scalerl.curves.result import Fit
from scalerl.curves.rules import StopRule
from scalerl.errors import InputError
from scalerl.runs.record import ComputeKind, Run

log = logging.getLogger(__name__)

#: How a logged value becomes a pass rate: as it is, (r + 1) / 2, r / 100, or a function.
Scale = Literal["pm1", "percent"] | Callable[[float], float] | None
#: Scores this far outside [0, 1] count as rounding errors and are clipped.
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class _Point:
    compute: float
    score: float
    #: Samples behind the score; None: not known.
    n_eval: int | None


@dataclass(frozen=True, slots=True)
class LiveForecast:
    """The forecast from the points so far."""

    fit: Fit
    #: Compute at which training would end by itself, where known.
    end: float | None
    #: Values to log, by name ("forecast/A" ...).
    numbers: dict[str, float]
    #: Why the stopping rule holds; None: it does not.
    reason: str | None


@dataclass(eq=False, repr=False)
class LiveCurve:
    """Collects points by optimiser step; a step that is evaluated again replaces its point.

    >>> curve = LiveCurve("eval_reward", "tokens", scale="pm1")
    >>> curve.add(step=10, compute=5000, value=-0.5)
    True
    >>> curve.add(step=20, compute=10000, value=0.0)
    True
    >>> curve.run
    Run('run', 2 points, tokens 5000..10000, score 0.25..0.5)
    """

    metric: str
    x_kind: ComputeKind
    _: KW_ONLY
    scale: Scale = None
    #: Samples behind each score, for points added without their own number.
    n_eval: int | None = None
    min_points: int = 6
    name: str = "run"
    #: Called with the text of a warning, once per topic; by default this module's logger.
    warn: Callable[[str], None] = log.warning
    #: Steps at which the run was changed (`Run.breaks`).
    changed: tuple[int, ...] = ()
    _points: dict[int, _Point] = field(default_factory=dict, init=False)
    _warned: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        how = self.scale
        if not (how is None or how in ("pm1", "percent") or callable(how)):
            raise InputError(f"scale must be None, 'pm1', 'percent' or a function, not {how!r}")
        if self.min_points < MIN_POINTS:
            raise InputError(f"min_points must be {MIN_POINTS} or more, not {self.min_points}")
        _check_size(self.n_eval)

    def __len__(self) -> int:
        return len(self._points)

    @property
    def x_key(self) -> str:
        """Name under which a point's compute is logged, for `rebuild` after a resume."""
        return f"forecast/{self.x_kind}"

    @property
    def last(self) -> tuple[int, float] | None:
        """Step and compute of the latest point."""
        if not self._points:
            return None
        step = max(self._points)
        return step, self._points[step].compute

    @property
    def run(self) -> Run:
        """The points so far."""
        # Of points at the same compute (a counter that did not move) the latest counts.
        by_compute = {p.compute: p for p in self._points.values()}
        points = [by_compute[c] for c in sorted(by_compute)]
        sizes = [self.n_eval if p.n_eval is None else p.n_eval for p in points]
        before = [[p.compute for s, p in self._points.items() if s <= at] for at in self.changed]
        n_eval = None
        if any(size is not None for size in sizes):
            n_eval = np.array([np.nan if size is None else float(size) for size in sizes])
        return Run(
            self.name,
            compute=np.array([p.compute for p in points], dtype=np.float64),
            score=np.array([p.score for p in points], dtype=np.float64),
            x_kind=self.x_kind,
            x_name=self.x_kind,
            y_name=self.metric,
            n_eval=n_eval,
        ).with_breaks(max(each) for each in before if each)

    def add(self, step: int, compute: float, value: Any, n_eval: int | None = None) -> bool:
        """Add a point; False if it has no finite value. `n_eval` is the number of samples behind
        this score, in place of the curve's own.

        A value outside [0, 1] after scaling, or n_eval below 1, raises InputError on an empty curve
        and is left out with one warning later.
        """
        # An error at the first point shows a wrong scale while nothing is lost; later, one stray
        # value must not end a long run.
        if value is None or not math.isfinite(float(value)):
            return False
        try:
            score = self._score(float(value))
            _check_size(n_eval)
        except InputError as error:
            if not self._points:
                raise
            self.warn_once("scale", f"{error}; the point at step {step} is left out")
            return False
        # A run that goes back to an earlier step has been resumed: later points are void.
        self._points = {s: p for s, p in self._points.items() if s < step}
        self._points[step] = _Point(float(compute), score, n_eval)
        return True

    def _score(self, value: float) -> float:
        if self.scale is None:
            score = value
        elif self.scale == "pm1":
            score = (value + 1.0) / 2.0
        elif self.scale == "percent":
            score = value / 100.0
        else:
            score = float(self.scale(value))
        if not -_SLACK <= score <= 1.0 + _SLACK:
            mapped = "" if self.scale is None else f" (mapped to {score:g})"
            raise InputError(
                f"{self.metric} = {value:g}{mapped} is not a score in [0, 1]: use scale='pm1' for "
                "a ±1 reward, scale='percent', or a function that maps it to a pass rate"
            )
        return min(max(score, 0.0), 1.0)

    def rebuild(
        self,
        history: Iterable[Mapping[str, Any]],
        compute_of: Callable[[Mapping[str, Any]], float | None],
    ) -> None:
        """Add the points of an earlier part of the run from its log records.

        A point's compute is the value logged under `x_key` for its step, else
        `compute_of(record)`; points without either are left out with a warning.
        """
        records = list(history)
        logged = {r["step"]: r[self.x_key] for r in records if self.x_key in r and "step" in r}
        lost = 0
        for record in records:
            if self.metric not in record or "step" not in record:
                continue
            compute = logged.get(record["step"])
            if compute is None:
                compute = compute_of(record)
            if compute is None:
                lost += 1
            else:
                self.add(int(record["step"]), float(compute), record[self.metric])
        if lost:
            self.warn(
                f"{lost} earlier points of {self.metric} have no record of their {self.x_kind} "
                "and are left out"
            )

    def end(self, max_steps: int) -> float | None:
        """Compute at which training ends, if later steps cost as much as those so far."""
        if self.last is None or self.last[0] <= 0 or max_steps <= 0:
            return None
        step, compute = self.last
        return compute * max(max_steps / step, 1.0)

    def forecast(
        self, end: float | None = None, rule: StopRule | None = None
    ) -> LiveForecast | None:
        """The forecast from the points so far; None before `min_points`, or if the fit fails."""
        if len(self) < self.min_points:
            return None
        try:
            found = fit(self.run)
            reason = None if rule is None else rule.check(found, end)
            return LiveForecast(found, end, forecast_numbers(found, end), reason)
        except Exception as error:
            # A failed forecast must never end the training run that it watches.
            self.warn_once("fit", f"no forecast at {len(self)} points: {error}")
            return None

    def warn_once(self, topic: str, message: str) -> None:
        """Warn, unless there was a warning about this topic before."""
        if topic not in self._warned:
            self._warned.add(topic)
            self.warn(message)


def _check_size(n_eval: int | None) -> None:
    if n_eval is not None and n_eval < 1:
        raise InputError(f"n_eval is the number of samples behind a score, not {n_eval}")


def forecast_numbers(f: Fit, end: float | None = None) -> dict[str, float]:
    """The values to log about a fit; `end` is the compute at which training will end.

    >>> from scalerl import fit, load_run
    >>> numbers = forecast_numbers(fit(load_run("example:paper-8b")), end=120_000)
    >>> round(numbers["forecast/at_end"], 1), numbers["forecast/alarm"]
    (0.6, 0.0)
    """
    low, high = f.interval("A")
    numbers = {
        "A": f.params["A"],
        "A_low": low,
        "A_high": high,
        "B": f.params["B"],
        "C_mid": f.params["C_mid"],
        "identified": float(f.identified),
        "next_doubling": gain(f, 2.0).median,
        "alarm": float(f.alarm is not None),
    }
    if end is not None:
        q = (1.0 - f.level) / 2.0
        # A run may already be past its planned end.
        at = f.predict([max(end, f.end)]).quantiles([q, 0.5, 1.0 - q])[0]
        numbers |= {"at_end_low": at[0], "at_end": at[1], "at_end_high": at[2]}
    return {f"forecast/{name}": float(value) for name, value in numbers.items()}
