"""The race: which run of a study gets compute next, and when to stop.

A study asks for one verdict per variant, against the reference. The posterior of each pair says
what is known so far. What more compute would add is estimated for two ways to spend it:

    continue      the runs of a variant get longer. Where the draws of a run disagree about later
                  scores, those scores narrow its ceiling, as far as they correlate with it:
                  Var(A | scores) = Var(A) - c' (S + N)^-1 c     c, S: covariances of ceiling and
                                                                 scores over the draws; N: noise
    another seed  n runs become n + 1: the variance left by the points and the variance between
                  seeds are both divided by one more run

so the difference of two ceilings, now mu with variance V, will move by N(0, R) and keep variance
V - R, which gives the probability of a verdict (`_Difference.later`).

    pair         now              if the variant continues to 40 %     another seed of it
    loo-loss     +.024 (.016)     a verdict in .55 for .16             .30 for .24
    loo-head     +.003 (.022)     .21 for .16                          .10 for .24
                                  best: loo-loss continues, .55 / .16 = 3.4 verdicts a whole run

The next chunk goes where the expected verdicts per unit of compute are most. Allocations are
evaluated up to the end of the budget, not for one chunk alone: a single validation hardly ever
decides, ten may. Every variant starts with one seed; further seeds start where a seed is what is
missing.

No run is discarded: a run that gets nothing is paused, and continues when its pair promises most.
Curves cross, so the current score of a run does not count, only how open its verdict is. Before a
verdict on a ceiling is final, one run of either side goes to the end of its budget: until then a
slower climb looks like a lower ceiling, and a run that will collapse looks like a high one.
Everything here is a function of the records.
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

from scalerl.curves.arms import MARGIN, Arm, own_variance, seed_spread, with_prior
from scalerl.curves.decision import (
    SAME_PROBABILITY,
    SEED_LOG_COMPUTE_SD,
    SPEED_MARGIN,
    Verdict,
    current_verdict,
)
from scalerl.curves.result import Fit
from scalerl.curves.shared_prior import FamilyPrior, RunPrior

Array = npt.NDArray[np.float64]

#: Multiples of the compute so far to which runs may continue (1: shorter runs catch up). The end of
#: the budget is always considered as well.
MULTIPLES = (1.0, 1.25, 1.5, 2.0, 3.0)
#: A pair that its whole budget would decide with less than this probability is left undecided.
MIN_DECISION_PROBABILITY = 0.2
#: Probability from which a verdict is closed. Above the SURE of a single look, because a race looks
#: after every chunk, and each further look adds a chance of a wrong verdict.
CLOSING_PROBABILITY = 0.99
#: Amounts of compute at which later scores are predicted.
KNOTS = 4
#: Every THIN-th draw of the posterior is used for it.
THIN = 4
#: Standard deviations of a normal distribution to CLOSING_PROBABILITY.
_SIDE = NormalDist().inv_cdf(CLOSING_PROBABILITY)


@dataclass(frozen=True, slots=True)
class Racer:
    """A member as the race sees it."""

    name: str
    variant: str
    #: The fit of the run, which has the racer's name; None before it can be fitted.
    fit: Fit | None
    #: Share of its budget that is spent, 0 to 1.
    share: float
    #: Share that it gets first, so that the law can be fitted.
    first: float
    #: Share that it gets at a time after that.
    chunk: float
    #: Compute of its whole budget, in any unit that all racers share.
    whole: float = 1.0
    unstable: bool = False
    #: It ended, failed, or runs elsewhere: it cannot get compute.
    closed: bool = False

    @property
    def may_go_on(self) -> bool:
        return self.share < 1.0 and not self.unstable and not self.closed


@dataclass(frozen=True, slots=True)
class RaceState:
    """What the race does next, and why. The race is over when `order` is empty."""

    #: Members that may get the next chunk, the one expected to decide most first.
    order: tuple[str, ...]
    why: str
    #: Variant → its verdict and winner so far.
    verdicts: Mapping[str, tuple[str, str | None]]
    #: Variant with an open verdict → the probability that its budget decides it.
    chances: Mapping[str, float]
    #: Compute spent.
    spent: float
    #: Compute of all budgets.
    of: float

    @property
    def over(self) -> bool:
        return not self.order

    @property
    def summary(self) -> str:
        """How many verdicts are closed, open, and beyond the budget; "" while there are variants
        without a curve."""
        if not self.over and not self.chances:
            return ""
        within = sum(chance >= MIN_DECISION_PROBABILITY for chance in self.chances.values())
        parts = [f"{len(self.verdicts) - len(self.chances)} of {len(self.verdicts)} closed"]
        if within:
            parts.append(f"{within} open")
        if len(self.chances) > within:
            parts.append(f"{len(self.chances) - within} beyond the budget")
        return ", ".join(parts)

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
class RaceCache:
    """Arms, pairs and predictions that were computed for earlier looks; between two looks only one
    member has changed. Keys are ids of fits and arms, which stay unique because arms hold their
    fits."""

    arms_without_prior: dict[tuple[int, ...], Arm] = field(default_factory=dict)
    arms_with_prior: dict[tuple[int, RunPrior | None], Arm] = field(default_factory=dict)
    paired: dict[tuple[int, int, float], _Pair] = field(default_factory=dict)
    narrowed: dict[tuple[int, float], float] = field(default_factory=dict)

    def keep(self, fits: Collection[Fit]) -> None:
        """Drop entries of other fits: the curves of members at earlier looks."""
        now = set(map(id, fits))
        self.arms_without_prior = {
            key: arm for key, arm in self.arms_without_prior.items() if now.issuperset(key)
        }
        # In this order: the keys of each are ids of objects in the one before.
        laws = {id(arm) for arm in self.arms_without_prior.values()}
        self.arms_with_prior = {
            key: arm for key, arm in self.arms_with_prior.items() if key[0] in laws
        }
        arms = {id(arm) for arm in self.arms_with_prior.values()}
        self.narrowed = {key: share for key, share in self.narrowed.items() if key[0] in arms}
        self.paired = {key: pair for key, pair in self.paired.items() if arms.issuperset(key[:2])}

    def arm(self, name: str, fits: tuple[Fit, ...]) -> Arm:
        """The law of these runs, fitted once per set of fits."""
        key = tuple(map(id, fits))
        if key not in self.arms_without_prior:
            self.arms_without_prior[key] = Arm(name, fits)
        return self.arms_without_prior[key]

    def with_family_prior(self, arms: Sequence[Arm]) -> dict[str, Arm]:
        """`with_family_prior`, where only what has changed is worked out."""
        family = FamilyPrior([arm.pooled_fit for arm in arms])
        found = {}
        for arm in arms:
            prior = family.for_run(arm.pooled_fit)
            found[arm.name] = self.arms_with_prior.setdefault(
                (id(arm), prior), with_prior(arm, prior)
            )
        return found

    def pair(self, reference: Arm, variant: Arm, seed_sd: float) -> _Pair:
        key = id(reference), id(variant), seed_sd
        if key not in self.paired:
            self.paired[key] = _pair(reference, variant, seed_sd)
        return self.paired[key]

    def narrowing(self, arm: Arm, multiple: float) -> float:
        """Share of the ceiling's variance that is removed by continuing to a multiple."""
        if multiple <= 1.0:
            return 0.0
        key = id(arm), round(multiple, 6)
        if key not in self.narrowed:
            new = (multiple - 1.0) * len(arm.fit.points)
            self.narrowed[key] = narrowing(arm.fit, multiple, new)
        return self.narrowed[key]


def narrowing(f: Fit, multiple: float, new: float) -> float:
    """Share of the variance of the ceiling that `new` evaluations up to `multiple` times the
    compute so far are expected to remove. Draws that fall are left out: later scores then inform
    about the fall, not about the ceiling.

    The linear estimate leaves too much variance, since later points also inform about the noise and
    the shape of the curve. In simulated studies (benchmarks/race.py) the variance that was left was
    the square of it, at every length: .17 .22 .34 .68 were expected, .02 .05 .11 .52 came.
    """
    predictive = f.predictive.thinned(THIN)
    levels = predictive.levels(f.end * np.geomspace(1.0, multiple, KNOTS + 1)[1:])
    ceiling = predictive.parameter("A")
    noise = float(np.median(predictive.noise()))
    healthy = levels[:, -1] > np.median(levels[:, 0]) - 2.0 * noise - MARGIN
    # Nearly every draw falls: later scores would not show a ceiling.
    if healthy.sum() < len(levels) // 4:
        return 0.0
    levels, ceiling = levels[healthy], ceiling[healthy]
    total = float(ceiling.var())
    if total <= 0.0:
        return 0.0
    apart = levels - levels.mean(axis=0)
    across = apart.T @ (ceiling - ceiling.mean()) / len(apart)
    seen = apart.T @ apart / len(apart) + np.eye(KNOTS) * noise**2 * KNOTS / max(new, 1.0)
    # Estimated from draws, the share may come out above 1.
    linear = float(np.clip(across @ np.linalg.solve(seen, across) / total, 0.0, 0.98))
    return 1.0 - (1.0 - linear) ** 2


@dataclass(frozen=True, slots=True)
class _Side:
    """An arm after some allocation of compute."""

    #: Variance of the ceiling that its points leave, relative to now.
    points: float
    #: Number of whole runs that it is worth.
    seeds: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """A variant and the reference."""

    verdict: Verdict
    #: Names of the reference and of the variant.
    names: tuple[str, str]
    #: Number of whole runs of each.
    seeds: tuple[float, float]
    #: Share of each in the variance that the points leave.
    parts: tuple[float, float]
    ceiling: _Difference
    speed: _Difference | None
    #: Whether a normal distribution would more likely have a verdict by now.
    normally_closed: bool

    @property
    def open(self) -> bool:
        """Whether more data could change it: also a verdict below CLOSING_PROBABILITY is open."""
        name, speed = self.verdict.name, self.verdict.speed
        if name == "higher-ceiling":
            return max(self.verdict.p_higher) < CLOSING_PROBABILITY
        if name == "faster" and speed is not None:
            return CLOSING_PROBABILITY > float((speed < 0.0).mean()) > 1.0 - CLOSING_PROBABILITY
        return name == "undecided"

    def chance(self, after: Mapping[str, _Side]) -> float:
        """Probability of a verdict once the arms are as in `after`. The uncertainty of the speed is
        taken to shrink as that of the ceilings does."""
        then = [after.get(n, _Side(1.0, s)) for n, s in zip(self.names, self.seeds, strict=True)]
        points = sum(part * side.points for part, side in zip(self.parts, then, strict=True))
        seeds = sum(1.0 / side.seeds for side in then) / sum(1.0 / s for s in self.seeds)
        # The draws leave it open though a normal distribution would not (heavy tails, an alarm, a
        # ceiling that may be perfect): only the variance that is removed can be used then.
        if self.normally_closed:
            return 1.0 - points
        return _chance(self.ceiling, self.speed, points, seeds)


@dataclass(frozen=True, slots=True)
class _Difference:
    """A difference of two arms as a normal distribution."""

    middle: float
    variance: float
    #: Part of the variance that is between seeds; longer runs do not narrow it.
    seeds: float
    #: Largest difference that counts as none.
    margin: float

    @staticmethod
    def from_draws(draws: Array, seeds: float, margin: float) -> _Difference:
        # One standard deviation to either side, by quantiles: heavy tails would widen a variance.
        low, middle, high = np.quantile(draws, [0.16, 0.5, 0.84])
        return _Difference(float(middle), max((high - low) / 2.0, 1e-6) ** 2, seeds, margin)

    def later(self, points: float, seeds: float) -> tuple[float, float]:
        """Probabilities that the difference will have a sign, and will be within the margin,
        by the rules of decision.py, once only these shares are left of the variance of the points
        and of the seeds."""
        own = max(self.variance - self.seeds, 0.0)
        gone = max((1.0 - points) * own + (1.0 - seeds) * min(self.seeds, self.variance), 0.0)
        # The small numbers keep the divisions in `_mass` finite.
        sd, moves = math.sqrt(max(self.variance - gone, 1e-12)), math.sqrt(gone) + 1e-9
        # Rounded, so that the cache of `_nearest` is of use.
        near = self.margin * _nearest(round(sd / self.margin, 3))
        far = max(_SIDE * sd, near)
        same = _mass(near, self.middle, moves) if near > 0.0 else 0.0
        return 1.0 - _mass(far, self.middle, moves), same


def _chance(ceiling: _Difference, speed: _Difference | None, points: float, seeds: float) -> float:
    side, same = ceiling.later(points, seeds)
    # Where nothing is known about the speed, its verdict has even odds.
    return side + same * (0.5 if speed is None else sum(speed.later(points, seeds)))


def _mass(end: float, middle: float, sd: float) -> float:
    """Probability of a normal distribution within ± end."""
    z = math.sqrt(2.0) * sd
    return 0.5 * (math.erf((end - middle) / z) + math.erf((end + middle) / z))


@functools.cache
def _nearest(sd: float) -> float:
    """The largest middle of a normal distribution that has SAME_PROBABILITY of its mass within ± 1;
    0 where no middle has.

    >>> round(_nearest(0.1), 2), _nearest(1.0)
    (0.92, 0.0)
    """
    low, high = 0.0, 1.0
    if sd <= 0.0 or _mass(1.0, 0.0, sd) < SAME_PROBABILITY:
        return 1.0 if sd <= 0.0 else 0.0
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _mass(1.0, middle, sd) >= SAME_PROBABILITY else (low, middle)
    return low


def race(racers: Sequence[Racer], reference: str, cache: RaceCache | None = None) -> RaceState:
    """What to run next."""
    cache = cache or RaceCache()
    cache.keep([r.fit for r in racers if r.fit is not None])
    spent, of = sum(r.share * r.whole for r in racers), sum(r.whole for r in racers)
    arms = _arms(racers, cache)
    pairs = _pairs(arms, reference, cache)
    verdicts: dict[str, tuple[str, str | None]] = {
        v: (p.verdict.name, p.verdict.winner) for v, p in pairs.items()
    }
    verdicts |= {v: ("unstable", None) for v in _unstable(racers) if v != reference}
    early = list(_early(racers))
    if early:
        why = f"{len(early)} variants have no curve yet that a law can be fitted to"
        return RaceState(tuple(early), why, verdicts, {}, spent, of)
    chances = {v: _at_the_end(p, racers, arms, cache) for v, p in pairs.items() if p.open}
    worth = {v: pairs[v] for v, chance in chances.items() if chance >= MIN_DECISION_PROBABILITY}
    found = sorted(_allocations(worth, racers, arms, reference, cache), key=lambda each: -each.gain)
    # A member may be in several allocations: it has the place of the best.
    order = tuple(dict.fromkeys(name for each in found for name in each.members))
    if order:
        return RaceState(order, found[0].why, verdicts, chances, spent, of)
    unseen = tuple(dict.fromkeys(_unseen_ends(pairs, racers)))
    if unseen:
        why = f"{unseen[0]} goes to its end, before the verdict on its ceiling is the last word"
        return RaceState(unseen, why, verdicts, chances, spent, of)
    why = _why_over(verdicts, chances, racers)
    if not pairs and reference in _unstable(racers):
        why = f"the reference {reference} is unstable: nothing can be compared with it"
    return RaceState((), why, verdicts, chances, spent, of)


def _unseen_ends(pairs: Mapping[str, _Pair], racers: Sequence[Racer]) -> Iterator[str]:
    """The longest run of each side of a closed verdict on ceilings, where none is at its end."""
    groups = _groups(racers)
    for pair in pairs.values():
        if pair.verdict.name == "higher-ceiling" and not pair.open:
            for name in pair.names:
                begun = [r for r in groups[name] if r.share > 0.0 and not r.unstable]
                longest = max(begun, key=lambda r: r.share)
                if longest.may_go_on:
                    yield longest.name


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
    least = f"{MIN_DECISION_PROBABILITY:.0%}"
    return left + f"of the others none has a chance of {least} or more within its budget"


def _unstable(racers: Sequence[Racer]) -> list[str]:
    """Variants in which every started seed is unstable."""
    begun = _groups([r for r in racers if r.share > 0.0])
    return [v for v, group in begun.items() if all(r.unstable for r in group)]


def _early(racers: Sequence[Racer]) -> Iterator[str]:
    """Members that have to run before the law can be fitted: one per variant, and those started."""
    for group in _groups(racers).values():
        begun = [r for r in group if r.share > 0.0]
        if not begun:
            yield from [r.name for r in group if r.may_go_on][:1]
        # 1e-9: shares of a budget are computed in floating point.
        yield from (
            r.name for r in begun if r.may_go_on and (r.share < r.first - 1e-9 or r.fit is None)
        )


def _groups(racers: Sequence[Racer]) -> dict[str, list[Racer]]:
    groups: dict[str, list[Racer]] = {}
    for r in racers:
        groups.setdefault(r.variant, []).append(r)
    return groups


def _arms(racers: Sequence[Racer], cache: RaceCache) -> dict[str, Arm]:
    """The arms of members that are not unstable, as in the table."""
    fits = {
        variant: tuple(r.fit for r in group if r.fit is not None and not r.unstable)
        for variant, group in _groups(racers).items()
    }
    return cache.with_family_prior(
        [cache.arm(variant, found) for variant, found in fits.items() if found]
    )


def _pairs(arms: Mapping[str, Arm], reference: str, cache: RaceCache) -> dict[str, _Pair]:
    """Each variant with the reference."""
    if reference not in arms:
        return {}
    # Rounded, because it moves a little with every look and each value is a new key of the cache.
    sd = round(seed_spread(arms.values()), 3)
    return {v: cache.pair(arms[reference], a, sd) for v, a in arms.items() if v != reference}


def _pair(reference: Arm, variant: Arm, sd: float) -> _Pair:
    """Ordered by ceiling, as `compare` does it."""
    first, second = sorted((reference, variant), key=lambda a: -float(np.median(a.ceiling)))
    verdict = current_verdict(first, second, sd)
    open_parts = [own_variance(arm.ceiling) for arm in (reference, variant)]
    whole = max(sum(open_parts), 1e-12)
    each = 1.0 / reference.seeds + 1.0 / variant.seeds
    speed = None
    if verdict.speed is not None:
        speed = _Difference.from_draws(verdict.speed, SEED_LOG_COMPUTE_SD**2 * each, SPEED_MARGIN)
    ceiling = _Difference.from_draws(verdict.delta, sd**2 * each, MARGIN)
    return _Pair(
        verdict,
        (reference.name, variant.name),
        (reference.seeds, variant.seeds),
        (open_parts[0] / whole, open_parts[1] / whole),
        ceiling,
        speed,
        _chance(ceiling, speed, 1.0, 1.0) >= 0.5,
    )


@dataclass(frozen=True, slots=True)
class _Action:
    """A way to spend compute on a variant: the share of the budget that each member goes to."""

    targets: Mapping[str, float]
    cost: float
    after: _Side
    #: Members in the order in which they run: those furthest behind first.
    order: tuple[str, ...]
    words: str


def _actions(variant: str, group: Sequence[Racer], arm: Arm, cache: RaceCache) -> list[_Action]:
    """The runs of a variant continue, or a further seed starts and catches up."""
    running = [r for r in group if r.share > 0.0 and not r.unstable]
    level = max((r.share for r in running), default=0.0)
    if level <= 0.0:
        return []
    # A run that is behind counts as a part of a seed.
    seeds = sum(r.share for r in running) / level
    found = []
    # inf is the end of the budget.
    for multiple in (*MULTIPLES, math.inf):
        going = {r.name: _target(r, level, multiple) for r in running if r.may_go_on}
        found.append((going, f"continuing {variant} to {{:.0%}} of the budget"))
    fresh = [r for r in group if r.share <= 0.0 and r.may_go_on][:1]
    found += [({r.name: max(level, r.first)}, f"another seed of {variant}") for r in fresh]
    members = {r.name: r for r in group}
    actions = []
    for targets, words in found:
        cost = sum((goal - members[n].share) * members[n].whole for n, goal in targets.items())
        if cost <= 0.0:
            continue
        shares = {r.name: r.share for r in running} | targets
        top = max(shares.values())
        then = sum(shares.values()) / top
        left = (1.0 - cache.narrowing(arm, top / level)) * seeds / then
        order = sorted((n for n, goal in targets.items() if goal > members[n].share + 1e-9),
                       key=lambda n: members[n].share)  # fmt: skip
        action = _Action(targets, cost, _Side(left, then), tuple(order), words.format(top))
        actions.append(action)
    return actions


def _at_the_end(
    pair: _Pair, racers: Sequence[Racer], arms: Mapping[str, Arm], cache: RaceCache
) -> float:
    """Probability of a verdict if every seed of both sides gets its whole budget; 0 where all have
    it. Members that are running count: otherwise a verdict would look out of reach whenever its
    best member is running."""
    after, left = {}, False
    for name, now in zip(pair.names, pair.seeds, strict=True):
        group = [r for r in racers if r.variant == name and not r.unstable]
        running = [r for r in group if r.share > 0.0 and r.fit is not None]
        level = max((r.share for r in running), default=1.0)
        left = left or any(r.share < 1.0 for r in group)
        then = float(len(group))
        points = (1.0 - cache.narrowing(arms[name], 1.0 / level)) * now / then
        after[name] = _Side(points, then)
    return pair.chance(after) if left else 0.0


@dataclass(frozen=True, slots=True)
class _Allocation:
    """Actions on one or two variants, and what they are expected to decide."""

    #: Expected verdicts per unit of compute.
    gain: float
    members: tuple[str, ...]
    why: str


def _allocations(
    pairs: Mapping[str, _Pair],
    racers: Sequence[Racer],
    arms: Mapping[str, Arm],
    reference: str,
    cache: RaceCache,
) -> Iterator[_Allocation]:
    """Every action of a variant, of the reference, and of both together."""
    if not pairs:
        return
    groups = _groups(racers)
    actions = {
        name: _actions(name, groups[name], arms[name], cache) for name in (reference, *pairs)
    }
    alone = [
        {v: pair.chance({reference: ours.after}) for v, pair in pairs.items()}
        for ours in actions[reference]
    ]
    for ours, chances in zip(actions[reference], alone, strict=True):
        yield _allocation([ours], sum(chances.values()), len(pairs))
    for variant, pair in pairs.items():
        for action in actions[variant]:
            yield _allocation([action], pair.chance({variant: action.after}), len(pairs))
            for ours, chances in zip(actions[reference], alone, strict=True):
                both = pair.chance({variant: action.after, reference: ours.after})
                others = sum(chances.values()) - chances[variant]
                yield _allocation([action, ours], both + others, len(pairs))


def _allocation(taken: Sequence[_Action], closed: float, pairs: int) -> _Allocation:
    words = " and ".join(action.words for action in taken)
    why = f"{words} is expected to decide {closed:.1f} of {pairs} open verdicts"
    order = tuple(name for action in taken for name in action.order)
    return _Allocation(closed / sum(action.cost for action in taken), order, why)


def _target(racer: Racer, level: float, multiple: float) -> float:
    """The share of its budget that a member goes to when the furthest of its variant goes to a
    multiple of where it is: whole chunks, one at least unless it only catches up."""
    if math.isinf(multiple):
        return 1.0
    least = 0 if multiple == 1.0 else 1
    chunks = max(math.ceil((multiple - 1.0) * level / racer.chunk - 1e-9), least)
    return min(level + chunks * racer.chunk, 1.0)
