"""Predictive distributions: samples of a run's pass rate and parameters, under any law."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt

from scalerl.curves.formula import Array, Formula, IntArray, log_compute, one_thread
from scalerl.curves.paths import FuturePriors, FutureScenarios, ceiling, future_paths
from scalerl.curves.posterior import Posterior

#: A forecast at more amounts of compute than this is made at this many knots and interpolated in
#: ln C: the curve is smooth, and 4,000 paths at hundreds of points would take seconds.
MAX_KNOTS = 24
#: Samples that stand for a normal distribution, at its equally likely quantiles.
NORMAL_DRAWS = 999


class Predictive(Protocol):
    """Samples of the run's true pass rate and of its parameters."""

    def levels(self, compute: Array) -> Array:
        """True pass rate at ascending compute: (draws, len(compute))."""
        ...

    def noise(self) -> Array:
        """Standard deviation of one evaluation about the true pass rate, per draw."""
        ...

    def parameter(self, name: str) -> Array:
        """Samples of "R_0", "A", "B" or "C_mid"."""
        ...

    def thinned(self, k: int) -> Predictive:
        """The same distribution with every k-th sample: faster and coarser."""
        ...


@dataclass(frozen=True, slots=True)
class SigmoidPredictive:
    """The default: the posterior of the sigmoid, continued beyond the window as in paths.py."""

    posterior: Posterior
    scenarios: FutureScenarios
    priors: FuturePriors
    seed: int

    def levels(self, compute: Array) -> Array:
        return self._sample(compute, joint=True)

    def levels_apart(self, compute: Array) -> Array:
        """True pass rate at each compute by itself, (draws, len(compute)): a column does not depend
        on which other amounts are requested, but a row is not a sample of a path."""
        return self._sample(compute, joint=False)

    @one_thread
    def _sample(self, compute: Array, joint: bool) -> Array:
        t = log_compute(compute)
        ahead = t > self.posterior.t_end
        # Fixed streams (seed, 1), (seed, 2): the same compute has the same samples on every call.
        rng = np.random.default_rng((self.seed, 1))
        out = np.empty((len(self.posterior.draws), len(t)))
        if ahead.any():
            d = t[ahead] - self.posterior.t_end
            out[:, ahead] = future_paths(self.posterior, d, self.scenarios, rng, self.priors, joint)
        if (~ahead).any():
            inner = np.maximum(t[~ahead], -700.0)  # C = 0 is far below any C_mid
            out[:, ~ahead] = self.posterior.inside_window(
                inner, np.random.default_rng((self.seed, 2))
            )
        return out

    def noise(self) -> Array:
        return np.sqrt(self.posterior.draws.s2 * self.posterior.points.score_variance)

    def parameter(self, name: str) -> Array:
        draws = self.posterior.draws
        if name == "A":
            return ceiling(self.posterior, self.scenarios, self.priors)
        if name == "R_0":
            return draws.r0
        # B and C_mid are grid values: spread each over its own cell, or quantiles would jump.
        column = 0 if name == "B" else 1
        rng = np.random.default_rng((self.seed, 3 + column))
        spread = self.posterior.spacing[column] * (rng.random(len(draws)) - 0.5)
        return np.exp((draws.log_b if name == "B" else draws.log_mid) + spread)

    def healthy(self) -> SigmoidPredictive:
        """The same distribution given that the run stays healthy."""
        return replace(self, scenarios=self.scenarios.healthy())

    def only(self, chosen: slice | IntArray) -> SigmoidPredictive:
        """The distribution made of the chosen draws."""
        posterior, scenarios = self.posterior.only(chosen), self.scenarios.only(chosen)
        return replace(self, posterior=posterior, scenarios=scenarios)

    def thinned(self, k: int) -> SigmoidPredictive:
        return self.only(slice(None, None, k))


def levels_apart(predictive: Predictive, compute: Array) -> Array:
    """Samples of the true pass rate at each compute by itself, for quantiles: one amount of compute
    has one median and one interval, whatever other amounts are requested with it. Statistics of
    several amounts at once (a mean, the first passage of a score) need `Predictive.levels`."""
    if isinstance(predictive, SigmoidPredictive):
        return predictive.levels_apart(compute)
    return predictive.levels(compute)  # the other laws draw no random numbers per amount


def sample_quantiles(samples: Array, levels: npt.ArrayLike) -> Array:
    """Quantiles over the first axis, linear between order statistics: (..., len(levels))."""
    # One contiguous sort per column is several times faster than np.quantile for many levels.
    ordered = np.sort(np.ascontiguousarray(np.moveaxis(samples, 0, -1)), axis=-1)
    position = np.asarray(levels, dtype=np.float64) * (ordered.shape[-1] - 1)
    below = np.floor(position).astype(np.intp)
    above = np.minimum(below + 1, ordered.shape[-1] - 1)
    low, high = ordered[..., below], ordered[..., above]
    quantiles: Array = low + (high - low) * (position - below)
    return quantiles


@lru_cache(maxsize=4)
def normal_quantiles(n: int = NORMAL_DRAWS) -> Array:
    """The n equally likely quantiles of the standard normal distribution."""
    # By the standard library: importing scipy.special would take longer than a fit.
    inverse = NormalDist().inv_cdf
    found = np.array([inverse((i + 0.5) / n) for i in range(n)])
    found.setflags(write=False)  # the cached array is shared by all callers
    return found


@dataclass(frozen=True, slots=True)
class PointPredictive:
    """A least-squares curve with intervals from its residuals, as in the paper's procedure and the
    power law. The intervals have the same width everywhere, and so miss often."""

    formula: Formula
    residual_sd: float
    #: Samples of the parameters, from the profile of the sum of squares.
    parameters: dict[str, Array]

    def levels(self, compute: Array) -> Array:
        spread = self.residual_sd * normal_quantiles()
        return np.clip(self.formula.value(compute)[None, :] + spread[:, None], 0.0, 1.0)

    def noise(self) -> Array:
        return np.zeros(NORMAL_DRAWS)

    def parameter(self, name: str) -> Array:
        return self.parameters[name]

    def thinned(self, k: int) -> PointPredictive:
        return self
