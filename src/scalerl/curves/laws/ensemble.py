"""Rival laws for the back-test: a line in ln C, and an ensemble of learning-curve families.

The families are those used elsewhere to extrapolate learning curves of networks, each linear in
(c0, c1) once its shape is given, with x = C / last C:

    pow3        c0 + c1 x^-a                 log-power  c1 / (1 + (m / x)^a)
    exp3        c0 + c1 exp(-k x)            MMF        c0 + c1 / (1 + (k x)^a)
    Janoschek   c0 + c1 exp(-k x^a)

Shapes are a grid. In each cell (c0, c1) and the noise are integrated out under a flat prior; cells
are weighted by their evidence, with equal prior weight for every family. So the ensemble is a full
posterior: where it does worse, its shapes and noise model are the reason, not a lack of averaging.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.curves.formula import Array, IntArray, PointFit, log_compute
from scalerl.curves.laws.law import Law, add_law
from scalerl.curves.noise import bin_curve
from scalerl.curves.prediction import NORMAL_DRAWS, Predictive
from scalerl.curves.result import Fit, Window

#: Grid of the exponents a.
POWERS = np.geomspace(0.1, 4.0, 12)
#: Grid of the rates k (or 1 / m), in units of 1 / last C.
RATES = np.geomspace(0.1, 60.0, 14)
#: Prior precision of c0 and c1: negligible, but it keeps degenerate cells solvable.
RIDGE = 0.01


@dataclass(frozen=True, slots=True)
class LogLine:
    """R = a + b ln C.

    >>> float(LogLine(a=0.1, b=0.05).value(np.e))
    0.15000000000000002
    """

    a: float
    b: float

    def value(self, compute: npt.ArrayLike) -> Array:
        return np.asarray(self.a + self.b * np.maximum(log_compute(compute), -700.0))

    def params(self) -> dict[str, float]:
        return {"a": self.a, "b": self.b}


def fit_line(compute: Array, score: Array, r0: float | None = None) -> PointFit[LogLine]:
    """The least-squares line in ln C through the points above C = 0."""
    positive = compute > 0
    t, y = np.log(compute[positive]), score[positive]
    b, a = np.polyfit(t - t[-1], y, 1)
    found = LogLine(float(a - b * t[-1]), float(b))
    return PointFit(found, float(((found.value(compute[positive]) - y) ** 2).sum()))


@dataclass(frozen=True, slots=True)
class Families:
    """Grid cells of the families: index of the family, rate and power of each."""

    family: IntArray
    rate: Array
    power: Array

    @staticmethod
    def grid() -> Families:
        both = np.stack([g.ravel() for g in np.meshgrid(RATES, POWERS, indexing="ij")])
        ones = np.ones(len(POWERS)), np.ones(len(RATES))
        cells = [(ones[0], POWERS), tuple(both), (RATES, ones[1]), tuple(both), tuple(both)]
        family = np.concatenate([np.full(len(rate), i) for i, (rate, _) in enumerate(cells)])
        rate, power = (np.concatenate([c[i] for c in cells]) for i in (0, 1))
        return Families(family, rate, power)

    def only(self, chosen: npt.ArrayLike) -> Families:
        at = np.asarray(chosen, dtype=np.intp)
        return Families(self.family[at], self.rate[at], self.power[at])

    def basis(self, x: Array) -> tuple[Array, Array]:
        """The basis functions that c0 and c1 multiply: (cells, len(x)) each."""
        family, k, a = self.family[:, None], self.rate[:, None], self.power[:, None]
        # Floors and clips keep powers finite at C = 0 and far beyond the window.
        t = np.log(np.maximum(x, 1e-12))[None, :]
        power = np.exp(np.clip(a * t, -60.0, 60.0))
        scaled = np.exp(np.clip(a * (t + np.log(k)), -60.0, 60.0))
        h = np.select(
            [family == 0, family == 1, family == 2, family == 3],
            [1.0 / power, scaled / (1.0 + scaled), np.exp(-k * x), 1.0 / (1.0 + scaled)],
            np.exp(-k * power),
        )
        # The log-power family has no constant term.
        return np.where(family == 1, 0.0, 1.0) * np.ones_like(h), h


@dataclass(frozen=True, slots=True)
class EnsemblePredictive(Predictive):
    """Predictive distribution of the ensemble: draws of a cell, its coefficients and its noise."""

    cells: Families
    c0: Array
    c1: Array
    sd: Array
    end: float

    def levels(self, compute: Array) -> Array:
        one, h = self.cells.basis(compute / self.end)
        return np.clip(self.c0[:, None] * one + self.c1[:, None] * h, 0.0, 1.0)

    def noise(self) -> Array:
        return self.sd

    def parameter(self, name: str) -> Array:
        raise KeyError(f"the families share no parameter {name!r}")


@dataclass(frozen=True, slots=True)
class FamilyCurve:
    """The curve of one cell."""

    cell: Families
    c0: float
    c1: float
    end: float

    def value(self, compute: npt.ArrayLike) -> Array:
        one, h = self.cell.basis(np.atleast_1d(np.asarray(compute, dtype=np.float64)) / self.end)
        return np.asarray((self.c0 * one + self.c1 * h)[0])

    def params(self) -> dict[str, float]:
        return {"c0": self.c0, "c1": self.c1}


@dataclass(frozen=True, slots=True)
class _Regressions:
    """Linear regression on the points in every cell."""

    grid: Families
    gram: Array
    coefficients: Array
    sse: Array

    @staticmethod
    def from_points(x: Array, y: Array) -> _Regressions:
        grid = Families.grid()
        design = np.stack(grid.basis(x), axis=-1)  # (cells, points, 2)
        gram = design.transpose(0, 2, 1) @ design + RIDGE * np.eye(2)
        coefficients = np.linalg.solve(gram, design.transpose(0, 2, 1) @ y[:, None])[..., 0]
        sse = ((y - (design @ coefficients[..., None])[..., 0]) ** 2).sum(axis=1)
        return _Regressions(grid, gram, np.asarray(coefficients, dtype=np.float64), sse)


def fit_family(compute: Array, score: Array, r0: float | None = None) -> PointFit[FamilyCurve]:
    """The curve of any family with the least sum of squares."""
    positive = compute > 0
    end = float(compute[-1])
    found = _Regressions.from_points(compute[positive] / end, score[positive])
    best = int(np.argmin(found.sse))
    c0, c1 = (float(c) for c in found.coefficients[best])
    return PointFit(FamilyCurve(found.grid.only([best]), c0, c1, end), float(found.sse[best]))


def fit_ensemble(w: Window) -> Fit:
    """The posterior over all cells of all families."""
    inside = w.inside
    points = bin_curve(inside.compute, inside.score, inside.n_eval)
    end = float(inside.compute[-1])
    keep = ~points.at_zero
    found = _Regressions.from_points(np.exp(points.t[keep]) / end, points.score[keep])
    rng = np.random.default_rng((w.seed, 0))
    freedom = max(int(keep.sum()) - 2, 1)
    # One evaluation's variance as a prior observation of the noise, so that sse = 0 is finite.
    total = found.sse + points.score_variance
    log_weight = -0.5 * freedom * np.log(total) - 0.5 * np.linalg.slogdet(found.gram)[1]
    # Families with more cells must not weigh more.
    log_weight -= np.log(np.bincount(found.grid.family)[found.grid.family])
    weight = np.exp(log_weight - log_weight.max())
    chosen = rng.choice(len(weight), NORMAL_DRAWS, p=weight / weight.sum())
    sd = np.sqrt(total[chosen] / rng.chisquare(freedom + 1, NORMAL_DRAWS))
    factor = np.linalg.cholesky(np.linalg.inv(found.gram[chosen]))
    step = (factor @ rng.standard_normal((NORMAL_DRAWS, 2, 1)))[..., 0]
    drawn = found.coefficients[chosen] + sd[:, None] * step
    predictive = EnsemblePredictive(found.grid.only(chosen), drawn[:, 0], drawn[:, 1], sd, end)
    positive = inside.compute[inside.compute > 0]
    curve = np.median(predictive.levels(np.maximum(inside.compute, positive[0])), axis=0)
    return w.build(predictive, {}, curve, w.fall())


LINE = add_law(Law("line", title="line in ln C", least_squares=fit_line))
ENSEMBLE = add_law(
    Law(
        "ensemble",
        title="ensemble of families",
        least_squares=fit_family,
        methods={"posterior": fit_ensemble},
    )
)
