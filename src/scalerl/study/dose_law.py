"""A claimed power law: how the dose at which lines break goes with a key of theirs.

    P(a run breaks) = 1 / (1 + exp(-(ln dose - a - slope · ln key) / width))

One slope for all lines, with a flat prior on it, on a and on the logarithm of the width; the
posterior is computed on a grid. A line that never breaks, or always, says only that its dose is
beyond those tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.curves.formula import logistic

#: Slopes that are possible.
SLOPES = np.linspace(-3.0, 2.0, 201)
#: Widths of the rise from stable to broken, in ln dose: a fifth of a doubling, to two of them.
LAW_WIDTHS = np.geomspace(0.15, 1.4, 10)
#: How far beyond the doses tried half of the runs may break, in ln dose.
BEYOND = 3.0
#: Steps of the grid of a.
HEIGHTS = 161
TAILS = (0.05, 0.5, 0.95)
#: Tails beyond which a slope is excluded: a 90 % interval misses a true one in 10 % of cases, and
#: verdicts are to be wrong in at most 3 %.
EXCLUDED = (0.015, 0.985)
#: A law holds if its slope is known to be this near to the claimed one: half a power.
NEAR = 0.5
#: Probability of that.
HOLDS_PROBABILITY = 0.95


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """The runs of one cell."""

    key: float
    dose: float
    runs: int
    broken: int


@dataclass(frozen=True, slots=True)
class LawVerdict:
    """The slope with its 90 % interval, against the claimed one."""

    over: str
    claimed: float
    #: Low end, median and high end.
    slope: tuple[float, float, float]
    #: "does not hold": the claimed slope is outside the 97 % interval. "holds": the slope is within
    #: NEAR of it, and 0 is outside that interval. Else "undecided".
    verdict: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "over": self.over,
            "claimed": self.claimed,
            "slope": self.slope[1],
            "interval": [self.slope[0], self.slope[2]],
            "verdict": self.verdict,
        }


def law_verdict(outcomes: Sequence[CellOutcome], over: str, claimed: float) -> LawVerdict:
    """The posterior of the slope by all runs."""
    centre = float(np.mean([np.log(o.key) for o in outcomes]))
    doses = np.log([o.dose for o in outcomes])
    # a at the middle key, so that it hardly depends on the slope.
    heights = np.linspace(doses.min() - BEYOND, doses.max() + BEYOND, HEIGHTS)
    log = np.zeros((len(SLOPES), HEIGHTS, len(LAW_WIDTHS)))
    for o, dose in zip(outcomes, doses, strict=True):
        middle = heights[None, :, None] + SLOPES[:, None, None] * (np.log(o.key) - centre)
        p = np.clip(logistic((dose - middle) / LAW_WIDTHS), 1e-12, 1 - 1e-12)
        log += o.broken * np.log(p) + (o.runs - o.broken) * np.log1p(-p)
    weight = np.exp(log - log.max()).sum(axis=(1, 2))
    # Straight between the grid's sums, each taken at the end of its own cell.
    half = (SLOPES[1] - SLOPES[0]) / 2
    below = np.cumsum(weight) / weight.sum()
    low, middle, high = (float(v) for v in np.interp(TAILS, below, SLOPES + half))
    least, most = (float(v) for v in np.interp(EXCLUDED, below, SLOPES + half))
    verdict = "undecided"
    if not least <= claimed <= most:
        verdict = "does not hold"
    elif not least <= 0 <= most:
        near = np.abs(SLOPES - claimed) < NEAR
        if weight[near].sum() / weight.sum() >= HOLDS_PROBABILITY:
            verdict = "holds"
    return LawVerdict(over, claimed, (low, middle, high), verdict)
