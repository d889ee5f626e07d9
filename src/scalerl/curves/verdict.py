"""The verdict on two arms of a comparison, from their posteriors.

Draws of different runs are paired by index and share the law's error (paths.law_error), so the
difference of two runs of one kind is known better than either.

No score exceeds 1, so draws that would are cut off there, and ceilings near 1 are pressed together
by the end of the scale rather than by the points. Such draws count for neither side:

    A_a  .960 .990 1.00 1.00        in two draws both lie within MARGIN of 1: P(a higher) = 2 / 4,
    A_b  .700 .800 .985 1.00        P(b higher) = 0, and no side is taken
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scalerl.curves.arms import MARGIN, SURE, Arm
from scalerl.curves.prediction import tails

Array = npt.NDArray[np.float64]
VerdictName = Literal["higher-ceiling", "faster", "same", "undecided"]

#: Ceilings count as the same when they are within MARGIN with this probability.
SAME = 0.80
#: Two climbs count as alike when they differ by less than this in ln C.
SAME_SPEED = 0.2
#: Seeds alone move the ln C of a climb by about this much (sd).
SEED_LOG_COMPUTE_SD = 0.1
#: How far ahead a crossing is looked for, in multiples of the shorter run, and at how many knots.
KNOTS_AHEAD = 24
CROSSING_HORIZON = 100.0


@dataclass(frozen=True, slots=True)
class Crossing:
    """The run that is behind now overtakes, with this probability, at about this compute.

    >>> import numpy as np
    >>> from scalerl import compare, fit
    >>> c = np.linspace(10, 250, 40)
    >>> quick = fit(c, 0.5 / (1 + (40 / c) ** 2), name="quick")
    >>> high = fit(c, 0.8 / (1 + (250 / c) ** 2), name="high")
    >>> crossing = compare(quick, high).pairs[0].crossing
    >>> crossing.overtakes, 300 < crossing.compute < 450
    ('high', True)
    """

    compute: float | None
    probability: float
    overtakes: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "compute": self.compute,
            "probability": self.probability,
            "overtakes": self.overtakes,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What may honestly be said of two arms, and the samples it rests on."""

    name: VerdictName
    winner: str | None
    #: A_b - A_a per draw.
    delta: Array
    #: Share of the draws in which a, and in which b, has the higher ceiling; ties are in neither.
    p_higher: tuple[float, float]
    #: ln(C_b / C_a) per draw to reach `speed_score`, or None where no score was reached by both.
    speed: Array | None
    speed_score: float | None
    #: Neither ceiling is identified, and both may be perfect: nothing is said about them.
    both_open: bool
    #: Share of the compute at which it was decided, where it is kept from there (standing.py).
    decided_at: float | None = None


def decide(a: Arm, b: Arm, seed_sd: float) -> Verdict:
    """higher-ceiling if the sign of A_b - A_a is SURE and the two are not the same within MARGIN;
    faster / same if they are, and the climbs differ / do not; undecided otherwise, and always if
    neither ceiling is identified and both may be perfect. With seed_sd above 0 the verdict is on
    recipes: what seeds alone do is added to the differences."""
    sure = bar(a, SURE)
    delta = b.ceiling - a.ceiling
    delta = delta + seed_noise(a, b, seed_sd, len(delta), 41)
    apart = np.minimum(a.ceiling, b.ceiling) < 1.0 - MARGIN
    p_higher = _sides(np.where(apart, delta, 0.0))
    same = p_same(delta)
    low, high = max(a.start, b.start), min(a.top, b.top)
    speed, score = None, None
    if high - low >= MARGIN:
        score = (low + high) / 2.0
        speed = b.log_compute_to(score) - a.log_compute_to(score)
        log_sd = SEED_LOG_COMPUTE_SD if seed_sd > 0 else 0.0
        speed = speed + seed_noise(a, b, log_sd, len(speed), 42)
    name: VerdictName = "undecided"
    winner = None
    both_open = a.open_at_the_top and b.open_at_the_top
    if not both_open and max(p_higher) > sure and same < SAME:
        name, winner = "higher-ceiling", (a, b)[int(np.argmax(p_higher))].name
    elif not both_open and same >= SAME and speed is not None:
        p_faster = _sides(speed)[::-1]
        alike = float((np.abs(speed) < SAME_SPEED).mean())
        if alike >= SAME:
            name = "same"
        elif max(p_faster) > sure:
            name, winner = "faster", (a, b)[int(np.argmax(p_faster))].name
    return Verdict(name, winner, delta, p_higher, speed, score, both_open)


def bar(arm: Arm, least: float) -> float:
    """Probability above which a side is taken: `least`, or (1 + level) / 2 if that is more. Above
    (1 + level) / 2 the interval that is printed beside the verdict excludes 0:

        level .90    .95 excludes 0     a side is taken above SURE = .97
        level .99    .995 excludes 0    a side is taken above .995
    """
    return max(least, tails(arm.fits[0].level)[1])


def p_same(delta: Array) -> float:
    """Share of the draws in which two ceilings are within MARGIN."""
    return float((np.abs(delta) < MARGIN).mean())


def _sides(difference: Array) -> tuple[float, float]:
    """Shares of the draws below 0 and above it; a tie is in neither.

    >>> import numpy as np
    >>> _sides(np.array([-0.3, 0.0, 0.0, 0.2]))
    (0.25, 0.25)
    """
    return float((difference < 0.0).mean()), float((difference > 0.0).mean())


def seed_noise(a: Arm, b: Arm, sd: float, n: int, stream: int) -> Array:
    """What the seeds of two arms add to the difference of their means."""
    if sd == 0.0:
        return np.zeros(n)
    rng = np.random.default_rng((a.law.seed, b.law.seed, stream))
    scale = sd * np.sqrt(1.0 / a.seeds + 1.0 / b.seeds)
    return np.asarray(scale * rng.standard_normal(n))


def find_crossing(a: Arm, b: Arm, p_higher: tuple[float, float]) -> Crossing | None:
    """Does the one that is behind at the end of the shorter run probably end up ahead?"""
    start = min(a.end, b.end)
    knots = np.geomspace(start, CROSSING_HORIZON * start, KNOTS_AHEAD)
    gap = np.median(b.levels(knots) - a.levels(knots), axis=0)
    behind = int(gap[0] < 0.0)
    if p_higher[behind] < 0.5:
        return None
    ahead = np.flatnonzero(gap > 0.0 if behind else gap < 0.0)
    compute = float(knots[ahead[0]]) if len(ahead) else None
    return Crossing(compute, p_higher[behind], (a, b)[behind].name)
