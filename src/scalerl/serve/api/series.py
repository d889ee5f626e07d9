"""Metrics of steps as series, the catalogue of metrics, and lines of the record by cursor."""

from __future__ import annotations

import math
import re
import typing
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from scalerl.errors import InputError
from scalerl.files import MARK, LineReader, open_regular
from scalerl.runs.fields import Record
from scalerl.runs.lines import EvalLine, Line, StepLine
from scalerl.runs.tail import parse_line, select_columns

T = TypeVar("T")
#: Bytes of a file that are read at a time for a page of lines.
BLOCK_BYTES = 1_000_000
#: Bytes of lines for one page: a page may have fewer lines than its limit.
MAX_PAGE_BYTES = 16_000_000
#: Stands for a name that the record chooses: a set, a task, a reward function.
NAME = "NAME"
#: Units by the first words of a meaning, for the fields of the record that name none.
UNITS = (
    (r"2 N", "FLOPs"),
    (
        r"share of|pass rate|mean over prompts of the share|effective sample size"
        r"|standard error of that mean",
        "share, 0 to 1",
    ),
    (r".*\btokens\b", "tokens"),
    (
        r"(?:how many |most )?(?:answers|cores|held-out prompts|number of|new rows|parts|prompts"
        r"|rollouts|tool calls|turns|why rollouts)\b",
        "count",
    ),
    (r".*seconds|generators|the trainer's steps|the rest of|the part of|spent", "seconds"),
    (r"hours|device-hours", "hours"),
    (r"minutes", "minutes"),
    (r"optimiser steps|version|decode steps", "steps"),
)
#: Sections of the record with a unit for all their fields that name none.
SECTIONS = {"ledger/spent/": "device-seconds", "ledger/decode/": "sum over decode steps"}


class MetricInfo(NamedTuple):
    """The meaning of a metric."""

    name: str
    file: str
    definition: str
    unit: str
    kind: str

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


# -- the catalogue --------------------------------------------------------------------------------


def catalogue() -> list[MetricInfo]:
    """All metrics of steps and validations, from the types of the record."""
    return [*_metrics(StepLine, "steps"), *_metrics(EvalLine, "evals")]


def _metrics(
    record: type[Record], file: str, under: str = "", about: str = ""
) -> Iterator[MetricInfo]:
    hints = typing.get_type_hints(record)
    for each in fields(record):
        name, own = under + each.name, each.metadata["meaning"]
        meaning = f"{_group(about)}: {own}" if about else own
        unit = each.metadata["unit"] or _unit(name, own)
        yield from _of_type(hints[each.name], file, name, meaning, unit)


def _of_type(hint: Any, file: str, name: str, meaning: str, unit: str) -> Iterator[MetricInfo]:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in inside:
        (hint,) = [part for part in inside if part is not type(None)]
        yield from _of_type(hint, file, name, meaning, unit)
    elif origin is dict and inside[0] is int:
        yield MetricInfo(name, file, _sentence(meaning), unit, "histogram")
    elif origin is dict:
        yield from _of_type(inside[1], file, f"{name}/{NAME}", meaning, unit)
    elif isinstance(hint, type) and issubclass(hint, Record):
        yield from _metrics(hint, file, f"{name}/", meaning)
    elif hint in (int, float):
        kind = "integer" if hint is int else "number"
        yield MetricInfo(name, file, _sentence(meaning), unit, kind)


def _unit(name: str, meaning: str) -> str:
    for start, unit in SECTIONS.items():
        if name.startswith(start):
            return unit
    return next((unit for start, unit in UNITS if re.match(start, meaning)), "1")


def _group(meaning: str) -> str:
    """What a group of fields is about, to stand before the meaning of each: without its remarks,
    which follow a semicolon or are sentences of their own.

    >>> _group("further sets, by name; left out where there are none. To fit one: `--y`")
    'further sets, by name'
    """
    return meaning.partition(". ")[0].partition("; ")[0]


def _sentence(meaning: str) -> str:
    """The first sentence of a meaning, with a capital and a full stop.

    >>> _sentence("minutes on the clock. `budget.minutes` is a limit")
    'Minutes on the clock.'
    """
    words = " ".join(meaning.split()).partition(". ")[0].rstrip(".")
    # Not a symbol: π would become Π.
    first = words[:1].upper() if words[:1].isascii() else words[:1]
    return f"{first}{words[1:]}."


def known_metrics(steps: Sequence[StepLine], evals: Sequence[EvalLine]) -> list[MetricInfo]:
    """The metrics that these lines have, each NAME filled in."""
    found: dict[tuple[str, str], MetricInfo] = {}
    for file, lines in (("steps", steps), ("evals", evals)):
        names = {name for line in lines for name, _ in leaves(line.to_dict())}
        for info in (each for each in catalogue() if each.file == file):
            pattern = re.escape(info.name).replace(NAME, "(.+)")
            for name in sorted(n for n in names if re.fullmatch(pattern, n)):
                found.setdefault((file, name), info._replace(name=name))
    return list(found.values())


def leaves(line: Any, under: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of every number and histogram of a line.

    >>> list(leaves({"loss": 0.5, "length": {"mean": 3.0, "histogram": {"4": 1}}}))
    [('loss', 0.5), ('length/mean', 3.0), ('length/histogram', {'4': 1})]
    """
    for key, value in line.items():
        if isinstance(value, dict):
            if _is_histogram(value):
                yield under + key, value
            else:
                yield from leaves(value, f"{under}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield under + key, value


def _is_histogram(value: dict[Any, Any]) -> bool:
    """Whether an object is bin → count. (Scores at temperatures have numbers as names as well.)"""
    counts = all(isinstance(each, int | float) for each in value.values())
    return bool(value) and counts and all(re.fullmatch(r"-?\d+", str(name)) for name in value)


# -- series ---------------------------------------------------------------------------------------


def picked(lines: Sequence[T], most: int) -> list[T]:
    """At most `most` evenly picked lines, the last one among them.

    >>> picked([1, 2, 3, 4, 5], 3)
    [1, 3, 5]
    """
    every = max(-(-len(lines) // most), 1)
    return list(lines[(len(lines) - 1) % every :: every])


def series(lines: Sequence[dict[str, Any]], metrics: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each metric in all lines; all numbers of the last line where none is named."""
    last = lines[-1] if lines else {}
    names = list(metrics) or [
        name for name, value in leaves(last) if name != "step" and not isinstance(value, dict)
    ]
    select = select_columns(tuple(names))
    rows = [select(line) or (None,) * len(names) for line in lines]
    return {name: [_plain(row[i]) for row in rows] for i, name in enumerate(names)}


def _plain(value: Any) -> Any:
    """A number or a histogram; None for anything else that a line may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float | dict):
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- lines by cursor ------------------------------------------------------------------------------


def page_of_lines(
    path: Path, kind: type[Line], after: str | None, limit: int,
    make: Callable[[dict[str, Any]], T | None],
) -> tuple[list[T], str]:  # fmt: skip
    """About `limit` lines of a file from a cursor on, and the cursor behind them. A cursor is a
    position and a check of the bytes before it: a resumed run may have cut the file since."""
    reader, found = LineReader(), list[T]()
    try:
        with open_regular(path / kind.FILE, buffering=0) as file:
            if after:
                _go_to(reader, file, after)
            while len(found) < limit and reader.bytes_read < MAX_PAGE_BYTES:
                at, mark = reader.at, reader.mark
                lines = list(reader.read(file, BLOCK_BYTES))
                if reader.at == at:
                    break
                # Where a line was skipped for its length, the places of the others are not known,
                # and the page ends with the block.
                exact = sum(len(line) + 1 for line in lines) == reader.at - at
                for line in lines:
                    if exact and len(found) >= limit:
                        return found, _cursor(at, mark)
                    at += len(line) + 1
                    mark = (mark + line + b"\n")[-MARK:]
                    made = None if (value := parse_line(line)) is None else make(value)
                    found += [] if made is None else [made]
    except FileNotFoundError:
        return [], after or _cursor(0, b"")
    return found, _cursor(reader.at, reader.mark)


def _cursor(at: int, mark: bytes) -> str:
    return f"{at:x}-{zlib.crc32(mark):x}"


def _go_to(reader: LineReader, file: Any, after: str) -> None:
    match = re.fullmatch(r"([0-9a-f]{1,14})-([0-9a-f]{1,8})", after)
    if match is None:
        raise InputError("after is `next` of the page before")
    reader.at = int(match[1], 16)
    file.seek(max(reader.at - MARK, 0))
    reader.mark = file.read(min(reader.at, MARK))
    if zlib.crc32(reader.mark) != int(match[2], 16):
        raise InputError(
            "the record was cut or replaced since that page: a run was resumed; begin again "
            "without `after`"
        )
