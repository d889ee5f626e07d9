"""The verdicts of a dose axis in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalerl.study.dose_draws import DoseVerdict

if TYPE_CHECKING:
    from scalerl.study.dose_results import BestDose


def verdict_words(found: DoseVerdict, last: str, key: str, kind: str) -> str:
    """The verdict of a line as a sentence without its subject; `last` is the label of the largest
    dose tried."""
    what = "ceiling" if kind == "ceiling" else "pass rate at the end of the budget"
    if found.verdict == "falls":
        low, middle, high = (_number(v) for v in found.dose)
        return f"the {what} falls by .02 at {key} = {middle} [{low}, {high}]"
    if found.verdict == "holds":
        return f"the {what} does not fall by .02 up to the largest dose tried, {last}"
    return (
        f"undecided whether the {what} falls by .02 up to {key} = {last} "
        f"(probability {found.p_falls:.2f})"
    )


def break_words(found: DoseVerdict, last: str, key: str) -> str:
    """The verdict on the dose at which runs break, as a sentence without its subject."""
    if found.verdict == "falls":
        low, middle, high = (_number(v) for v in found.dose)
        return f"half of the runs break at {key} = {middle} [{low}, {high}]"
    if found.verdict == "holds":
        return f"fewer than half of the runs break up to the largest dose tried, {last}"
    return (
        f"undecided whether half of the runs break up to {key} = {last} "
        f"(probability {found.p_falls:.2f})"
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "beyond"


def best_words(best: Sequence[BestDose]) -> str:
    """Which dose is best at which share of the budget."""
    if not best:
        return "not every dose has runs to compare"
    said = [
        f"{each.label} (among {', '.join(each.among)}) at {each.share:.0%} of the budget"
        for each in best
    ]
    return "best: " + "; ".join(said)
