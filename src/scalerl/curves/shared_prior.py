"""A prior that compared runs share: each run borrows curve shape, roughness and B from the others.

The runs of one study train one model on one task. Three properties that a single run determines
poorly are much alike in all of them: how the curve nears its ceiling (shape), how far it strays
from the law (roughness) and how steep it is (B). So each run takes them from the family:

    shape and roughness    one pair for the family; a run has its own with OWN_PROBABILITY
    ln B                   N(mu, omega), both unknown; omega about B_LOG_SD

    40 runs, each 2 : 1 for a slow approach       the family: 2^40 : 1, up to OWN_PROBABILITY
    2 runs, each 2 : 1                            4 : 1

A run learns only from the other runs, never twice from itself. Ceilings and C_mid are not shared:
they are the question of a comparison. Nothing is fitted again: the draws of each posterior are
reweighted by the new prior over the old one, and resampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from scalerl.curves.formula import Array, Flags, IntArray
from scalerl.curves.identified import why_not_identified
from scalerl.curves.posterior import Posterior, systematic
from scalerl.curves.prediction import SigmoidPredictive
from scalerl.curves.priors import learned_priors
from scalerl.curves.result import Fit

#: Probability that a run has a shape and roughness of its own.
OWN_PROBABILITY = 0.1
#: Prior sd of ln B between runs of one kind. The paper's B of different models and sizes have .25.
B_LOG_SD = 0.3
#: Pseudo-observations behind B_LOG_SD.
B_PSEUDO_COUNT = 4.0
#: EM iterations for the spread of ln B.
EM_ROUNDS = 4
#: The priors that the runs were fitted with; shape, roughness and B have the same ones for both
#: kinds of score.
PRIORS = learned_priors("validation").window
#: Prior probability of each pair of shape and roughness.
HYPOTHESIS_PRIOR = np.outer(PRIORS.shape_weight, PRIORS.tau_weight).ravel()


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """One run's draws by hypothesis (shape x roughness)."""

    hypothesis: IntArray
    log_b: Array
    #: False for draws without a gain, which say nothing about shape, roughness and B.
    rising: Flags
    #: Posterior over prior probability of each hypothesis.
    factor: Array

    @staticmethod
    def from_posterior(posterior: Posterior) -> _Member:
        draws = posterior.draws
        shape = np.searchsorted(np.sort(PRIORS.shapes), draws.shape)
        shape = np.argsort(PRIORS.shapes)[shape]
        tau = 0.5 * np.log(posterior.covariance.tau2[draws.hypothesis]) - math.log(
            posterior.points.scale
        )
        rough = np.abs(tau[:, None] - np.log(PRIORS.tau)).argmin(axis=1)
        hypothesis = shape * len(PRIORS.tau) + rough
        # Half a count each, so that a hypothesis without draws is unlikely rather than impossible.
        counts = np.bincount(hypothesis[~draws.flat], minlength=len(HYPOTHESIS_PRIOR)) + 0.5
        factor = counts / counts.sum() / HYPOTHESIS_PRIOR
        return _Member(hypothesis, draws.log_b, ~draws.flat, factor)

    @property
    def log_evidence(self) -> Array:
        """ln of the evidence for each hypothesis as the family's, given that this run may have its
        own."""
        return np.asarray(np.log((1.0 - OWN_PROBABILITY) * self.factor + OWN_PROBABILITY))


@dataclass(frozen=True, slots=True)
class RunPrior:
    """The prior of one run, learned from the other runs of its family. Values are rounded, so that
    one more evaluation of one run rarely changes the fits of all the others."""

    #: Probability of each pair of shape and roughness.
    hypotheses: tuple[float, ...]
    #: Mean of ln B.
    mu: float
    #: sd of ln B.
    sd: float

    def reweight(self, f: Fit) -> Fit:
        """The same fit under this prior."""
        if not isinstance(f.predictive, SigmoidPredictive):
            return f
        member = _Member.from_posterior(f.predictive.posterior)
        old_mu, old_sd = math.log(PRIORS.b_median), PRIORS.b_log_sd
        new, old = (member.log_b - self.mu) / self.sd, (member.log_b - old_mu) / old_sd
        # Importance weight per draw: the new prior over the old one.
        weight = (np.asarray(self.hypotheses) / HYPOTHESIS_PRIOR)[member.hypothesis]
        weight = weight * np.exp(0.5 * (old * old - new * new)) * old_sd / self.sd
        return _resample(f, f.predictive, np.where(member.rising, weight, 1.0))


class FamilyPrior:
    """What a set of fits says about the shape, roughness and B of runs of their kind.

    >>> from scalerl import fit_all, load_runs
    >>> fits = fit_all(load_runs("example:paper-8b", "example:paper-moe"))
    >>> shared = FamilyPrior(fits).for_run(fits[0]).reweight(fits[0])
    >>> own, pooled = fits[0].interval("B"), shared.interval("B")
    >>> pooled[1] - pooled[0] < own[1] - own[0]
    True
    """

    def __init__(self, fits: Sequence[Fit]) -> None:
        # Keyed by seed, which is derived from the points: a repeated fit is the same member.
        self._members = {
            f.seed: _Member.from_posterior(f.predictive.posterior)
            for f in fits
            if isinstance(f.predictive, SigmoidPredictive)
        }

    def for_run(self, f: Fit) -> RunPrior | None:
        """The prior that all members except `f` give it; None where there are no others."""
        if not set(self._members) - {f.seed}:
            return None
        evidence = self._evidence.sum(axis=0)
        if f.seed in self._members:
            evidence = evidence - self._members[f.seed].log_evidence
        family = HYPOTHESIS_PRIOR * np.exp(evidence - evidence.max())
        own = OWN_PROBABILITY
        shared = np.round((1.0 - own) * family / family.sum(), 1) + own * HYPOTHESIS_PRIOR
        mu, sd = self._slope_prior(f.seed)
        hypotheses = tuple((shared / shared.sum()).tolist())
        return RunPrior(hypotheses, round(mu, 1), max(round(sd, 2), 0.05))

    @cached_property
    def _evidence(self) -> Array:
        return np.array([m.log_evidence for m in self._members.values()])

    def _slope_prior(self, seed: int) -> tuple[float, float]:
        """Mean and sd of ln B according to all members except this one."""
        mean, variance, omega = self._slopes
        others = np.array([s != seed for s in self._members])
        prior = PRIORS.b_log_sd**-2
        precision = prior + (1.0 / (omega**2 + variance[others])).sum()
        mu = prior * math.log(PRIORS.b_median)
        mu += (mean[others] / (omega**2 + variance[others])).sum()
        return mu / precision, math.sqrt(omega**2 + 1.0 / precision)

    @cached_property
    def _slopes(self) -> tuple[Array, Array, float]:
        """Mean and variance of each run's ln B by its points only, and their spread omega by EM."""
        old_mu, old = math.log(PRIORS.b_median), PRIORS.b_log_sd**2
        mean, variance = np.empty((2, len(self._members)))
        for i, m in enumerate(self._members.values()):
            log_b = m.log_b[m.rising] if m.rising.sum() > 1 else np.array([old_mu, old_mu])
            seen = float(log_b.var())
            # Divide the prior out of the posterior; the floor keeps a run that says nothing finite.
            precision = max(1.0 / max(seen, 1e-6) - 1.0 / old, 0.01 / old)
            variance[i] = 1.0 / precision
            mean[i] = (log_b.mean() / max(seen, 1e-6) - old_mu / old) / precision
        # Where almost nothing is left, the mean above is a ratio of two rounding errors.
        mean = np.where(variance > 50.0 * old, old_mu, mean)
        omega2 = B_LOG_SD**2
        for _ in range(EM_ROUNDS):
            weight = 1.0 / (variance + omega2)
            mu = (weight * mean).sum() / weight.sum()
            gain = omega2 / (variance + omega2)
            expected = (gain * (mean - mu)) ** 2 + gain * variance
            omega2 = (B_PSEUDO_COUNT * B_LOG_SD**2 + expected.sum()) / (B_PSEUDO_COUNT + len(mean))
        return mean, variance, math.sqrt(omega2)


def _resample(f: Fit, predictive: SigmoidPredictive, weight: Array) -> Fit:
    """The fit with its draws resampled in proportion to `weight`."""
    chosen = systematic(weight, len(weight), np.random.default_rng((f.seed, 7)))
    resampled = predictive.only(chosen)
    samples = {name: resampled.parameter(name) for name in f.params}
    return replace(
        f,
        predictive=resampled,
        params={name: float(np.median(v)) for name, v in samples.items()},
        identified=not why_not_identified(resampled, f.alarm is not None),
        no_gain=resampled.posterior.no_gain,
    )
