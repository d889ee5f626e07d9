"""pow3, y = c - a x^-p, by least squares, with intervals from resampled residuals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalerl.curves.formula import Array
from scalerl.curves.prediction import Predictive
from scalerl.curves.result import Fit, Window

#: Resampled curves.
RESAMPLES = 500
#: Exponents tried; c and a follow by linear regression.
EXPONENTS = np.geomspace(0.02, 5.0, 60)


@dataclass(frozen=True, slots=True)
class Pow3Predictive(Predictive):
    """The resampled curves."""

    c: Array
    a: Array
    p: Array
    sd: float
    first: float

    def levels(self, compute: Array) -> Array:
        x = np.maximum(compute / self.first, 1.0)[None, :]
        return np.clip(self.c[:, None] - self.a[:, None] * x ** -self.p[:, None], 0.0, 1.0)

    def noise(self) -> Array:
        return np.full(len(self.c), self.sd)

    def parameter(self, name: str) -> Array:
        raise KeyError(f"a forecaster of benchmarks has no parameter {name!r}")


def fit_bootstrap(w: Window) -> Fit:
    """Least squares on the points above zero compute, repeated on resampled residuals."""
    keep = w.inside.compute > 0
    first = float(w.inside.compute[keep][0])
    x, y = w.inside.compute[keep] / first, w.inside.score[keep]
    c, a, p = _least_squares(x, y[None, :])
    curve = c - a * x**-p
    sd = float(np.sqrt(((y - curve) ** 2).sum() / max(len(y) - 3, 1)))
    rng = np.random.default_rng(w.seed)
    # Inflated by the lost degrees of freedom, and centred.
    residual = (y - curve) - (y - curve).mean()
    residual *= np.sqrt(len(y) / max(len(y) - 3, 1))
    again = curve + rng.choice(residual, (RESAMPLES, len(y)))
    predictive = Pow3Predictive(*_least_squares(x, again), sd, first)
    return w.build(predictive, {}, np.median(predictive.levels(w.inside.compute), axis=0), None)


def _least_squares(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """c, a and p for every row of y, with 0 <= c <= 1."""
    h = x[None, :] ** -EXPONENTS[:, None]
    centred = h - h.mean(axis=1, keepdims=True)
    squares = np.maximum((centred**2).sum(axis=1), 1e-12)
    a = -(y @ centred.T) / squares  # (rows, exponents)
    c = np.clip(y.mean(axis=1, keepdims=True) + a * h.mean(axis=1), 0.0, 1.0)
    # Where c is cut off, a is fitted again with that c.
    a = ((c[:, :, None] - y[:, None, :]) * h[None]).sum(axis=2) / (h**2).sum(axis=1)
    error = ((c[:, :, None] - a[:, :, None] * h[None] - y[:, None, :]) ** 2).sum(axis=2)
    best = error.argmin(axis=1)
    rows = np.arange(len(y))
    return c[rows, best], a[rows, best], EXPONENTS[best]
