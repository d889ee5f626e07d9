"""The verdict on two arms of a comparison, computed from their posteriors.

Draws of different runs are paired by index and share the law's error (`paths.law_error`), so the
difference between two runs of one kind is known more precisely than either run.

*Ceilings near 1.* No score exceeds 1, so draws above 1 are clipped there, and ceilings near 1 are
pressed together by the end of the scale rather than by the data. Such draws count for neither side:

    A_a  .960 .990 1.00 1.00        in two draws both lie within MARGIN of 1: P(a higher) = 2 / 4,
    A_b  .700 .800 .985 1.00        P(b higher) = 0, and no winner is named

*A declining loser.* Where a declining run is heading is not known, but it is no higher than where
it was heading before it declined. A declining run may therefore lose, by all its points or by those
before the alarm, but not win.

Which of these verdicts are given, and which would be withdrawn as more points come in, is decided
in survival.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from scalerl.curves.arms import MARGIN, WINNER_PROBABILITY, Arm
from scalerl.curves.formula import Array
from scalerl.curves.prediction import tails
from scalerl.curves.verdict import VerdictName

#: Ceilings count as the same when they are within MARGIN with at least this probability.
SAME_PROBABILITY = 0.80
#: Two arms count as equally fast when the ln C to one score differs by less than this (20 %).
SPEED_MARGIN = 0.2
#: sd of the ln C to one score between seeds of one recipe.
SEED_LOG_COMPUTE_SD = 0.1
#: A verdict that was given is kept above this probability of its winner. It is 0.95 because that is
#: where the 90 % interval of the difference, printed beside the verdict, begins to exclude 0.
KEEP_PROBABILITY = 0.95
#: A crossing is searched up to this multiple of the shorter run's compute.
CROSSING_HORIZON = 100.0
#: Compute values, evenly spaced in ln C, at which a crossing is searched.
CROSSING_KNOTS = 24


@dataclass(frozen=True, slots=True)
class Crossing:
    """The arm that is behind now probably overtakes the other.

    >>> import numpy as np
    >>> from scalerl import compare, fit
    >>> c = np.linspace(10, 250, 40)
    >>> quick = fit(c, 0.5 / (1 + (40 / c) ** 2), name="quick")
    >>> high = fit(c, 0.8 / (1 + (250 / c) ** 2), name="high")
    >>> crossing = compare(quick, high).pairs[0].crossing
    >>> crossing.overtakes, 300 < crossing.compute < 450
    ('high', True)
    """

    #: Compute at which the median curves cross; None if beyond CROSSING_HORIZON.
    compute: float | None
    #: Probability that the arm ends with the higher ceiling.
    probability: float
    #: Name of the arm that overtakes.
    overtakes: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The verdict on arms a and b, with the samples it is computed from."""

    name: VerdictName
    winner: str | None
    #: A_b - A_a per draw.
    delta: Array
    #: Share of draws in which a, and in which b, has the higher ceiling; ties are in neither.
    p_higher: tuple[float, float]
    #: ln(C_b / C_a) per draw to reach `speed_score`; None where the arms share no score.
    speed: Array | None
    #: Pass rate half-way up the range that both arms have climbed.
    speed_score: float | None
    #: Neither ceiling is identified and both may be 1, so no winner is named.
    both_open: bool
    #: Probability that it is still the verdict at the end of both budgets, if both runs stay
    #: healthy; None where the points give no verdict.
    survives: float | None = None
    #: Of an undecided pair, the verdict and its winner that the points give now, but which would
    #: not survive; None where they give none.
    tentative: tuple[VerdictName, str | None] | None = None
    #: Share of the compute at which a kept verdict was already given; None where it is not kept.
    decided_at: float | None = None

    def agrees(self, other: Verdict) -> bool:
        """Whether the other has the same name and winner."""
        return (self.name, self.winner) == (other.name, other.winner)


def current_verdict(a: Arm, b: Arm, seed_sd: float, least: float = WINNER_PROBABILITY) -> Verdict:
    """The verdict that the points give now, allowing for declining runs."""
    found = decide(a, b, seed_sd, least)
    healthy = {arm.name for arm in (a, b) if not arm.declines}
    if len(healthy) == 2 or _wins(found, healthy):
        return found
    before = [arm.before_alarm if arm.declines else arm for arm in (a, b)]
    if before[0] is not None and before[1] is not None:
        earlier = decide(before[0], before[1], seed_sd, least)
        if _wins(earlier, healthy):
            return earlier
    return replace(found, name="undecided", winner=None)


def _wins(found: Verdict, healthy: set[str]) -> bool:
    """Whether a healthy arm has the higher ceiling."""
    return found.name == "higher-ceiling" and found.winner in healthy


def decide(
    a: Arm,
    b: Arm,
    seed_sd: float,
    least: float = WINNER_PROBABILITY,
    with_speed: bool = True,
) -> Verdict:
    """The verdict on two arms from their current draws.

    - higher-ceiling: the sign of A_b - A_a is known with probability `least`, and the two are not
      the same within MARGIN;
    - faster or same: the ceilings are the same within MARGIN, and the climbs differ or do not;
    - undecided: anything else, and always if neither ceiling is identified and both may be 1.

    With seed_sd above 0 the verdict is about recipes: the effect of seeds is added to the
    differences. with_speed=False leaves the speed out where the verdict does not need it.
    """
    threshold = winner_threshold(a, least)
    delta = b.ceiling - a.ceiling
    # 41 and 42 number independent random streams; changing them would change published verdicts.
    delta = delta + seed_noise(a, b, seed_sd, len(delta), 41)
    apart = np.minimum(a.ceiling, b.ceiling) < 1.0 - MARGIN
    p_higher = _shares_by_sign(np.where(apart, delta, 0.0))
    same = p_same(delta)
    speed, score = None, None
    if with_speed or same >= SAME_PROBABILITY:
        speed, score = _speed(a, b, seed_sd)
    name: VerdictName = "undecided"
    winner = None
    both_open = a.may_be_perfect and b.may_be_perfect
    if not both_open and max(p_higher) > threshold and same < SAME_PROBABILITY:
        name, winner = "higher-ceiling", (a, b)[int(np.argmax(p_higher))].name
    elif not both_open and same >= SAME_PROBABILITY and speed is not None:
        # Reversed: a negative speed means that b needs less compute.
        p_faster = _shares_by_sign(speed)[::-1]
        alike = float((np.abs(speed) < SPEED_MARGIN).mean())
        if alike >= SAME_PROBABILITY:
            name = "same"
        elif max(p_faster) > threshold:
            name, winner = "faster", (a, b)[int(np.argmax(p_faster))].name
    return Verdict(name, winner, delta, p_higher, speed, score, both_open)


def _speed(a: Arm, b: Arm, seed_sd: float) -> tuple[Array | None, float | None]:
    """ln(C_b / C_a) per draw to a score that both have reached, and that score. Without a common
    range of scores, neither arm can be called faster."""
    low, high = max(a.start, b.start), min(a.top, b.top)
    if high - low < MARGIN:
        return None, None
    score = (low + high) / 2.0
    speed = b.log_compute_to(score) - a.log_compute_to(score)
    log_sd = SEED_LOG_COMPUTE_SD if seed_sd > 0 else 0.0
    return speed + seed_noise(a, b, log_sd, len(speed), 42), score


def winner_threshold(arm: Arm, least: float) -> float:
    """Probability above which a winner is named: `least`, or (1 + level) / 2 if that is more. Above
    (1 + level) / 2 the interval that is printed beside the verdict excludes 0:

        level .90    .95 excludes 0     a winner is named above WINNER_PROBABILITY = .97
        level .99    .995 excludes 0    a winner is named above .995
    """
    return max(least, tails(arm.fits[0].level)[1])


def p_same(delta: Array) -> float:
    """Share of draws in which two ceilings are within MARGIN."""
    return float((np.abs(delta) < MARGIN).mean())


def _shares_by_sign(difference: Array) -> tuple[float, float]:
    """Shares of draws below 0 and above 0; a tie is in neither.

    >>> import numpy as np
    >>> _shares_by_sign(np.array([-0.3, 0.0, 0.0, 0.2]))
    (0.25, 0.25)
    """
    return float((difference < 0.0).mean()), float((difference > 0.0).mean())


def seed_noise(a: Arm, b: Arm, sd: float, n: int, stream: int) -> Array:
    """n draws of what the choice of seeds adds to the difference between two arms' means."""
    if sd == 0.0:
        return np.zeros(n)
    rng = np.random.default_rng((a.fit.seed, b.fit.seed, stream))
    scale = sd * np.sqrt(1.0 / a.seeds + 1.0 / b.seeds)
    return np.asarray(scale * rng.standard_normal(n))


def find_crossing(a: Arm, b: Arm, p_higher: tuple[float, float]) -> Crossing | None:
    """The crossing of two arms, if the one behind at the end of the shorter run probably wins."""
    start = min(a.end, b.end)
    knots = np.geomspace(start, CROSSING_HORIZON * start, CROSSING_KNOTS)
    gap = np.median(b.levels(knots) - a.levels(knots), axis=0)
    behind = int(gap[0] < 0.0)
    if p_higher[behind] < 0.5:
        return None
    ahead = np.flatnonzero(gap > 0.0 if behind else gap < 0.0)
    compute = float(knots[ahead[0]]) if len(ahead) else None
    return Crossing(compute, p_higher[behind], (a, b)[behind].name)
