"""Plain least squares of the laws, at the global optimum: the point estimates the paper works with.

Given (B, C_mid) the sigmoid is linear in (R_0, A), so only two parameters are searched: all cells of
a grid at once, then ever finer grids around the best of them. Given B the power law is linear in
(A, D).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.curves.laws import Law, PowerLaw, Sigmoid, log_compute, logistic

Array = npt.NDArray[np.float64]

#: Search ranges: B, and C_mid in multiples of the first and last compute.
B_RANGE = (0.05, 20.0)
MID_RANGE = (0.2, 30.0)
CELLS = (40, 64)
#: Each refinement looks at this many cells around the best, at a spacing finer by the same factor.
REFINE_CELLS = 9
REFINE_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class PointFit:
    """A law and the sum of squared residuals it leaves."""

    law: Law
    sse: float


def fit_sigmoid(
    compute: npt.ArrayLike,
    score: npt.ArrayLike,
    r0: float | None = None,
    a: float | None = None,
) -> PointFit:
    """The sigmoid with the least sum of squares and 0 <= R_0 <= A <= 1; R_0 and A may be fixed.

    >>> law = Sigmoid(R_0=0.3, A=0.645, B=1.7, C_mid=8000)
    >>> c = np.linspace(500, 40000, 40)
    >>> found = fit_sigmoid(c, law.value(c)).law.params()
    >>> {k: round(v, 3) for k, v in found.items()}
    {'R_0': 0.3, 'A': 0.645, 'B': 1.7, 'C_mid': 8000.0}
    """
    c = np.asarray(compute, dtype=np.float64)
    y = np.asarray(score, dtype=np.float64)
    t = log_compute(c)
    positive = t[np.isfinite(t)]
    axes = [
        np.linspace(*np.log(B_RANGE), CELLS[0]),
        np.linspace(
            positive[0] + np.log(MID_RANGE[0]), positive[-1] + np.log(MID_RANGE[1]), CELLS[1]
        ),
    ]
    best = (np.inf, 0.0, 0.0, 0.0, 0.0)
    for _ in range(REFINE_ROUNDS + 1):
        log_b, log_mid = (g.ravel() for g in np.meshgrid(*axes, indexing="ij"))
        f = logistic(np.exp(log_b)[:, None] * (t[None, :] - log_mid[:, None]))
        low, high, sse = _linear(f, y, r0, a)
        i = int(np.argmin(sse))
        if sse[i] < best[0]:
            best = (
                float(sse[i]),
                float(low[i]),
                float(high[i]),
                float(log_b[i]),
                float(log_mid[i]),
            )
        axes = [
            best[3 + k] + np.linspace(-1.0, 1.0, REFINE_CELLS) * (axis[1] - axis[0])
            for k, axis in enumerate(axes)
        ]
    _, low_, high_, lb, lm = best
    law = Sigmoid(R_0=low_, A=high_, B=float(np.exp(lb)), C_mid=float(np.exp(lm)))
    return PointFit(law, float(((law.value(c) - y) ** 2).sum()))


def _linear(f: Array, y: Array, r0: float | None, a: float | None) -> tuple[Array, Array, Array]:
    """Best (R_0, A) within 0 <= R_0 <= A <= 1 for each row of f, and its sum of squares."""
    g = 1.0 - f
    candidates: list[tuple[Array, Array]] = []
    rows = len(f)
    if r0 is not None and a is not None:
        candidates.append((np.full(rows, r0), np.full(rows, a)))
    elif r0 is not None:
        candidates.append((np.full(rows, r0), _ratio(f @ y - r0 * (f * g).sum(1), (f * f).sum(1))))
    elif a is not None:
        candidates.append((_ratio(g @ y - a * (f * g).sum(1), (g * g).sum(1)), np.full(rows, a)))
    else:
        gg, ff, gf = (g * g).sum(1), (f * f).sum(1), (g * f).sum(1)
        gy, fy = g @ y, f @ y
        det = gg * ff - gf * gf
        candidates.append((_ratio(ff * gy - gf * fy, det), _ratio(gg * fy - gf * gy, det)))
        # On the edges of the allowed region one of the two is fixed, or both are equal.
        candidates.append((_ratio(gy - gf, gg), np.ones(rows)))
        candidates.append((np.zeros(rows), _ratio(fy, ff)))
        candidates.append((np.full(rows, y.mean()), np.full(rows, y.mean())))
    best = np.full(rows, np.inf)
    best_low, best_high = np.zeros(rows), np.zeros(rows)
    for low, high in candidates:
        if a is None:
            high = np.clip(high, low if r0 is not None else 0.0, 1.0)
        if r0 is None:
            low = np.clip(low, 0.0, high)
        sse = ((low[:, None] * g + high[:, None] * f - y) ** 2).sum(1)
        better = sse < best
        best = np.where(better, sse, best)
        best_low = np.where(better, low, best_low)
        best_high = np.where(better, high, best_high)
    return best_low, best_high, best


def _ratio(top: Array, bottom: Array) -> Array:
    return top / np.where(np.abs(bottom) > 1e-12, bottom, 1e-12)


def fit_power(compute: npt.ArrayLike, score: npt.ArrayLike) -> PointFit:
    """The power law with the least sum of squares, A <= 1 and D >= 0. Points at C = 0 are left out,
    since the law has no value there."""
    c = np.asarray(compute, dtype=np.float64)
    y = np.asarray(score, dtype=np.float64)
    c, y = c[c > 0], y[c > 0]
    t = np.log(c / c[-1])  # scaled so that the powers stay near 1
    axis = np.linspace(np.log(1e-3), np.log(20.0), 200)
    best = (np.inf, 0.0, 0.0, 0.0)
    for _ in range(REFINE_ROUNDS):
        b = np.exp(axis)
        h = np.exp(np.minimum(-b[:, None] * t[None, :], 300.0))
        a, d, sse = _linear_power(h, y)
        i = int(np.argmin(sse))
        if sse[i] < best[0]:
            best = (float(sse[i]), float(a[i]), float(d[i]), float(axis[i]))
        axis = best[3] + np.linspace(-1.0, 1.0, 2 * REFINE_CELLS) * (axis[1] - axis[0])
    sse_, a_, d_, lb = best
    b_ = float(np.exp(lb))
    scale = float(np.exp(np.clip(b_ * np.log(c[-1]), -700.0, 700.0)))
    return PointFit(PowerLaw(A=a_, D=d_ * scale, B=b_), sse_)


def _linear_power(h: Array, y: Array) -> tuple[Array, Array, Array]:
    n = len(y)
    sh, hh, sy, hy = h.sum(1), (h * h).sum(1), y.sum(), h @ y
    det = n * hh - sh * sh
    a = _ratio(hh * sy - sh * hy, det)
    a = np.where(np.abs(det) > 1e-9 * n * hh, a, 1.0)
    a = np.clip(a, 0.0, 1.0)
    d = np.maximum(_ratio(a * sh - hy, hh), 0.0)
    a = np.where(d == 0.0, y.mean(), a)
    sse = ((a[:, None] - d[:, None] * h - y) ** 2).sum(1)
    return a, d, sse
