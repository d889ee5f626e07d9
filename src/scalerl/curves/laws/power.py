"""The power law, R = A - D / C^B: the sigmoid's large-C limit, which the paper compares the sigmoid
with. It has no R_0: it diverges at small C."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from scalerl.curves.formula import Array, PointFit, log_compute, saturating_exp
from scalerl.curves.laws.law import Law, add_law
from scalerl.curves.least_squares import safe_ratio

#: Search range of B.
B_RANGE = (1e-3, 20.0)
#: Cells of the first grid in ln B.
CELLS = 200
#: Refinements of the grid around the best cell; each narrows it about sevenfold.
ROUNDS = 10


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """R = A - D / C^B.

    >>> round(float(PowerLaw(A=0.7, D=10.0, B=0.5).value(2500.0)), 6)
    0.5
    """

    A: float
    D: float
    B: float

    def value(self, compute: npt.ArrayLike) -> Array:
        if self.D == 0.0:
            return np.full_like(np.asarray(compute, dtype=np.float64), self.A)
        log_d = np.log(abs(self.D))
        distance = np.sign(self.D) * saturating_exp(log_d - self.B * log_compute(compute))
        return np.asarray(self.A - distance)

    def params(self) -> dict[str, float]:
        return asdict(self)


def fit_power(compute: Array, score: Array, r0: float | None = None) -> PointFit[PowerLaw]:
    """The power law with the least sum of squares, A <= 1 and D >= 0: given B it is linear in
    (A, D). Points at C = 0 are left out, since the law has no value there, and so no R_0."""
    positive = compute > 0
    c, y = compute[positive], score[positive]
    t = np.log(c / c[-1])  # scaled so that the powers stay near 1
    axis = np.linspace(np.log(B_RANGE[0]), np.log(B_RANGE[1]), CELLS)
    best = (np.inf, 0.0, 0.0, 0.0)
    for _ in range(ROUNDS):
        # exp(300) squared is still a finite float64.
        h = np.exp(np.minimum(-np.exp(axis)[:, None] * t[None, :], 300.0))
        a, d, sse = _linear(h, y)
        i = int(np.argmin(sse))
        if sse[i] < best[0]:
            best = (float(sse[i]), float(a[i]), float(d[i]), float(axis[i]))
        axis = best[3] + np.linspace(-1.0, 1.0, 15) * (axis[1] - axis[0])
    sse_, a_, d_, log_b = best
    b = float(np.exp(log_b))
    scale = float(saturating_exp(np.asarray(b * np.log(c[-1]))))
    return PointFit(PowerLaw(A=a_, D=d_ * scale, B=b), sse_)


def _linear(h: Array, y: Array) -> tuple[Array, Array, Array]:
    """Best (A, D) for each row of h = C^-B, and its sum of squares."""
    n = len(y)
    sh, hh, sy, hy = h.sum(1), (h * h).sum(1), y.sum(), h @ y
    det = n * hh - sh * sh
    a = safe_ratio(hh * sy - sh * hy, det)
    # Where C^-B hardly varies (B near 0), A and D are not separable: take the highest ceiling.
    a = np.where(np.abs(det) > 1e-9 * n * hh, a, 1.0)
    a = np.clip(a, 0.0, 1.0)
    d = np.maximum(safe_ratio(a * sh - hy, hh), 0.0)
    a = np.where(d == 0.0, y.mean(), a)
    sse = ((a[:, None] - d[:, None] * h - y) ** 2).sum(1)
    return a, d, sse


POWER = add_law(Law("power", title="power law", least_squares=fit_power))
