"""In which order tables of many runs stand."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from scalerl.curves.result import Fit
from scalerl.errors import InputError

T = TypeVar("T")
#: Up to this many runs stand as they were given; more stand best first.
FEW = 6
#: Column → what it is sorted by, and whether the largest comes first.
Columns = dict[str, tuple[Callable[[Any], Any], bool]]


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Numbers inside names count as numbers.

    >>> sorted(["run-10", "run-9", "Run-1"], key=natural)
    ['Run-1', 'run-9', 'run-10']
    """
    parts = re.split(r"(\d+)", name.casefold())
    return tuple((p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts)


def _ceiling(f: Fit) -> float | None:
    return f.params["A"] if f.identified else None


FIT: Columns = {
    "run": (lambda f: natural(f.name), False),
    "n": (lambda f: len(f.points), True),
    "end": (lambda f: f.end, True),
    "A": (_ceiling, True),
    "B": (lambda f: f.params.get("B"), True),
    "C_mid": (lambda f: f.params.get("C_mid"), False),
    "rmse": (lambda f: f.rmse, False),
}
FORECAST: Columns = {
    "run": (lambda ahead: natural(ahead.fit.name), False),
    "end": (lambda ahead: ahead.fit.end, True),
    "A": (lambda ahead: _ceiling(ahead.fit), True),
    "score": (lambda ahead: float(ahead.at.median[0]), True),
    "gain": (lambda ahead: None if ahead.fit.alarm else ahead.next_doubling.median, True),
}
VERDICTS = ("higher-ceiling", "faster", "same", "undecided")
#: Of pairs, which `compare` gives by ceiling.
COMPARE: Columns = {
    "A": (lambda pair: 0, False),
    "run": (lambda pair: (natural(pair.a), natural(pair.b)), False),
    "delta_A": (lambda pair: abs(pair.delta_a), True),
    "verdict": (lambda pair: VERDICTS.index(pair.verdict), False),
}


def sort_by(items: Sequence[T], columns: Columns, column: str | None) -> list[T]:
    """The items by a column, in its own direction, or with a minus before its name in the other;
    what has no such number stands last. Without a column: many by ceiling, a few as given."""
    if column is None:
        column = "A" if len(items) > FEW else ""
    if not column:
        return list(items)
    name = column.removeprefix("-")
    if name not in columns:
        raise InputError(f"no column {name!r} to sort by: choose one of {', '.join(columns)}")
    key, largest_first = columns[name]
    keyed = [(key(item), item) for item in items]
    known = [(k, item) for k, item in keyed if not _unknown(k)]
    # Stable in both directions: equal runs stay as they were given.
    known.sort(key=lambda pair: pair[0], reverse=largest_first != column.startswith("-"))
    return [item for _, item in known] + [item for k, item in keyed if _unknown(k)]


def _unknown(key: Any) -> bool:
    return key is None or (isinstance(key, float) and not math.isfinite(key))
