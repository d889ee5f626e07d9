"""Which verdicts are given: those that would still be given at the end of both budgets.

A verdict that the points give now is tried on simulated continuations of both runs
(compute_needed.py). Each is compared at the end of its budget as the runs are compared now:

    now              P(b higher) = .985        a verdict, if it lasts
    continuation 1   P(b higher) = .999        still the verdict
    continuation 2   P(b higher) = .91         withdrawn
    ...
    18 of 20 keep it                           survives = .90: b has the higher ceiling
    15 of 20 keep it                           survives = .75: undecided, and the output says why

Without this, the probability of a winner has only to pass a threshold, and half of those that have
just passed it fall below it again.

*Once given, a verdict is kept.* With many looks at two runs any rule is passed back and forth. So a
verdict that was given at an earlier look is kept until its winner is less likely than
KEEP_PROBABILITY, which is also what a continuation has to show. The earlier looks (LOOKS) are
fitted again from the same points: the answer does not depend on which of them were requested at the
time. One of them counts from KEPT_SURVIVAL on, because the verdict has held ever since:

    look at half of the compute    survives = .85 to twice that compute
    all looks since then           the same verdict: it has survived most of that way, and stays

The continuations are those of healthy runs, as ceilings are: a winner that begins to decline later
is withdrawn then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scalerl.curves.arms import MARGIN, WINNER_PROBABILITY, Arm
from scalerl.curves.compute_needed import (
    MULTIPLES,
    ComputeNeeded,
    Continuations,
    search_compute,
    with_fixed_seed,
)
from scalerl.curves.decision import KEEP_PROBABILITY, Verdict, current_verdict, decide

#: A verdict is given when it survives with at least this probability.
SURVIVAL_PROBABILITY = 0.9
#: An earlier look counts from this probability on: that of SURVIVAL_PROBABILITY less the sampling
#: error of SURVIVAL_TRIALS, made up for by what the verdict has survived since.
KEPT_SURVIVAL = 0.8
#: Simulated continuations of a pair. A trial takes about 8 ms, so a verdict takes 0.2 s.
SURVIVAL_TRIALS = 20
#: A winner that leads by more than MARGIN in this share of the draws is not simulated, for speed:
#: at least 95 % of the continuations of simulated pairs kept such a verdict.
CLEAR_SHARE = 0.999
#: Simulated continuations of an undecided pair; each takes about 50 ms.
PAIR_TRIALS = 24
#: Earlier looks, as shares of each run's compute, latest first: each 1.2 times the one before it,
#: back to a quarter.
LOOKS: tuple[float, ...] = tuple(2.0 ** (-k / 4.0) for k in range(1, 9))


def final_verdict(a: Arm, b: Arm, seed_sd: float) -> Verdict:
    """The verdict on two arms: the one that the points give, if it survives or is kept."""
    now = current_verdict(a, b, seed_sd)
    if now.name == "undecided":
        held = current_verdict(a, b, seed_sd, KEEP_PROBABILITY)
        share = None if held.name == "undecided" else _given_at(a, b, seed_sd, held)
        if share is None:
            return now
        return replace(held, survives=survival(a, b, seed_sd, held), decided_at=share)
    now = replace(now, survives=survival(a, b, seed_sd, now))
    if now.survives is not None and now.survives >= SURVIVAL_PROBABILITY:
        return now
    share = _given_at(a, b, seed_sd, now)
    if share is not None:
        return replace(now, decided_at=share)
    return replace(now, name="undecided", winner=None, tentative=(now.name, now.winner))


def _given_at(a: Arm, b: Arm, seed_sd: float, held: Verdict) -> float | None:
    """The latest of LOOKS at which this verdict was given, if it held from there on."""
    for share in LOOKS:
        x, y = a.until(share), b.until(share)
        if x is None or y is None:
            return None
        if not current_verdict(x, y, seed_sd, KEEP_PROBABILITY).agrees(held):
            return None
        given = current_verdict(x, y, seed_sd).agrees(held)
        if given and survival(x, y, seed_sd, held) >= KEPT_SURVIVAL:
            return share
    return None


def survival(a: Arm, b: Arm, seed_sd: float, verdict: Verdict) -> float:
    """Share of the simulated continuations in which this is still the verdict at the end of both
    budgets; 1 where both are spent or the winner is clear."""
    ahead = [1.0 if g.declines else g.planned_end / g.end for g in (a, b)]
    multiples = tuple(min(m, MULTIPLES[-1]) for m in ahead)
    if max(multiples) <= 1.0 or _clear(verdict):
        return 1.0
    pair = ContinuedPair.simulate(a, b, seed_sd, SURVIVAL_TRIALS)
    kept = [
        pair.verdict(trial, multiples, KEEP_PROBABILITY).agrees(verdict)
        for trial in range(SURVIVAL_TRIALS)
    ]
    return float(np.mean(kept))


def _clear(verdict: Verdict) -> bool:
    """Whether nearly every draw has the winner ahead by more than the margin."""
    ahead = [float((side * verdict.delta > MARGIN).mean()) for side in (1.0, -1.0)]
    return verdict.name == "higher-ceiling" and max(ahead) >= CLEAR_SHARE


def compute_to_decide(a: Arm, b: Arm, seed_sd: float) -> ComputeNeeded:
    """The compute per run that would decide between two arms, if their runs stay healthy."""
    pair = ContinuedPair.simulate(a, b, seed_sd, PAIR_TRIALS)

    def decided(trial: int, multiple: float) -> bool:
        found = pair.verdict(trial, (multiple, multiple), WINNER_PROBABILITY)
        return found.name != "undecided"

    return search_compute("decide between them", max(a.end, b.end), decided, PAIR_TRIALS)


@dataclass(frozen=True, slots=True, eq=False)
class ContinuedPair:
    """Simulated continuations of two arms."""

    arms: tuple[Arm, Arm]
    continuations: tuple[Continuations, Continuations]
    seed_sd: float

    @staticmethod
    def simulate(a: Arm, b: Arm, seed_sd: float, trials: int) -> ContinuedPair:
        """This many continuations. The runs of an arm are continued as the one curve that they are
        compared by."""
        arms = tuple((g.declines and g.before_alarm) or g for g in (a, b))
        fits = [with_fixed_seed(g.pooled_fit, i) for i, g in enumerate(arms)]
        # Draws of the two arms are paired by index, as in a verdict, so that they share the law's
        # error. Pairs are chosen at evenly spaced ranks of the difference of the ceilings: few
        # trials then represent all of it.
        first, second = (f.predictive.parameter("A") for f in fits)
        order = np.argsort(second - first, kind="stable")
        ranks = ((np.arange(trials) + 0.5) / trials * len(order)).astype(np.intp)
        draws = order[ranks].tolist()
        made = [Continuations.from_draws(f, draws, i) for i, f in enumerate(fits)]
        # An arm of one curve counts as one seed: the noise of the seeds is scaled to what it was.
        sd = seed_sd * float(np.sqrt((1.0 / a.seeds + 1.0 / b.seeds) / 2.0))
        return ContinuedPair((arms[0], arms[1]), (made[0], made[1]), sd)

    def verdict(self, trial: int, multiples: tuple[float, ...], least: float) -> Verdict:
        """The verdict once the arms have these multiples of their compute so far."""
        first, second = (
            Arm(g.name, (c.refit(trial, multiple),), g.prior)
            for g, c, multiple in zip(self.arms, self.continuations, multiples, strict=True)
        )
        return decide(first, second, self.seed_sd, least, with_speed=False)
