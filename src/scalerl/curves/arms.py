"""Arms of a comparison: each the runs of one recipe, or a single run.

The runs of a recipe differ only in their seed. They are fitted as one curve through all their
points (`Arm.pooled_fit`): three seeds show the recipe's curve three times, and the prior counts
once. (A mean of three fits would count it three times: three short runs that each leave the ceiling
between .6 and 1 would be sure that their mean is near .8.) The effect of seeds on the ceiling,
which more points of the same seeds cannot show, is added where recipes are compared
(`seed_spread`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from scalerl.curves.fit import MIN_POINTS, fit
from scalerl.curves.formula import Array
from scalerl.curves.identified import IDENTIFIED_WIDTH
from scalerl.curves.paths import law_error
from scalerl.curves.result import Fit
from scalerl.curves.shared_prior import FamilyPrior, RunPrior
from scalerl.runs.record import Run

#: The paper's margin on A. Draws in which both ceilings lie this near to 1 are ties.
MARGIN = 0.02
#: A winner is named above this probability: verdicts are wrong in at most 3 % of comparisons.
WINNER_PROBABILITY = 0.97
#: An unidentified ceiling may be a perfect score when more than 1 - WINNER_PROBABILITY of its draws
#: are this near to 1: half the width of an identified interval, since draws are clipped at 1.
NEAR_PERFECT = IDENTIFIED_WIDTH / 2.0
#: A run whose budget is not known is taken to end at this multiple of its compute. One doubling is
#: the horizon of the law's error (paths.GAIN_HORIZON), and what `forecast` looks ahead by default.
UNKNOWN_BUDGET = 2.0
#: sd of the ceiling between seeds of one recipe, before replicates are seen. Three runs
#: of the paper differed by up to 0.015.
SEED_SD = 0.01
#: Pseudo-observations behind SEED_SD.
SEED_PSEUDO_COUNT = 6.0
#: Candidate values of the sd between seeds; their posterior is computed on this grid.
SPREADS = np.geomspace(0.002, 0.1, 60)
#: Curves are compared with every THIN-th draw, to save time and memory.
THIN = 4
#: Compute values inside the window, evenly spaced in ln C, at which the climb is known.
CLIMB_KNOTS = 32


class Arm:
    """One arm of a comparison: the runs of a recipe, or a single run.

    >>> from scalerl import compare, load_runs
    >>> [arm.name for arm in compare(load_runs("example:paper-8b", "example:paper-moe")).arms]
    ['paper-moe', 'paper-8b']
    """

    def __init__(
        self,
        name: str,
        fits: tuple[Fit, ...],
        prior: RunPrior | None = None,
        budget: float | None = None,
    ) -> None:
        self.name = name
        self.fits = fits
        self.prior = prior
        #: Compute at which its runs are planned to end; None: not known.
        self.budget = budget
        self._levels: dict[bytes, Array] = {}
        self._until: dict[float, Arm | None] = {}

    @cached_property
    def pooled_fit(self) -> Fit:
        """One curve through the points of all its runs, without the prior of the other arms."""
        first = self.fits[0]
        if len(self.fits) == 1:
            return first
        return fit(pooled(self.name, self.fits), law=first.law, r0=first.r0, level=first.level)

    @cached_property
    def fit(self) -> Fit:
        """`pooled_fit` under the prior shared with the other arms; it is what is compared."""
        return self.pooled_fit if self.prior is None else self.prior.reweight(self.pooled_fit)

    @property
    def law(self) -> Fit:
        """The old name of `fit`, kept for one release."""
        warnings.warn("Arm.law is now Arm.fit", DeprecationWarning, stacklevel=2)
        return self.fit

    @property
    def end(self) -> float:
        """Compute at the end of its longest run."""
        return max(f.end for f in self.fits)

    @property
    def planned_end(self) -> float:
        """Compute at which its runs end: their budget, or UNKNOWN_BUDGET times the compute."""
        return UNKNOWN_BUDGET * self.end if self.budget is None else max(self.budget, self.end)

    @property
    def spent(self) -> bool:
        """Whether its runs are known to be at the end of their budget."""
        return self.planned_end <= self.end

    @property
    def seeds(self) -> float:
        """Effective number of seeds: a run half as long as the longest counts half."""
        return sum(f.end for f in self.fits) / self.end

    @cached_property
    def ceiling(self) -> Array:
        """Ceiling of the arm, per draw."""
        return self.fit.predictive.parameter("A")

    def to_dict(self) -> dict[str, Any]:
        """The ceiling that the arm is ranked and compared by (that of `fit`)."""
        return {
            "name": self.name,
            "A": self.fit.params["A"],
            "interval": list(self.fit.interval("A")),
            "identified": self.fit.identified and not self.declines,
        }

    @property
    def declines(self) -> bool:
        """Whether the decline alarm of any of its runs is on."""
        return any(f.alarm is not None for f in self.fits)

    def until(self, share: float) -> Arm | None:
        """The arm at this share of its runs' compute; None where it had too few points."""
        if share not in self._until:
            cut = [f.run.window(f.window[0], share * f.end) for f in self.fits]
            self._until[share] = self._refitted(cut)
        return self._until[share]

    @cached_property
    def before_alarm(self) -> Arm | None:
        """The arm with the points before the alarms that are on now; None where they are too few.
        Its ceiling is an upper bound: a run that declines ends no higher than it was heading."""
        cut = []
        for f in self.fits:
            raised = f.alarms[-1].raised if f.alarm is not None and f.alarms else np.inf
            points = f.points
            cut.append(points.window(None, float(points.compute[points.compute < raised][-1])))
        return self._refitted(cut)

    def _refitted(self, runs: Sequence[Run]) -> Arm | None:
        if min(len(points) for points in runs) < MIN_POINTS + 1:
            return None
        fits = (
            fit(points, law=f.law, r0=f.r0, level=f.level)
            for points, f in zip(runs, self.fits, strict=True)
        )
        return Arm(self.name, tuple(fits), self.prior, self.budget)

    @property
    def may_be_perfect(self) -> bool:
        """Whether the ceiling may be 1: its upper end is then set by the scale, not by the data."""
        near_one = float((self.ceiling > 1.0 - NEAR_PERFECT).mean())
        return not self.fit.identified and near_one > 1.0 - WINNER_PROBABILITY

    def levels(self, compute: Array) -> Array:
        """Pass rate, per draw: (draws / THIN, len(compute))."""
        # Cached: a leader is compared with many arms at the same compute.
        key = compute.tobytes()
        if key not in self._levels:
            self._levels[key] = self.fit.predictive.thinned(THIN).levels(compute)
        return self._levels[key]

    @cached_property
    def climb(self) -> tuple[Array, Array]:
        """ln C inside the window, and the running maximum of the pass rate there, per draw."""
        positive = self.fit.points.compute[self.fit.points.compute > 0]
        knots = np.geomspace(positive[0], self.fit.end, CLIMB_KNOTS)
        levels = self.fit.predictive.thinned(THIN).levels(knots)
        # The running maximum: a score counts as reached although the run dips below it later.
        return np.log(knots), np.maximum.accumulate(levels, axis=1)

    @property
    def top(self) -> float:
        """Median of the highest pass rate reached so far."""
        return float(np.median(self.climb[1][:, -1]))

    @property
    def start(self) -> float:
        """Mean of the first two scores of its runs."""
        return float(np.mean([f.points.score[:2].mean() for f in self.fits]))

    def log_compute_to(self, score: float) -> Array:
        """ln C at which each draw first passes a score inside the window."""
        position, levels = self.climb
        i = np.clip((levels < score).sum(axis=1), 1, len(position) - 1)
        rows = np.arange(len(levels))
        before, after = levels[rows, i - 1], levels[rows, i]
        # Flat between two knots: any denominator will do, as the share is clipped.
        rise = np.where(after > before, after - before, 1.0)
        share = np.clip((score - before) / rise, 0.0, 1.0)
        return np.asarray(position[i - 1] + share * (position[i] - position[i - 1]))


def pooled(name: str, fits: Sequence[Fit]) -> Run:
    """The points that several fits used, as one curve."""
    return joined(name, [f.points for f in fits])


def joined(name: str, parts: Sequence[Run]) -> Run:
    """The points of several runs as one curve."""
    compute = np.concatenate([p.compute for p in parts])
    # Stable: points at one compute stay in the order of the runs, and so does the seed of the fit.
    order = np.argsort(compute, kind="stable")
    sizes = [p.n_eval for p in parts if p.n_eval is not None]
    return parts[0].replace(
        name=name,
        group=name,
        compute=compute[order],
        score=np.concatenate([p.score for p in parts])[order],
        n_eval=np.concatenate(sizes)[order] if len(sizes) == len(parts) else None,
        signs={},  # side metrics of different runs do not make one series
        breaks=tuple(sorted({b for p in parts for b in p.breaks})),
    )


def with_family_prior(arms: Iterable[Arm]) -> list[Arm]:
    """The arms, each with the prior that it shares with the others."""
    given = list(arms)
    family = FamilyPrior([arm.pooled_fit for arm in given])
    return [with_prior(arm, family.for_run(arm.pooled_fit)) for arm in given]


def with_prior(arm: Arm, prior: RunPrior | None) -> Arm:
    """The same arm under another prior; posteriors are reweighted, not refitted."""
    made = Arm(arm.name, arm.fits, prior, arm.budget)
    made.pooled_fit = arm.pooled_fit  # fills the cache of the new arm
    return made


def seed_spread(arms: Iterable[Arm]) -> float:
    """sd of the ceiling between runs of one recipe: about SEED_SD, corrected by replicates.

    The medians of n runs scatter by this sd *and* by the uncertainty of each fit, so its posterior
    is computed under m_i ~ N(mean, s^2 + v_i), with the mean unknown:

        medians .640 .652 .661, each known to .010      no evidence of a spread above 0
        medians .640 .690 .610, each known to .010      s about .04
    """
    # ln of a scaled inverse-chi-squared prior of s, then the likelihood of every replicated arm.
    weight = -SEED_PSEUDO_COUNT * (np.log(SPREADS) + 0.5 * (SEED_SD / SPREADS) ** 2)
    for arm in arms:
        if len(arm.fits) < 2:
            continue
        ceilings = [f.predictive.parameter("A") for f in arm.fits]
        middle = np.array([np.median(a) for a in ceilings])
        variance = np.array([own_variance(a) for a in ceilings]) + SPREADS[:, None] ** 2
        precision = 1.0 / variance
        total = precision.sum(axis=1)
        mean = (precision * middle).sum(axis=1) / total
        weight -= 0.5 * (np.log(variance).sum(axis=1) + np.log(total))
        weight -= 0.5 * (precision * (middle - mean[:, None]) ** 2).sum(axis=1)
    p = np.exp(weight - weight.max())
    return float(np.sqrt((p * SPREADS**2).sum() / p.sum()))


def own_variance(ceiling: Array) -> float:
    """Variance of a run's ceiling without the law's error, which all runs share."""
    z = law_error(len(ceiling))
    # Regress the ceiling on the shared error z and keep the remainder.
    rest = ceiling - z * float(np.mean(z * (ceiling - ceiling.mean())) / np.mean(z * z))
    # Half the central 68 %, which is one sd of a normal distribution and ignores far tails.
    low, high = np.quantile(rest, [0.16, 0.84])
    return float(((high - low) / 2.0) ** 2)
