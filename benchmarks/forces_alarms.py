"""Which sign rises before a training collapse, how early, and how often for nothing?

python benchmarks/forces_alarms.py

Reads the records of the forces (docs/findings/records); nothing is run. A run has collapsed if the
stability rule `collapse` says so: its pass rate stays below its best to the end. Healthy runs are
those called stable. A sign is on from the step at which the mean of WINDOW steps passes a
threshold:

    fixed    the limit that the watchdog of a run has (pipeline/alarms.py)
    chosen   the largest value that at most FALSE of the healthy runs of all *other* forces pass
             (the smallest, for a sign that falls), so that no force chooses its own threshold

A collapse is caught if the sign is on before the validation that shows it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from record import save
from scalerl import Study
from scalerl.pipeline.alarms import (
    MAX_ENTROPY,
    MAX_GRADIENT,
    MIN_ENTROPY,
    MIN_ESS,
    START,
    WINDOW,
)
from scalerl.study.dose_results import outcome

RECORDS = Path(__file__).parent.parent / "docs" / "findings" / "records"
#: Share of healthy runs in which a chosen threshold may be passed.
FALSE = 0.05


@dataclass(frozen=True, slots=True)
class Sign:
    """A column of the steps, or its quotient by its median over the first START steps."""

    name: str
    column: str
    #: Whether trouble makes it rise.
    rises: bool
    from_start: bool = False
    #: Threshold of the watchdog; None: it has none.
    fixed: float | None = None


SIGNS = (
    Sign("KL of sampler and trainer", "logprob_gap/kl", True),
    Sign("effective sample size", "ess", False, fixed=MIN_ESS),
    Sign("largest ratio", "ratio/max", True),
    Sign("entropy, of its start", "entropy", False, from_start=True, fixed=MIN_ENTROPY),
    Sign("entropy rises, of its start", "entropy", True, from_start=True, fixed=MAX_ENTROPY),
    Sign("gradient norm, of its start", "grad_norm", True, from_start=True, fixed=MAX_GRADIENT),
    Sign("truncated share", "truncated", True, fixed=0.1),
    Sign("length, of its start", "length/mean", True, from_start=True),
    Sign("training pass rate, of its best", "pass_rate", False),
)


@dataclass(frozen=True, slots=True)
class Watched:
    """A run: its force, its signs at every step, and the step of its collapse."""

    name: str
    force: str
    #: Validation that shows the collapse; None: healthy.
    collapse: int | None
    steps: tuple[int, ...]
    #: Sign → value at every step.
    values: dict[str, np.ndarray]


def watched(force: str) -> list[Watched]:
    """The collapsed and the healthy runs of a force."""
    study, out = Study(RECORDS / force), []
    for member in study.members:
        found = outcome(study.finding(member))
        collapsed = found.rule == "collapse"
        if not collapsed and found.state != "stable":
            continue
        lines = (member.path / "steps.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        values = {sign.name: smoothed(sign, rows) for sign in SIGNS}
        at = tuple(int(row["step"]) for row in rows)
        out.append(Watched(member.name, force, found.step if collapsed else None, at, values))
    return out


def smoothed(sign: Sign, rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """The sign at every step as a mean of WINDOW; nan before there are so many."""
    raw = np.array([_value(row, sign.column) for row in rows])
    if sign.from_start:
        start = raw[:START][~np.isnan(raw[:START])]
        first = float(np.median(start)) if len(start) else 0.0
        raw = raw / first if first > 0 else np.full_like(raw, math.nan)
    if sign.column == "pass_rate":
        smooth = _means(raw)
        return smooth - np.fmax.accumulate(np.where(np.isnan(smooth), -1.0, smooth))
    return _means(raw)


def _value(row: dict[str, Any], column: str) -> float:
    found: Any = row
    for key in column.split("/"):
        found = found.get(key) if isinstance(found, dict) else None
    return math.nan if found is None else float(found)


def _means(raw: np.ndarray) -> np.ndarray:
    out = np.full(len(raw), math.nan)
    for i in range(WINDOW - 1, len(raw)):
        out[i] = raw[i - WINDOW + 1 : i + 1].mean()
    return out


def extreme(run: Watched, sign: Sign) -> float:
    """The value of a run furthest into trouble."""
    values = run.values[sign.name]
    if np.isnan(values).all():
        return math.nan
    return float(np.nanmax(values) if sign.rises else np.nanmin(values))


def threshold(runs: Sequence[Watched], sign: Sign) -> float:
    """The value that FALSE of the healthy runs pass."""
    values = [v for run in runs if run.collapse is None and not math.isnan(v := extreme(run, sign))]
    if not values:
        return math.inf if sign.rises else -math.inf
    return float(np.quantile(values, 1 - FALSE if sign.rises else FALSE))


def first_on(run: Watched, sign: Sign, limit: float) -> int | None:
    """The first step at which the sign is on."""
    values = run.values[sign.name]
    on = values > limit if sign.rises else values < limit
    return run.steps[int(np.argmax(on))] if on.any() else None


def score(runs: Sequence[Watched], rises: Callable[[Watched], int | None]) -> dict[str, Any]:
    """Collapses caught, their lead in steps, and false alarms; `rises` is the step at which a sign
    is on in a run."""
    collapsed = [run for run in runs if run.collapse is not None]
    healthy = [run for run in runs if run.collapse is None]
    leads = [
        run.collapse - on
        for run in collapsed
        if run.collapse is not None and (on := rises(run)) is not None and on < run.collapse
    ]
    false = sum(rises(run) is not None for run in healthy)
    return {
        "caught": len(leads),
        "collapsed": len(collapsed),
        "lead": median(leads) if leads else None,
        "false": false,
        "healthy": len(healthy),
    }


def scores(runs: Sequence[Watched]) -> list[dict[str, Any]]:
    """Every sign with its fixed and with its chosen threshold."""
    forces = sorted({run.force for run in runs})
    out = []
    for sign in SIGNS:
        mark = ">" if sign.rises else "<"
        if sign.fixed is not None:
            rule = f"{mark} {sign.fixed:g}, the watchdog's"
            found = score(runs, partial(first_on, sign=sign, limit=sign.fixed))
            out.append({"sign": sign.name, "rule": rule} | found)
        limits = {
            force: threshold([run for run in runs if run.force != force], sign) for force in forces
        }
        middle = median(limits.values())
        rule = f"{mark} {middle:.3g}, chosen on other forces"
        found = score(runs, lambda run, s=sign, at=limits: first_on(run, s, at[run.force]))
        out.append({"sign": sign.name, "rule": rule} | found)
    found = score(runs, watchdog)
    return [*out, {"sign": "any of the watchdog's", "rule": "as above"} | found]


def watchdog(run: Watched) -> int | None:
    """The first step at which any sign of the watchdog is on."""
    ons = [first_on(run, sign, sign.fixed) for sign in SIGNS if sign.fixed is not None]
    return min((on for on in ons if on is not None), default=None)


def main() -> None:
    names = sorted(path.parent.name for path in RECORDS.glob("*/study.toml"))
    runs = [run for name in names for run in watched(name)]
    found = scores(runs)
    for row in found:
        print(row)
    save("forces_alarms", {"forces": names, "runs": len(runs), "signs": found})


if __name__ == "__main__":
    main()
