"""The race: which member of a study is to go on next, and when enough has been seen.

A study asks one question a variant: what is it, against the reference? Each pair's posterior says
what is known by now. What going on would add is read off the same draws. A member whose draws
disagree about the scores to come will be told apart by them, by as much as its ceiling goes with
those scores:

    Var(A | scores to come) = Var(A) - c' (S + N)^-1 c      c, S: covariances of ceiling and scores
                                                            over the draws; N: evaluation noise

so the difference of two ceilings, now mu with variance V, will be N(mu, R) with variance V - R, and
it is plain how often that is a verdict (`_closes`).

    pair         now              if the variant goes on to 40 %       if the reference does
    loo-loss     +.024 (.016)     a verdict in .55 for 3 x .08         .20 for 3 x .08
    loo-head     +.003 (.022)     .21                                  .35
                                  best: .55 / .24 = 2.3                (.20 + .35) / .24 = 2.3

The next chunk goes to where verdicts per unit of compute are most. Plans are weighed up to the end
of the budget, not for one chunk alone: a single validation hardly ever decides, ten may.

Nobody is thrown away: who is not run is paused, and goes on when its pair promises most. Curves
cross, so how high a member stands counts for nothing, only how open its verdict is. Everything here
is a function of the records.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.curves.result import Fit
from scalerl.curves.standing import settle
from scalerl.curves.verdict import (
    MARGIN,
    SAME,
    SAME_SPEED,
    SEED_LOG_COMPUTE_SD,
    SURE,
    Arm,
    Verdict,
    seed_spread,
)

Array = npt.NDArray[np.float64]

#: Multiples of the compute so far that plans go to; the end of the budget is always one.
MULTIPLES = (1.25, 1.5, 2.0, 3.0)
#: A pair that all its budget would decide with less than this probability is left undecided.
HOPE = 0.1
#: Scores to come are looked at in so many places, on every THIN-th draw.
KNOTS, THIN = 4, 4
_SIDE = NormalDist().inv_cdf(SURE)


@dataclass(frozen=True, slots=True)
class Racer:
    """A member as the race sees it."""

    name: str
    variant: str
    #: Of a run that has the racer's name; None before it can be fitted.
    fit: Fit | None
    #: Of its budget: spent so far; given to everybody first, so that a law can be fitted; and given
    #: at a time from then on.
    share: float
    first: float
    chunk: float
    #: Compute of its whole budget, in any unit that all have in common.
    whole: float = 1.0
    unstable: bool = False
    #: Ended, failed or at work elsewhere: it cannot be given anything.
    closed: bool = False

    @property
    def may_go_on(self) -> bool:
        return self.share < 1.0 and not self.unstable and not self.closed


@dataclass(frozen=True, slots=True)
class RaceState:
    """What the race does next, and why. Empty `order`: it is over."""

    #: Members that may be given the next chunk, the most deciding first.
    order: tuple[str, ...]
    why: str
    #: Variant → its verdict and winner so far; of those that are open: the chance that its budget
    #: decides it.
    verdicts: Mapping[str, tuple[str, str | None]]
    chances: Mapping[str, float]
    #: Compute spent, of that of all budgets.
    spent: float
    of: float

    @property
    def over(self) -> bool:
        return not self.order

    def __str__(self) -> str:
        start = "over" if self.over else f"next is {self.order[0]}"
        return f"{start}: {self.why}; {self.spent / self.of:.0%} of all budgets spent"

    def to_dict(self) -> dict[str, Any]:
        head: dict[str, Any] = {"ended": True} if self.over else {"next": self.order[0]}
        return {
            **head,
            "why": self.why,
            "spent": self.spent,
            "of": self.of,
            "decided": sum(name != "undecided" for name, _ in self.verdicts.values()),
            "chances": dict(self.chances),
        }


@dataclass(slots=True)
class Foresight:
    """What was worked out for fits and pairs of them, kept between looks, since only the member
    that went on has changed. (Fits are kept beside it, so that no other can have their ids.)"""

    narrowed: dict[tuple[int, float], tuple[Fit, float]] = field(default_factory=dict)
    arms: dict[tuple[int, ...], Arm] = field(default_factory=dict)
    paired: dict[tuple[Any, ...], tuple[Arm, Arm, _Pair]] = field(default_factory=dict)

    def keep(self, fits: Collection[Fit]) -> None:
        """Let go of what is not about these: the curves of members as they were."""
        now = set(map(id, fits))
        self.narrowed = {key: kept for key, kept in self.narrowed.items() if key[0] in now}
        self.arms = {key: arm for key, arm in self.arms.items() if now.issuperset(key)}
        arms = {id(arm) for arm in self.arms.values()}
        self.paired = {k: pair for k, pair in self.paired.items() if arms.issuperset(k[:2])}

    def narrowing(self, racer: Racer, share: float) -> float:
        """Share of the ceiling's variance that going on to this share of the budget takes away."""
        if racer.fit is None or share <= racer.share or racer.share <= 0.0:
            return 0.0
        key = id(racer.fit), round(share / racer.share, 6)
        if key not in self.narrowed:
            new = (share - racer.share) / racer.share * len(racer.fit.points)
            self.narrowed[key] = racer.fit, narrowing(racer.fit, share / racer.share, new)
        return self.narrowed[key][1]

    def arm(self, name: str, fits: tuple[Fit, ...]) -> Arm:
        """The arm of these fits: what it works out for one pair serves the others."""
        key = tuple(map(id, fits))
        if key not in self.arms:
            self.arms[key] = Arm(name, fits)
        return self.arms[key]

    def pair(self, reference: Arm, variant: Arm, seed_sd: float) -> _Pair:
        key = id(reference), id(variant), seed_sd
        if key not in self.paired:
            self.paired[key] = reference, variant, _pair(reference, variant, seed_sd)
        return self.paired[key][2]


def narrowing(f: Fit, multiple: float, new: float) -> float:
    """Share of the variance of the ceiling that `new` evaluations up to `multiple` times the
    compute so far are expected to take away, to first order. Futures that fall are left out: they
    tell of the fall, and not of the ceiling."""
    belief = f.belief.thinned(THIN)
    levels = belief.levels(f.end * np.geomspace(1.0, multiple, KNOTS + 1)[1:])
    ceiling = belief.parameter("A")
    noise = float(np.median(belief.noise()))
    healthy = levels[:, -1] > np.median(levels[:, 0]) - 2.0 * noise - MARGIN
    if healthy.sum() < len(levels) // 4:
        return 0.0
    levels, ceiling = levels[healthy], ceiling[healthy]
    total = float(ceiling.var())
    if total <= 0.0:
        return 0.0
    apart = levels - levels.mean(axis=0)
    across = apart.T @ (ceiling - ceiling.mean()) / len(apart)
    seen = apart.T @ apart / len(apart) + np.eye(KNOTS) * noise**2 * KNOTS / max(new, 1.0)
    return float(np.clip(across @ np.linalg.solve(seen, across) / total, 0.0, 0.98))


@dataclass(frozen=True, slots=True)
class _Pair:
    """A variant beside the reference."""

    verdict: Verdict
    ceiling: _Difference
    speed: _Difference | None
    #: Member → its part in the variance of the difference.
    parts: Mapping[str, float]

    @property
    def open(self) -> bool:
        return self.verdict.name == "undecided"

    def chance(self, taken: Mapping[str, float]) -> float:
        """Probability of a verdict once these shares of the members' variances are gone. The speed
        is taken to become known as the ceilings do."""
        whole = sum(self.parts.values())
        if whole <= 0.0:
            return 0.0
        ratio = sum(part * taken.get(name, 0.0) for name, part in self.parts.items()) / whole
        # Open by the draws though closed by a normal distribution (heavy tails, an alarm, ceilings
        # open at the top): what is left to be known is all that can be gone by.
        return ratio if self._normally(0.0) >= 0.5 else self._normally(ratio)

    def _normally(self, ratio: float) -> float:
        side, same = self.ceiling.later(ratio)
        return side + same * (0.5 if self.speed is None else sum(self.speed.later(ratio)))


@dataclass(frozen=True, slots=True)
class _Difference:
    """A difference of two arms as a normal distribution."""

    middle: float
    variance: float
    #: What seeds do to it, which going on does not narrow, and what counts as the same.
    seeds: float
    margin: float

    @staticmethod
    def of(draws: Array, seeds: float, margin: float) -> _Difference:
        low, middle, high = np.quantile(draws, [0.16, 0.5, 0.84])
        return _Difference(float(middle), max((high - low) / 2.0, 1e-6) ** 2, seeds, margin)

    def later(self, ratio: float) -> tuple[float, float]:
        """Probability that it will have a side, and that it will be the same within the margin, by
        the rules of verdict.py, once this share of what can be known is known."""
        gone = ratio * max(self.variance - self.seeds, 0.0)
        sd, moves = math.sqrt(max(self.variance - gone, 1e-12)), math.sqrt(gone) + 1e-9
        near = self.margin * _nearest(round(sd / self.margin, 3))
        far = max(_SIDE * sd, near)
        same = _mass(near, self.middle, moves) if near > 0.0 else 0.0
        return 1.0 - _mass(far, self.middle, moves), same


def _mass(end: float, middle: float, sd: float) -> float:
    """Of a normal distribution within ± end."""
    z = math.sqrt(2.0) * sd
    return 0.5 * (math.erf((end - middle) / z) + math.erf((end + middle) / z))


@functools.cache
def _nearest(sd: float) -> float:
    """The largest middle of a normal distribution that has SAME of its mass within ± 1; 0 where no
    middle has.

    >>> round(_nearest(0.1), 2), _nearest(1.0)
    (0.92, 0.0)
    """
    low, high = 0.0, 1.0
    if sd <= 0.0 or _mass(1.0, 0.0, sd) < SAME:
        return 1.0 if sd <= 0.0 else 0.0
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _mass(1.0, middle, sd) >= SAME else (low, middle)
    return low


def race(racers: Sequence[Racer], reference: str, foresight: Foresight | None = None) -> RaceState:
    """What is to be done next."""
    ahead = foresight or Foresight()
    ahead.keep([r.fit for r in racers if r.fit is not None])
    spent, of = sum(r.share * r.whole for r in racers), sum(r.whole for r in racers)
    pairs = _pairs(racers, reference, ahead)
    verdicts: dict[str, tuple[str, str | None]] = {
        v: (p.verdict.name, p.verdict.winner) for v, p in pairs.items()
    }
    verdicts |= {v: ("unstable", None) for v in _unstable(racers) if v != reference}
    early = [r for r in racers if r.may_go_on and (r.share < r.first - 1e-9 or r.fit is None)]
    if early:
        why = f"{len(early)} members have no curve yet that a law can be fitted to"
        names = tuple(r.name for r in early)
        return RaceState(names, why, verdicts, {}, spent, of)
    chances = {v: _at_the_end(p, racers, ahead) for v, p in pairs.items() if p.open}
    worth = {v: pairs[v] for v, chance in chances.items() if chance >= HOPE}
    plans = sorted(_plans(worth, racers, reference, ahead), key=lambda plan: -plan.gain)
    order = tuple(dict.fromkeys(name for plan in plans for name in plan.members))
    if order:
        return RaceState(order, plans[0].why, verdicts, chances, spent, of)
    why = _why_over(verdicts, chances, racers)
    if not pairs and reference in _unstable(racers):
        why = f"the reference {reference} is unstable: nothing can be compared with it"
    return RaceState((), why, verdicts, chances, spent, of)


def _why_over(
    verdicts: Mapping[str, Any], chances: Mapping[str, float], racers: Sequence[Racer]
) -> str:
    if not verdicts:
        return "nothing can be compared"
    if not chances:
        return f"all {len(verdicts)} verdicts are decided"
    left = f"{len(verdicts) - len(chances)} of {len(verdicts)} verdicts are decided; "
    if all(not r.may_go_on for r in racers):
        return left + "all budgets are spent"
    return left + f"of the others none has a chance of {HOPE:.0%} or more within its budget"


def _unstable(racers: Sequence[Racer]) -> list[str]:
    variants = dict.fromkeys(r.variant for r in racers)
    return [v for v in variants if all(r.unstable for r in racers if r.variant == v)]


def _pairs(racers: Sequence[Racer], reference: str, ahead: Foresight) -> dict[str, _Pair]:
    """Each variant with the reference, of members that are not unstable: as the table has them."""
    fits: dict[str, list[Fit]] = {}
    for r in racers:
        if r.fit is not None and not r.unstable:
            fits.setdefault(r.variant, []).append(r.fit)
    if reference not in fits:
        return {}
    arms = {v: ahead.arm(v, tuple(fs)) for v, fs in fits.items()}
    # Rounded: the spread moves a little with every look, and all pairs would have to be redone.
    sd = round(seed_spread(list(arms.values())), 3)
    return {v: ahead.pair(arms[reference], arm, sd) for v, arm in arms.items() if v != reference}


def _pair(reference: Arm, variant: Arm, sd: float) -> _Pair:
    """Ordered by ceiling, as `compare` does it."""
    first, second = sorted((reference, variant), key=lambda a: -float(np.median(a.ceiling)))
    verdict = settle(first, second, sd)
    parts = {
        f.name: float(f.belief.parameter("A").var()) / len(arm.fits) ** 2
        for arm in (reference, variant)
        for f in arm.fits
    }
    seeds = 1.0 / len(reference.fits) + 1.0 / len(variant.fits)
    speed = None
    if verdict.speed is not None:
        speed = _Difference.of(verdict.speed, SEED_LOG_COMPUTE_SD**2 * seeds, SAME_SPEED)
    return _Pair(verdict, _Difference.of(verdict.delta, sd**2 * seeds, MARGIN), speed, parts)


def _at_the_end(pair: _Pair, racers: Sequence[Racer], ahead: Foresight) -> float:
    """The chance of a verdict if both sides get all of their budget; 0 where all have it. Who is at
    work just now counts: or a verdict would look hopeless whenever its best member is running."""
    both = [r for r in racers if r.name in pair.parts and r.share < 1.0 and not r.unstable]
    return pair.chance({r.name: ahead.narrowing(r, 1.0) for r in both}) if both else 0.0


@dataclass(frozen=True, slots=True)
class _Plan:
    #: Verdicts to be expected per unit of compute.
    gain: float
    #: Who begins, and who is next.
    members: tuple[str, ...]
    why: str


def _plans(
    pairs: Mapping[str, _Pair], racers: Sequence[Racer], reference: str, ahead: Foresight
) -> Iterator[_Plan]:
    """A variant, the reference, or both go on to some multiple of what they have."""
    sides: list[tuple[str, ...]] = [(v,) for v in pairs]
    sides += [(reference,), *((v, reference) for v in pairs)]
    for side in sides if pairs else ():
        going = [r for r in racers if r.variant in side and r.may_go_on]
        for multiple in (*MULTIPLES, math.inf):
            target = {r.name: _target(r, multiple) for r in going}
            cost = sum((target[r.name] - r.share) * r.whole for r in going)
            if cost <= 0.0:
                break
            taken = {r.name: ahead.narrowing(r, target[r.name]) for r in going}
            asked = pairs.values() if reference in side else [pairs[side[0]]]
            closed = sum(pair.chance(taken) for pair in asked)
            # Seeds of a variant go on side by side: the one that is furthest behind begins.
            order = sorted(going, key=lambda r: (r.share, r.variant == reference))
            names = " and ".join(side)
            goal = max(target.values())
            why = (
                f"going on with {names} to {goal:.0%} of the budget is expected to decide "
                f"{closed:.1f} of {len(pairs)} open verdicts"
            )
            yield _Plan(closed / cost, tuple(r.name for r in order), why)


def _target(racer: Racer, multiple: float) -> float:
    """The share of its budget that a member goes to: whole chunks, one at least."""
    if math.isinf(multiple):
        return 1.0
    chunks = max(math.ceil((multiple - 1.0) * racer.share / racer.chunk - 1e-9), 1)
    return min(racer.share + chunks * racer.chunk, 1.0)
