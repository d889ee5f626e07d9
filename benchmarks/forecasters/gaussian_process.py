"""Gaussian processes over one curve: freeze-thaw (Swersky et al. 2014), and a power law with a
Matern process about it. Hyperparameters have weak priors and are sampled by marginal likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from forecasters.posterior import Points
from forecasters.smc import sample
from scalerl.curves.formula import Array
from scalerl.curves.laws.law import Method
from scalerl.curves.prediction import Predictive
from scalerl.curves.result import Fit, Window

#: Draws of the hyperparameters: each costs a Cholesky decomposition a step.
DRAWS = 160
#: Paths drawn for each of them.
PATHS = 6
#: A denser curve is averaged into this many bins, for the same reason.
BINS = 30
#: Added to the diagonal, so that decompositions do not fail.
JITTER = 1e-7
#: Hyperparameters further out than this many prior sd count as being there: the matrices of
#: extreme ones are singular.
FURTHEST = 4.0


def positive(z: Array, mean: float, sd: float) -> Array:
    """A hyperparameter whose logarithm is normal."""
    return np.exp(mean + sd * np.clip(z, -FURTHEST, FURTHEST))


class Process(Protocol):
    """Mean and covariance on x = compute / last compute of the window, by N(0, 1) numbers."""

    dimensions: int
    #: Prior mean of the scores.
    mean: float

    def covariance(self, z: Array, x: Array, other: Array) -> Array:
        """(draws, len(x), len(other)); parameters in which the curve is linear are part of it."""


class FreezeThaw:
    """asymptote + a mixture of exponential decays: s^2 b^a / (x + x' + b)^a."""

    dimensions = 4
    mean = 0.5

    def covariance(self, z: Array, x: Array, other: Array) -> Array:
        a, b, s = (
            positive(z[:, i], m, sd)[:, None, None]
            for i, (m, sd) in enumerate([(0.0, 1.0), (-1.2, 1.5), (-1.2, 1.0)])
        )
        pair = x[None, :, None] + other[None, None, :]
        # The asymptote has the prior N(0.5, 0.35).
        return 0.35**2 + s**2 * (b / (pair + b)) ** a


class PowerLawProcess:
    """c - a (1 + x / x_0)^-p, plus a Matern process (3/2) in ln x."""

    dimensions = 5
    mean = 0.5

    def covariance(self, z: Array, x: Array, other: Array) -> Array:
        p, x0, s, length = (
            positive(z[:, i], m, sd)[:, None, None]
            for i, (m, sd) in enumerate([(0.0, 0.7), (-2.3, 1.5), (-3.5, 1.0), (0.0, 0.7)])
        )

        def left(at: Array) -> Array:
            return (1.0 + at / x0) ** -p

        law = 0.35**2 + 0.5**2 * left(x[None, :, None]) * left(other[None, None, :])
        t, t_other = np.log(x + 0.02), np.log(other + 0.02)  # finite at zero compute
        d = np.sqrt(3.0) * np.abs(t[:, None] - t_other[None, :])[None] / length
        return law + s**2 * (1.0 + d) * np.exp(-d)


@dataclass(frozen=True, slots=True)
class ProcessPredictive(Predictive):
    """Paths of the process given the points, for every draw of the hyperparameters."""

    process: Process
    z: Array
    points: Points
    end: float
    seed: int

    def levels(self, compute: Array) -> Array:
        x, at = self.points.compute / self.end, compute / self.end
        sd = noise_sd(self.z)
        factor = np.linalg.cholesky(_with_noise(self.process, self.z, x, self.points.count, sd))
        cross = np.linalg.solve(factor, self.process.covariance(self.z, x, at))
        y = np.broadcast_to(self.points.score - self.process.mean, (len(self.z), len(x)))
        seen = np.linalg.solve(factor, y[:, :, None])
        mean = self.process.mean + (np.swapaxes(cross, 1, 2) @ seen)[..., 0]
        spread = self.process.covariance(self.z, at, at) - np.swapaxes(cross, 1, 2) @ cross
        value, vector = np.linalg.eigh(spread)
        root = vector * np.sqrt(np.maximum(value, 0.0))[:, None, :]
        normal = np.random.default_rng((self.seed, 1)).standard_normal((PATHS, *mean.shape))
        paths = mean + np.einsum("kij,pkj->pki", root, normal)
        return np.clip(paths.reshape(-1, len(at)), 0.0, 1.0)

    def noise(self) -> Array:
        return np.tile(noise_sd(self.z), PATHS)

    def parameter(self, name: str) -> Array:
        raise KeyError(f"a forecaster of benchmarks has no parameter {name!r}")


def noise_sd(z: Array) -> Array:
    """sd of one evaluation, the last of the hyperparameters."""
    return positive(z[:, -1], -4.0, 1.0)


def fit_process(process: Process) -> Method:
    """The method that samples the hyperparameters of this process."""

    def fit_marginal(w: Window) -> Fit:
        points = Points.from_run(w.inside, BINS)
        end = float(w.inside.compute[-1])
        x = points.compute / end
        y = points.score - process.mean
        # Of the scatter inside bins only the noise is informed.
        extra = points.count.sum() - len(y)

        def log_likelihood(z: Array) -> Array:
            sd = noise_sd(z)
            factor = np.linalg.cholesky(_with_noise(process, z, x, points.count, sd))
            white = np.linalg.solve(factor, np.broadcast_to(y[:, None], (len(z), len(y), 1)))
            root = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
            binned = -extra * np.log(sd) - 0.5 * points.inside / sd**2
            return -0.5 * (white[..., 0] ** 2).sum(axis=1) - root + binned

        rng = np.random.default_rng(w.seed)
        prior = rng.standard_normal((DRAWS, process.dimensions))
        z = sample(log_likelihood, prior, rng)
        predictive = ProcessPredictive(process, z, points, end, w.seed)
        return w.build(predictive, {}, w.inside.score, None)

    return fit_marginal


def _with_noise(process: Process, z: Array, x: Array, count: Array, sd: Array) -> Array:
    noise = (sd[:, None] ** 2 / count + JITTER)[:, :, None] * np.eye(len(x))
    return process.covariance(z, x, x) + noise
