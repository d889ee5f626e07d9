"""How a run is, step by step: the few numbers of `steps.jsonl` by which trouble is told.

A line of the record has ten times as many. Who needs these alone does not pay for the others, and
who reads a file that was just read gets what was found then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from scalerl.files import lines_of
from scalerl.runs.tail import parse_line


class StepHealthRow(NamedTuple):
    """Of one optimiser step, as `StepLine` has them; nan where the line does not say."""

    step: int
    loss: float
    grad_norm: float
    entropy: float
    truncated: float
    length_mean: float
    ratio_max: float
    ess: float
    #: Tokens without a finite log-prob.
    non_finite: int


def read_step_health(path: Path) -> tuple[StepHealthRow, ...]:
    """Of every line so far; a damaged one is passed over."""
    try:
        now = path.stat()
        return _read(path, now.st_ino, now.st_size, now.st_mtime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=1)
def _read(path: Path, *_version: int) -> tuple[StepHealthRow, ...]:
    made = (step_health(parse_line(line)) for line in lines_of(path) if line)
    return tuple(each for each in made if each is not None)


def step_health(line: Mapping[str, Any] | None) -> StepHealthRow | None:
    """Of one line; None where it is damaged or has no step."""
    if line is None:
        return None
    step = line.get("step")
    if type(step) is not int and not (type(step) is float and step.is_integer()):
        return None
    bad = line.get("non_finite", 0)
    return StepHealthRow(
        int(step),
        _number(line.get("loss")),
        _number(line.get("grad_norm")),
        _number(line.get("entropy")),
        _number(line.get("truncated")),
        _number(_inside(line.get("length"), "mean")),
        _number(_inside(line.get("ratio"), "max")),
        _number(line.get("ess")),
        bad if type(bad) is int else 0,
    )


def _inside(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    try:
        return float(value) if type(value) is int else math.nan
    except OverflowError:
        return math.nan
