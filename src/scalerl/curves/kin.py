"""Kin: what runs that are compared tell about each other.

Runs of one study train one model on one task. What a single run hardly knows, how its curve nears
the ceiling (shape), how far it strays from the law (roughness) and how steep it is (B), is much the
same in all, so each is taken to have them from the family:

    shape and roughness    one pair for the family; a run has its own with probability OWN
    ln B                   N(mu, omega), both unknown; omega about B_SPREAD

    40 runs, each 2 : 1 for a slow approach       the family: 2^40 : 1, but for the OWN
    2 runs, each 2 : 1                            4 : 1

A run learns from the others alone, never from itself twice. Ceilings and C_mid are not shared: they
are what is asked. Nothing is fitted again: the draws of each posterior are weighed by the new prior
over the old one, and drawn anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from scalerl.curves.beliefs import SigmoidBelief, sample_quantiles
from scalerl.curves.posterior import Posterior, Priors
from scalerl.curves.prediction import tails
from scalerl.curves.result import IDENTIFIED_WIDTH, NO_GAIN, Fit

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

#: Probability that a run has a shape and roughness of its own.
OWN = 0.1
#: sd of ln B between runs of one kind, before they are seen, and the observations it counts for.
#: (The paper's B of different models and sizes: sd .25.)
B_SPREAD = 0.3
B_NU = 4.0
ROUNDS = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    """One run's draws by hypothesis (shape x roughness); those without a gain know of none."""

    hypothesis: IntArray
    log_b: Array
    rising: npt.NDArray[np.bool_]
    #: Evidence of each hypothesis over its prior.
    factor: Array

    @staticmethod
    def of(posterior: Posterior, priors: Priors) -> _Member:
        draws = posterior.draws
        shape = np.searchsorted(np.sort(priors.shapes), draws.shape)
        shape = np.argsort(priors.shapes)[shape]
        tau = 0.5 * np.log(posterior.walk.tau2[draws.walk]) - math.log(posterior.points.scale)
        rough = np.abs(tau[:, None] - np.log(priors.tau)).argmin(axis=1)
        hypothesis = shape * len(priors.tau) + rough
        prior = _prior(priors)
        counts = np.bincount(hypothesis[~draws.flat], minlength=len(prior)) + 0.5
        return _Member(hypothesis, draws.log_b, ~draws.flat, counts / counts.sum() / prior)


def _prior(priors: Priors) -> Array:
    return np.outer(priors.shape_weight, priors.tau_weight).ravel()


@dataclass(frozen=True, slots=True)
class Habit:
    """What the others of a family tell one run: the prior of its shape and roughness, and the mean
    and sd of its ln B. Rounded, so that a validation of one run hardly ever changes those of all
    the others."""

    hypotheses: tuple[float, ...]
    mu: float
    sd: float
    priors: Priors

    def of(self, f: Fit) -> Fit:
        """The fit with what the others know."""
        if not isinstance(f.belief, SigmoidBelief):
            return f
        member = _Member.of(f.belief.posterior, self.priors)
        old_mu, old_sd = math.log(self.priors.b_median), self.priors.b_log_sd
        new, old = (member.log_b - self.mu) / self.sd, (member.log_b - old_mu) / old_sd
        # New prior over the old one, per draw.
        weight = (np.asarray(self.hypotheses) / _prior(self.priors))[member.hypothesis]
        weight = weight * np.exp(0.5 * (old * old - new * new)) * old_sd / self.sd
        return _redrawn(f, f.belief, np.where(member.rising, weight, 1.0))


class Kin:
    """The family of these fits.

    >>> from scalerl import fit_all, load_runs
    >>> fits = fit_all(load_runs("example:paper-8b", "example:paper-moe"))
    >>> alone, among = fits[0].interval("B"), Kin(fits).habit(fits[0]).of(fits[0]).interval("B")
    >>> among[1] - among[0] < alone[1] - alone[0]
    True
    """

    def __init__(self, fits: Sequence[Fit], priors: Priors | None = None) -> None:
        self.priors = priors or Priors()
        # By what was fitted, so that a fit made again of the same points is the same member.
        self._members = {
            f.seed: _Member.of(f.belief.posterior, self.priors)
            for f in fits
            if isinstance(f.belief, SigmoidBelief)
        }

    def habit(self, f: Fit) -> Habit | None:
        """What all but this one tell it; None where there are no others."""
        if not set(self._members) - {f.seed}:
            return None
        prior = _prior(self.priors)
        votes = self._votes.sum(axis=0)
        if f.seed in self._members:
            votes = votes - _vote(self._members[f.seed])
        family = prior * np.exp(votes - votes.max())
        shared = np.round((1.0 - OWN) * family / family.sum(), 1) + OWN * prior
        mu, sd = self._slope(f.seed)
        hypotheses = tuple((shared / shared.sum()).tolist())
        return Habit(hypotheses, round(mu, 1), max(round(sd, 2), 0.05), self.priors)

    @cached_property
    def _votes(self) -> Array:
        return np.array([_vote(m) for m in self._members.values()])

    def _slope(self, seed: int) -> tuple[float, float]:
        """Mean and sd of ln B, as all but this one know it."""
        mean, variance, omega = self._slopes
        others = np.array([s != seed for s in self._members])
        prior = self.priors.b_log_sd**-2
        precision = prior + (1.0 / (omega**2 + variance[others])).sum()
        mu = prior * math.log(self.priors.b_median)
        mu += (mean[others] / (omega**2 + variance[others])).sum()
        return mu / precision, math.sqrt(omega**2 + 1.0 / precision)

    @cached_property
    def _slopes(self) -> tuple[Array, Array, float]:
        """Of each run: mean and variance of ln B by its points alone; and their spread, by EM."""
        old_mu, old = math.log(self.priors.b_median), self.priors.b_log_sd**2
        mean, variance = np.empty((2, len(self._members)))
        for i, m in enumerate(self._members.values()):
            log_b = m.log_b[m.rising] if m.rising.sum() > 1 else np.array([old_mu, old_mu])
            seen = float(log_b.var())
            # The prior is taken out again; what is left of a run that says nothing is very wide.
            precision = max(1.0 / max(seen, 1e-6) - 1.0 / old, 0.01 / old)
            variance[i] = 1.0 / precision
            mean[i] = (log_b.mean() / max(seen, 1e-6) - old_mu / old) / precision
        mean = np.where(variance > 50.0 * old, old_mu, mean)
        omega2 = B_SPREAD**2
        for _ in range(ROUNDS):
            weight = 1.0 / (variance + omega2)
            mu = (weight * mean).sum() / weight.sum()
            gain = omega2 / (variance + omega2)
            expected = (gain * (mean - mu)) ** 2 + gain * variance
            omega2 = (B_NU * B_SPREAD**2 + expected.sum()) / (B_NU + len(mean))
        return mean, variance, math.sqrt(omega2)


def _vote(member: _Member) -> Array:
    return np.asarray(np.log((1.0 - OWN) * member.factor + OWN))


def _redrawn(f: Fit, belief: SigmoidBelief, weight: Array) -> Fit:
    rng = np.random.default_rng((f.seed, 7))
    n = len(weight)
    total = np.cumsum(weight)
    position = (np.arange(n) + rng.random()) * (total[-1] / n)
    # In random order: draws of different runs are paired by index.
    chosen = rng.permutation(np.minimum(np.searchsorted(total, position, side="right"), n - 1))
    among = replace(
        belief, posterior=belief.posterior.only(chosen), fates=belief.fates.only(chosen)
    )
    samples = {name: among.parameter(name) for name in f.params}
    low, high = sample_quantiles(samples["A"], tails(0.9))
    no_gain = among.posterior.no_gain
    return replace(
        f,
        belief=among,
        params={name: float(np.median(v)) for name, v in samples.items()},
        identified=bool(high - low <= IDENTIFIED_WIDTH) and f.alarm is None and no_gain < NO_GAIN,
        no_gain=no_gain,
    )
