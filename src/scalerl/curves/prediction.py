"""Predictions: samples of a run's pass rate and parameters, inside the window or beyond it.

A `Predictive` is the distribution that a method has fitted; a `Prediction` is its samples at some
amounts of compute, with quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from scalerl.curves.formula import Array, Formula, IntArray, log_compute, one_thread
from scalerl.curves.noise import mean_variance
from scalerl.curves.paths import FutureScenarios, ceiling, future_paths
from scalerl.curves.posterior import Posterior
from scalerl.curves.priors import FuturePriors

#: A forecast at more amounts of compute than this is made at this many knots and interpolated in
#: ln C: the curve is smooth, and 4,000 paths at hundreds of points would take seconds.
MAX_KNOTS = 24
#: Samples that stand for a normal distribution, at its equally likely quantiles.
NORMAL_DRAWS = 999


class Predictive(Protocol):
    """Samples of the run's true pass rate and of its parameters."""

    def levels(self, compute: Array) -> Array:
        """True pass rate at ascending compute: (draws, len(compute))."""

    def noise(self) -> Array:
        """Standard deviation of one evaluation about the true pass rate, per draw."""

    def parameter(self, name: str) -> Array:
        """Samples of "R_0", "A", "B" or "C_mid"."""

    def thinned(self, k: int) -> Predictive:
        """The same distribution with every k-th sample: faster and coarser. Distributions that
        take no time are returned as they are."""
        return self


@dataclass(frozen=True, slots=True)
class SigmoidPredictive(Predictive):
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

    def fall_probability(self, compute: float) -> float:
        """Probability that the run has begun to fall by then, or has fallen already."""
        ahead = np.log(compute) - self.posterior.t_end
        begun = self.scenarios.fallen | (self.scenarios.onset < ahead)
        return float(begun.mean())

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
class PointPredictive(Predictive):
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


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The result of `Fit.predict`: samples of the pass rate at some amounts of compute.

    >>> from scalerl import fit, load_run
    >>> run = load_run("example:paper-8b").window(1500, 25000)
    >>> ahead = fit(run).predict([50_000, 100_000])
    >>> ahead.quantiles([0.05, 0.5, 0.95]).shape
    (2, 3)
    """

    #: Name of the run.
    run: str
    #: Amounts of compute that were requested.
    compute: Array
    #: Probability of the intervals.
    level: float
    #: Amounts of compute at which samples are drawn; between them quantiles are interpolated.
    knots: Array
    #: Samples of the true pass rate, (draws, knots), each knot by itself (`levels_apart`): a column
    #: does not depend on the other knots.
    samples: Array
    #: sd of one evaluation about the true pass rate, per draw.
    noise_sd: Array
    seed: int
    predictive: Predictive = field(repr=False)
    #: Last compute of the fitted window.
    end: float
    #: Why the decline alarm is on; None: it is off.
    alarm: str | None = None

    @property
    def now(self) -> Array:
        """True pass rate at the end of the fitted window, per draw."""
        return levels_apart(self.predictive, np.array([self.end]))[:, 0]

    @property
    def median_now(self) -> float:
        """Median of `now`."""
        return float(sample_quantiles(self.now, [0.5])[0])

    def quantiles(self, levels: npt.ArrayLike, observed: bool = False) -> Array:
        """Quantiles of the true pass rate, or of what one evaluation would show:
        (len(compute), len(levels))."""
        samples = self.samples
        if observed:
            # One random number per draw for all knots, so that no knot depends on the others.
            z = np.random.default_rng((self.seed, 11)).standard_normal((len(samples), 1))
            samples = np.clip(samples + self.noise_sd[:, None] * z, 0.0, 1.0)
        return _between(self.knots, self.compute) @ sample_quantiles(samples, levels)

    def mean_quantiles(self, levels: npt.ArrayLike) -> Array:
        """Quantiles of the mean of one evaluation at each compute of this prediction."""
        m = len(self.compute)
        weights = _between(self.knots, self.compute).mean(axis=0)
        rng = np.random.default_rng((self.seed, 12))
        noise = self.noise_sd * np.sqrt(float(mean_variance(m)))
        # A mean over compute needs joint paths, not independent columns.
        paths = self.predictive.levels(self.knots)
        mean = paths @ weights + noise * rng.standard_normal(len(paths))
        return sample_quantiles(np.clip(mean, 0.0, 1.0), levels)

    @property
    def median(self) -> Array:
        return self.quantiles([0.5])[:, 0]

    def interval(self, level: float | None = None, observed: bool = False) -> Array:
        """Central interval at each compute: (len(compute), 2)."""
        return self.quantiles(tails(self.level if level is None else level), observed)

    def to_dict(self) -> dict[str, Any]:
        true, seen = self.interval(), self.interval(observed=True)
        return {
            "run": self.run,
            "level": self.level,
            "alarm": self.alarm,
            "at": [
                {
                    "compute": float(c),
                    "median": float(m),
                    "interval": [float(v) for v in t],
                    "observed_interval": [float(v) for v in o],
                }
                for c, m, t, o in zip(self.compute, self.median, true, seen, strict=True)
            ],
        }

    def plot(self, path: str | None = None) -> Any:
        """Draw the prediction; returns the matplotlib figure (and saves it if a path is given)."""
        from scalerl.report.figures import plot_prediction

        return plot_prediction(self, path)

    def _repr_html_(self) -> str:
        from scalerl.report.notebook import prediction_html

        return prediction_html(self)

    def __repr__(self) -> str:
        rows = [
            f"  {c:>12.6g}  {m:.3f}  [{lo:.3f}, {hi:.3f}]"
            for c, m, (lo, hi) in zip(self.compute[:12], self.median, self.interval(), strict=False)
        ]
        more = f"\n  ... {len(self.compute) - 12} more" if len(self.compute) > 12 else ""
        head = f"Prediction for {self.run!r} ({self.level:.0%} intervals, falls included)"
        return "\n".join([head, *rows]) + more


def tails(level: float) -> tuple[float, float]:
    """Lower and upper tail probabilities of a central interval of this level.

    >>> tails(0.5)
    (0.25, 0.75)
    """
    return (1.0 - level) / 2.0, (1.0 + level) / 2.0


def choose_knots(compute: Array) -> Array:
    """The amounts of compute to sample at: the distinct ones, or MAX_KNOTS between if more."""
    order = np.unique(compute)
    if len(order) <= MAX_KNOTS:
        return order
    positive = order[order > 0]
    knots = np.geomspace(positive[0], positive[-1], MAX_KNOTS)
    # geomspace rounds its ends; interpolation must not have to extrapolate past them.
    knots[0], knots[-1] = positive[0], positive[-1]
    return np.union1d(knots, order[order == 0])


def _between(knots: Array, compute: Array) -> Array:
    """Weights that interpolate linearly in ln C from the knots: (len(compute), len(knots))."""
    if len(knots) == 1:
        return np.ones((len(compute), 1))
    # C = 0 has no logarithm: it is put three decades below the first knot.
    floor = knots[knots > 0][0] * 1e-3 if (knots > 0).any() else 1.0
    position = np.log(np.maximum(knots, floor))
    where = np.log(np.maximum(compute, floor))
    right = np.clip(np.searchsorted(position, where), 1, len(knots) - 1)
    span = position[right] - position[right - 1]
    share = np.clip((where - position[right - 1]) / np.where(span > 0, span, 1.0), 0.0, 1.0)
    weights = np.zeros((len(compute), len(knots)))
    rows = np.arange(len(compute))
    weights[rows, right] = share
    weights[rows, right - 1] += 1.0 - share
    return weights
