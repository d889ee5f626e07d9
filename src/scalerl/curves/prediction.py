"""Prediction: the distribution of a run's pass rate at any compute, inside the window or beyond."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.curves.formula import Array
from scalerl.curves.noise import mean_variance
from scalerl.curves.predictive import MAX_KNOTS, Predictive, levels_apart, sample_quantiles


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
        head = f"Prediction for {self.run!r} ({self.level:.0%} intervals, if the run stays healthy)"
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
