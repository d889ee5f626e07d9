"""No change: the last level continues. The baseline that a forecast has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.curves.formula import Array, PointFit, log_compute
from scalerl.curves.laws.law import Law, add_law
from scalerl.curves.noise import BinnedCurve, bin_curve
from scalerl.curves.prediction import NORMAL_DRAWS, Predictive, normal_quantiles
from scalerl.curves.result import Fit, Window


@dataclass(frozen=True, slots=True)
class NoChange:
    """R = A."""

    A: float

    def value(self, compute: npt.ArrayLike) -> Array:
        return np.full_like(np.asarray(compute, dtype=np.float64), self.A)

    def params(self) -> dict[str, float]:
        return {"A": self.A}


@dataclass(frozen=True, slots=True)
class NoChangePredictive(Predictive):
    """Predictive distribution: the last level, with a random walk in ln C."""

    level: float
    points: BinnedCurve
    t_end: float
    #: sd of the walk after one unit of ln C, in units of the curve's rise; calibrated so that 90 %
    #: intervals held 90 % of real healthy curves.
    wander: float = 0.2

    def levels(self, compute: Array) -> Array:
        d = np.maximum(log_compute(compute) - self.t_end, 0.0)
        # A third: the level is the mean of at least three scores.
        sd = np.sqrt(self.points.score_variance / 3.0 + (self.wander * self.points.scale) ** 2 * d)
        z = normal_quantiles()[:, None]
        return np.clip(self.level + sd[None, :] * z, 0.0, 1.0)

    def noise(self) -> Array:
        return np.full(NORMAL_DRAWS, np.sqrt(self.points.score_variance))

    def parameter(self, name: str) -> Array:
        return np.full(NORMAL_DRAWS, self.level)


def fit_last_level(w: Window) -> Fit:
    """The mean of the last 15 % of the points, at least 3 and at most 10 of them."""
    inside = w.inside
    points = bin_curve(inside.compute, inside.score, inside.n_eval)
    formula = NoChange(points.level)
    predictive = NoChangePredictive(points.level, points, float(np.log(inside.compute[-1])))
    curve = formula.value(inside.compute)
    warnings = ["a reference, not a forecast"]
    return w.build(predictive, formula.params(), curve, w.fall(), warnings=warnings)


def fit_mean(compute: Array, score: Array, r0: float | None = None) -> PointFit[NoChange]:
    """The constant with the least sum of squares."""
    mean = float(score.mean())
    return PointFit(NoChange(mean), float(((score - mean) ** 2).sum()))


NO_CHANGE = add_law(
    Law(
        "no-change",
        title="no-change law",
        least_squares=fit_mean,
        methods={"last-level": fit_last_level},
    )
)
