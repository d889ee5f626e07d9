"""The posterior of a parametric curve with independent normal noise, as a method of a law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from forecasters.smc import prior_draws, sample
from scalerl.curves.formula import Array
from scalerl.curves.laws.law import Method
from scalerl.curves.prediction import Predictive
from scalerl.curves.result import Fit, Window
from scalerl.runs.record import Run

#: A denser curve is averaged into this many bins of equal width. The scatter inside a bin still
#: counts, so little is lost as long as the curve is straight within a bin.
BINS = 50


class Curves(Protocol):
    """A prior over curves on shares of the budget, as a function of independent N(0, 1) numbers."""

    dimensions: int
    #: Posterior draws.
    draws: int
    #: Metropolis moves of a step of the sampler.
    moves: int
    #: Where the constraints of the prior are checked, as shares of the budget.
    checked: Array

    def values(self, z: Array, share: Array) -> Array:
        """The curves: (draws, len(share))."""

    def noise(self, z: Array) -> Array:
        """sd of one evaluation: (draws,)."""

    def allowed(self, values: Array) -> Array:
        """Whether each curve, given at `checked`, keeps the constraints of the prior."""


@dataclass(frozen=True, slots=True)
class Points:
    """A curve averaged into bins: mean compute and score, number of points, and the sum of squares
    about the means."""

    compute: Array
    score: Array
    count: Array
    inside: float

    @staticmethod
    def from_run(run: Run, bins: int = BINS) -> Points:
        if len(run) <= bins:
            return Points(run.compute, run.score, np.ones(len(run)), 0.0)
        edges = np.linspace(run.compute[0], run.compute[-1], bins + 1)[1:-1]
        at = np.unique(np.searchsorted(edges, run.compute), return_inverse=True)[1]
        count = np.bincount(at).astype(np.float64)
        score = np.bincount(at, run.score) / count
        inside = float(((run.score - score[at]) ** 2).sum())
        return Points(np.bincount(at, run.compute) / count, score, count, inside)

    def log_likelihood(self, values: Array, sd: Array) -> Array:
        """Of every row of values, with independent normal noise."""
        squares = (self.count * (self.score - values) ** 2).sum(axis=1) + self.inside
        return -self.count.sum() * np.log(sd) - 0.5 * squares / sd**2


@dataclass(frozen=True, slots=True)
class CurvesPredictive(Predictive):
    """Posterior draws of the curves."""

    curves: Curves
    z: Array
    budget: float

    def levels(self, compute: Array) -> Array:
        return np.clip(self.curves.values(self.z, compute / self.budget), 0.0, 1.0)

    def noise(self) -> Array:
        return self.curves.noise(self.z)

    def parameter(self, name: str) -> Array:
        raise KeyError(f"a forecaster of benchmarks has no parameter {name!r}")


def fit_curves(curves: Curves, budget: Mapping[str, float]) -> Method:
    """The method that samples the posterior under this prior; `budget` is the last compute of every
    run, by its name."""
    rng = np.random.default_rng(0)
    prior = prior_draws(
        lambda z: curves.allowed(curves.values(z, curves.checked)),
        curves.draws,
        curves.dimensions,
        rng,
    )

    def fit_posterior(w: Window) -> Fit:
        end = budget[w.run.name]
        points = Points.from_run(w.inside)
        shares = np.concatenate([points.compute / end, curves.checked])
        n = len(points.compute)

        def log_likelihood(z: Array) -> Array:
            values = curves.values(z, shares)
            found = points.log_likelihood(values[:, :n], curves.noise(z))
            return np.where(curves.allowed(values[:, n:]), found, -np.inf)

        z = sample(log_likelihood, prior, np.random.default_rng(w.seed), curves.moves)
        predictive = CurvesPredictive(curves, z, end)
        return w.build(predictive, {}, np.median(predictive.levels(w.inside.compute), axis=0), None)

    return fit_posterior


def uniform(z: Array, low: float, high: float) -> Array:
    """A uniform variable made of a normal one."""
    return low + (high - low) * ndtr(z)
