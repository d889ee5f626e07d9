"""The race: which member of a study is to go on next, and when enough has been seen.

A study asks one question a variant: what is it, against the reference? Each pair's posterior says
what is known by now. What more compute would add is worked out for two ways to spend it:

    go on         the runs of a variant get longer. A run whose draws disagree about the scores to
                  come will be told apart by them, by as much as its ceiling goes with those scores:
                  Var(A | scores) = Var(A) - c' (S + N)^-1 c     c, S: covariances of ceiling and
                                                                 scores over the draws; N: noise
    another seed  n runs become n + 1: what the points leave open, and what seeds do, both divided
                  by one more

so the difference of two ceilings, now mu with variance V, will be N(mu, R) with variance V - R, and
it is plain how often that is a verdict (`_Difference.later`).

    pair         now              if the variant goes on to 40 %       another seed of it
    loo-loss     +.024 (.016)     a verdict in .55 for .16             .30 for .24
    loo-head     +.003 (.022)     .21 for .16                          .10 for .24
                                  best: loo-loss goes on, .55 / .16 = 3.4 verdicts a whole run

The next chunk goes to where verdicts per unit of compute are most. Plans are weighed up to the end
of the budget, not for one chunk alone: a single validation hardly ever decides, ten may. Every
variant begins with one seed; the others are begun where a seed is what is missing.

Nobody is thrown away: who is not run is paused, and goes on when its pair promises most. Curves
cross, so how high a member stands counts for nothing, only how open its verdict is. And before a
verdict on a ceiling is the last word, one run of either side goes to the end of its budget: until
then a slower climb looks like a lower ceiling, and a run that will break looks like a high one.
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

#: Multiples of the compute so far that plans go to (1: those behind catch up); the end of the
#: budget is always one.
MULTIPLES = (1.0, 1.25, 1.5, 2.0, 3.0)
#: A pair that all its budget would decide with less than this probability is left undecided.
MIN_DECISION_PROBABILITY = 0.2
#: A race asks after every chunk, and whoever asks often is told something wrong more often: a side
#: closes a verdict from this probability on, above the WINNER_PROBABILITY of a single look.
CLOSING_PROBABILITY = 0.99
#: Scores to come are looked at in so many places, on every THIN-th draw.
KNOTS, THIN = 4, 4
_SIDE = NormalDist().inv_cdf(CLOSING_PROBABILITY)


@dataclass(frozen=True, slots=True)
class Racer:
    """A member as the race sees it."""

    name: str
    variant: str
    #: Of a run that has the racer's name; None before it can be fitted.
    fit: Fit | None
    #: Of its budget: spent so far; given first, so that a law can be fitted; and given at a time
    #: from then on.
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

    @property
    def summary(self) -> str:
        """How many verdicts are closed, and what is to be hoped of the others; "" while there are
        variants without a curve."""
        if not self.over and not self.chances:
            return ""
        hopeful = sum(chance >= MIN_DECISION_PROBABILITY for chance in self.chances.values())
        parts = [f"{len(self.verdicts) - len(self.chances)} of {len(self.verdicts)} closed"]
        if hopeful:
            parts.append(f"{hopeful} open")
        if len(self.chances) > hopeful:
            parts.append(f"{len(self.chances) - hopeful} beyond the budget")
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
    """What was worked out for fits, arms and pairs of them, kept between looks, since only the
    member that went on has changed. (Arms keep their fits, so that no other has their ids.)"""

    alone: dict[tuple[int, ...], Arm] = field(default_factory=dict)
    akin: dict[tuple[int, RunPrior | None], Arm] = field(default_factory=dict)
    paired: dict[tuple[int, int, float], _Pair] = field(default_factory=dict)
    narrowed: dict[tuple[int, float], float] = field(default_factory=dict)

    def keep(self, fits: Collection[Fit]) -> None:
        """Let go of what is not about these: the curves of members as they were."""
        now = set(map(id, fits))
        self.alone = {key: arm for key, arm in self.alone.items() if now.issuperset(key)}
        laws = {id(arm) for arm in self.alone.values()}
        self.akin = {key: arm for key, arm in self.akin.items() if key[0] in laws}
        arms = {id(arm) for arm in self.akin.values()}
        self.narrowed = {key: share for key, share in self.narrowed.items() if key[0] in arms}
        self.paired = {key: pair for key, pair in self.paired.items() if arms.issuperset(key[:2])}

    def arm(self, name: str, fits: tuple[Fit, ...]) -> Arm:
        """The law of these runs: it need not be fitted again when another variant goes on."""
        key = tuple(map(id, fits))
        if key not in self.alone:
            self.alone[key] = Arm(name, fits)
        return self.alone[key]

    def among(self, arms: Sequence[Arm]) -> dict[str, Arm]:
        """`with_family_prior`, where only what has changed is worked out."""
        family = FamilyPrior([arm.pooled_fit for arm in arms])
        found = {}
        for arm in arms:
            prior = family.for_run(arm.pooled_fit)
            found[arm.name] = self.akin.setdefault((id(arm), prior), with_prior(arm, prior))
        return found

    def pair(self, reference: Arm, variant: Arm, seed_sd: float) -> _Pair:
        key = id(reference), id(variant), seed_sd
        if key not in self.paired:
            self.paired[key] = _pair(reference, variant, seed_sd)
        return self.paired[key]

    def narrowing(self, arm: Arm, multiple: float) -> float:
        """Share of the ceiling's variance that going on to a multiple takes away."""
        if multiple <= 1.0:
            return 0.0
        key = id(arm), round(multiple, 6)
        if key not in self.narrowed:
            new = (multiple - 1.0) * len(arm.fit.points)
            self.narrowed[key] = narrowing(arm.fit, multiple, new)
        return self.narrowed[key]


def narrowing(f: Fit, multiple: float, new: float) -> float:
    """Share of the variance of the ceiling that `new` evaluations up to `multiple` times the
    compute so far are expected to take away. Futures that fall are left out: they tell of the fall,
    and not of the ceiling.

    To first order too much is left, since later points also tell how rough a run is and what shape
    it has, which no linear rule sees. In simulated studies (benchmarks/race.py) what was left was
    the square of it, at every length: .17 .22 .34 .68 were expected, .02 .05 .11 .52 came.
    """
    predictive = f.predictive.thinned(THIN)
    levels = predictive.levels(f.end * np.geomspace(1.0, multiple, KNOTS + 1)[1:])
    ceiling = predictive.parameter("A")
    noise = float(np.median(predictive.noise()))
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
    linear = float(np.clip(across @ np.linalg.solve(seen, across) / total, 0.0, 0.98))
    return 1.0 - (1.0 - linear) ** 2


@dataclass(frozen=True, slots=True)
class _Side:
    """A variant after some plan, beside what it is now: what its points leave open of its ceiling
    (in units of now), and the seeds it stands for."""

    points: float
    seeds: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """A variant beside the reference."""

    verdict: Verdict
    #: The two arms' names, the seeds each has, and its part in what the points leave open.
    names: tuple[str, str]
    seeds: tuple[float, float]
    parts: tuple[float, float]
    ceiling: _Difference
    speed: _Difference | None
    #: By a normal distribution, rather closed by now.
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

    def chance(self, plan: Mapping[str, _Side]) -> float:
        """Probability of a verdict once the plan is carried out. The speed is taken to become known
        as the ceilings do."""
        then = [plan.get(n, _Side(1.0, s)) for n, s in zip(self.names, self.seeds, strict=True)]
        points = sum(part * side.points for part, side in zip(self.parts, then, strict=True))
        seeds = sum(1.0 / side.seeds for side in then) / sum(1.0 / s for s in self.seeds)
        # Open by the draws though closed by a normal distribution (heavy tails, an alarm, ceilings
        # open at the top): what is left to be known is all that can be gone by.
        if self.normally_closed:
            return 1.0 - points
        return _chance(self.ceiling, self.speed, points, seeds)


@dataclass(frozen=True, slots=True)
class _Difference:
    """A difference of two arms as a normal distribution."""

    middle: float
    variance: float
    #: Of the variance, what seeds do, which going on does not narrow; and what counts as the same.
    seeds: float
    margin: float

    @staticmethod
    def from_draws(draws: Array, seeds: float, margin: float) -> _Difference:
        low, middle, high = np.quantile(draws, [0.16, 0.5, 0.84])
        return _Difference(float(middle), max((high - low) / 2.0, 1e-6) ** 2, seeds, margin)

    def later(self, points: float, seeds: float) -> tuple[float, float]:
        """Probability that it will have a side, and that it will be the same within the margin, by
        the rules of decision.py, once only these shares are left of what the points leave open and
        of what seeds do."""
        own = max(self.variance - self.seeds, 0.0)
        gone = max((1.0 - points) * own + (1.0 - seeds) * min(self.seeds, self.variance), 0.0)
        sd, moves = math.sqrt(max(self.variance - gone, 1e-12)), math.sqrt(gone) + 1e-9
        near = self.margin * _nearest(round(sd / self.margin, 3))
        far = max(_SIDE * sd, near)
        same = _mass(near, self.middle, moves) if near > 0.0 else 0.0
        return 1.0 - _mass(far, self.middle, moves), same


def _chance(ceiling: _Difference, speed: _Difference | None, points: float, seeds: float) -> float:
    side, same = ceiling.later(points, seeds)
    return side + same * (0.5 if speed is None else sum(speed.later(points, seeds)))


def _mass(end: float, middle: float, sd: float) -> float:
    """Of a normal distribution within ± end."""
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
    """What is to be done next."""
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
    plans = sorted(_allocations(worth, racers, arms, reference, cache), key=lambda plan: -plan.gain)
    order = tuple(dict.fromkeys(name for plan in plans for name in plan.members))
    if order:
        return RaceState(order, plans[0].why, verdicts, chances, spent, of)
    unseen = tuple(dict.fromkeys(_unseen_ends(pairs, racers)))
    if unseen:
        why = f"{unseen[0]} goes to its end, before the verdict on its ceiling is the last word"
        return RaceState(unseen, why, verdicts, chances, spent, of)
    why = _why_over(verdicts, chances, racers)
    if not pairs and reference in _unstable(racers):
        why = f"the reference {reference} is unstable: nothing can be compared with it"
    return RaceState((), why, verdicts, chances, spent, of)


def _unseen_ends(pairs: Mapping[str, _Pair], racers: Sequence[Racer]) -> Iterator[str]:
    """Of each side of a verdict on ceilings that no run has followed to the end: the longest."""
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
    """Variants of which every seed that was begun is unstable."""
    begun = _groups([r for r in racers if r.share > 0.0])
    return [v for v, group in begun.items() if all(r.unstable for r in group)]


def _early(racers: Sequence[Racer]) -> Iterator[str]:
    """Of every variant that has no curve yet, the member that is to make one; and who was begun."""
    for group in _groups(racers).values():
        begun = [r for r in group if r.share > 0.0]
        if not begun:
            yield from [r.name for r in group if r.may_go_on][:1]
        yield from (
            r.name for r in begun if r.may_go_on and (r.share < r.first - 1e-9 or r.fit is None)
        )


def _groups(racers: Sequence[Racer]) -> dict[str, list[Racer]]:
    groups: dict[str, list[Racer]] = {}
    for r in racers:
        groups.setdefault(r.variant, []).append(r)
    return groups


def _arms(racers: Sequence[Racer], cache: RaceCache) -> dict[str, Arm]:
    """The variants, of members that are not unstable: as the table has them."""
    fits = {
        variant: tuple(r.fit for r in group if r.fit is not None and not r.unstable)
        for variant, group in _groups(racers).items()
    }
    return cache.among([cache.arm(variant, found) for variant, found in fits.items() if found])


def _pairs(arms: Mapping[str, Arm], reference: str, cache: RaceCache) -> dict[str, _Pair]:
    """Each variant with the reference."""
    if reference not in arms:
        return {}
    # Rounded: it moves a little with every look, and all pairs would have to be redone.
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
    """What may become of a variant: members → the share of its budget that each goes to."""

    targets: Mapping[str, float]
    cost: float
    after: _Side
    #: Who begins, and who is next: those that are furthest behind.
    order: tuple[str, ...]
    words: str


def _actions(variant: str, group: Sequence[Racer], arm: Arm, cache: RaceCache) -> list[_Action]:
    """Its runs go on, or a further seed is begun and catches up."""
    running = [r for r in group if r.share > 0.0 and not r.unstable]
    level = max((r.share for r in running), default=0.0)
    if level <= 0.0:
        return []
    seeds = sum(r.share for r in running) / level
    found = []
    for multiple in (*MULTIPLES, math.inf):
        going = {r.name: _target(r, level, multiple) for r in running if r.may_go_on}
        found.append((going, f"going on with {variant} to {{:.0%}} of the budget"))
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
    """The chance of a verdict if both sides get all of their budget, every seed; 0 where all have
    it. Who is at work just now counts: or a verdict would look hopeless whenever its best member is
    running."""
    plan, left = {}, False
    for name, now in zip(pair.names, pair.seeds, strict=True):
        group = [r for r in racers if r.variant == name and not r.unstable]
        running = [r for r in group if r.share > 0.0 and r.fit is not None]
        level = max((r.share for r in running), default=1.0)
        left = left or any(r.share < 1.0 for r in group)
        then = float(len(group))
        points = (1.0 - cache.narrowing(arms[name], 1.0 / level)) * now / then
        plan[name] = _Side(points, then)
    return pair.chance(plan) if left else 0.0


@dataclass(frozen=True, slots=True)
class _Allocation:
    #: Verdicts to be expected per unit of compute.
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
    """A variant, the reference, or both take some action."""
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
