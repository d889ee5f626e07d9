"""The least-squares sigmoid, at the global optimum: the point estimates of the paper's rules.

Given (B, C_mid) the sigmoid is linear in (R_0, A), so only two parameters are searched: all cells
of a grid at once, then ever finer grids around the best of them. No starting value can miss it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scalerl.curves.formula import (
    Array,
    IntArray,
    PointFit,
    Sigmoid,
    log_compute,
    logistic,
    one_thread,
)

#: Search range of B: wide enough for steps and for nearly straight curves.
B_RANGE = (0.05, 200.0)
#: Search range of C_mid, in multiples of the first and of the last compute.
MID_RANGE = (0.2, 30.0)
#: Cells of the first grid, in ln B and in ln C_mid.
CELLS = (44, 80)
#: Local minima of the first grid that are refined; the global one is among the deepest few.
VALLEYS = 3
#: Refinements of every valley, after which only the best is refined.
ROUNDS_IN_ALL_VALLEYS = 5
#: Further refinements of the best valley. Each divides the step by 3, down to about 1e-8 in ln B.
ROUNDS_IN_THE_BEST = 10
#: Offsets of the cells that are tried around a centre, in units of its step.
_OFFSETS = np.linspace(-1.0, 1.0, 7)
AROUND = np.stack([g.ravel() for g in np.meshgrid(_OFFSETS, _OFFSETS, indexing="ij")], axis=1)
#: Points used by the first grid; refinements of the best valley use all.
SCAN_POINTS = 48


@one_thread
def fit_sigmoid(
    compute: npt.ArrayLike,
    score: npt.ArrayLike,
    r0: float | None = None,
    a: float | None = None,
) -> PointFit[Sigmoid]:
    """The sigmoid with the least sum of squares and 0 <= R_0 <= A <= 1; R_0 and A may be fixed.

    >>> truth = Sigmoid(R_0=0.3, A=0.645, B=1.7, C_mid=8000)
    >>> c = np.linspace(500, 40000, 40)
    >>> found = fit_sigmoid(c, truth.value(c)).formula.params()
    >>> {k: float(f"{v:.3g}") for k, v in found.items()}
    {'R_0': 0.3, 'A': 0.645, 'B': 1.7, 'C_mid': 8000.0}
    """
    c = np.asarray(compute, dtype=np.float64)
    y = np.asarray(score, dtype=np.float64)
    all_t = log_compute(c)
    positive = all_t[np.isfinite(all_t)]
    axes = [
        np.linspace(np.log(B_RANGE[0]), np.log(B_RANGE[1]), CELLS[0]),
        np.linspace(
            positive[0] + np.log(MID_RANGE[0]), positive[-1] + np.log(MID_RANGE[1]), CELLS[1]
        ),
    ]
    # Every few points of a dense curve are enough to find the valleys.
    thin = max(1, len(c) // SCAN_POINTS)
    seen = all_t[::thin], y[::thin]
    grid = np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], axis=1)
    centres = grid[_valleys(_sums_of_squares(grid, *seen, r0, a)[:, 2].reshape(CELLS))]
    step = np.tile([axis[1] - axis[0] for axis in axes], (len(centres), 1))
    for _ in range(ROUNDS_IN_ALL_VALLEYS):
        centres, step, sse = _descend(centres, step, *seen, r0, a)
    best = int(sse.argmin())
    centres, step = centres[best : best + 1], step[best : best + 1]
    for _ in range(ROUNDS_IN_THE_BEST):
        centres, step, _ = _descend(centres, step, all_t, y, r0, a)
    low, high, _ = _sums_of_squares(centres, all_t, y, r0, a)[0]
    b, mid = np.exp(centres[0])
    found = Sigmoid(R_0=float(low), A=float(high), B=float(b), C_mid=float(mid))
    return PointFit(found, float(((found.value(c) - y) ** 2).sum()))


def _descend(
    centres: Array, step: Array, t: Array, y: Array, r0: float | None, a: float | None
) -> tuple[Array, Array, Array]:
    """Move each centre to the best of the cells around it. Returns centres, steps (divided by 3
    where the centre moved less than a whole step) and sums of squares."""
    cells = centres[:, None, :] + AROUND[None, :, :] * step[:, None, :]
    sse = _sums_of_squares(cells.reshape(-1, 2), t, y, r0, a)[:, 2].reshape(len(centres), -1)
    i = sse.argmin(axis=1)
    rows = np.arange(len(centres))
    moved = np.abs(AROUND[i]).max(axis=1) >= 1.0
    return cells[rows, i], np.where(moved[:, None], step, step / 3.0), sse[rows, i]


def _valleys(sse: Array) -> IntArray:
    """Flat indices of the deepest cells that are no higher than their neighbours."""
    padded = np.pad(sse, 1, constant_values=np.inf)
    around = [
        padded[1 + i : 1 + i + sse.shape[0], 1 + j : 1 + j + sse.shape[1]]
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
    ]
    low = np.flatnonzero((sse <= np.min(around, axis=0)).ravel())
    return low[np.argsort(sse.ravel()[low])[:VALLEYS]]


def _sums_of_squares(cells: Array, t: Array, y: Array, r0: float | None, a: float | None) -> Array:
    """(R_0, A, sum of squares) at the best R_0 and A for each cell (ln B, ln C_mid)."""
    f = logistic(np.exp(cells[:, 0])[:, None] * (t[None, :] - cells[:, 1][:, None]))
    return np.stack(_linear(f, y, r0, a), axis=1)


def _linear(f: Array, y: Array, r0: float | None, a: float | None) -> tuple[Array, Array, Array]:
    """Best (R_0, A) within 0 <= R_0 <= A <= 1 for each row of f, and its sum of squares."""
    # Only the sums of f, f^2 and f y are needed. Scores are centred, because differences of large
    # sums would lose digits.
    n, rows, centre = len(y), len(f), float(y.mean())
    d = y - centre
    yy = float(d @ d)
    s1, sff, sfy = f.sum(axis=1), np.einsum("ij,ij->i", f, f), f @ d
    gg, gf, gy = n - 2.0 * s1 + sff, s1 - sff, -sfy  # with g = 1 - f; d sums to 0

    def cost(low: Array, high: Array) -> Array:
        p, q = low - centre, high - centre
        sse: Array = p * p * gg + 2.0 * p * q * gf + q * q * sff - 2.0 * (p * gy + q * sfy) + yy
        return sse

    full, zero, one = np.full(rows, centre), np.zeros(rows), np.ones(rows)
    candidates: list[tuple[Array, Array]] = []
    if r0 is not None and a is not None:
        candidates.append((np.full(rows, r0), np.full(rows, a)))
    elif r0 is not None:
        candidates.append((np.full(rows, r0), safe_ratio(sfy - (r0 - centre) * gf, sff) + centre))
    elif a is not None:
        candidates.append((safe_ratio(gy - (a - centre) * gf, gg) + centre, np.full(rows, a)))
    else:
        det = gg * sff - gf * gf
        free = safe_ratio(sff * gy - gf * sfy, det), safe_ratio(gg * sfy - gf * gy, det)
        candidates.append((free[0] + centre, free[1] + centre))
        # On the edges of the allowed region one of the two is fixed, or both are equal.
        candidates.append((safe_ratio(gy - (1.0 - centre) * gf, gg) + centre, one))
        candidates.append((zero, safe_ratio(sfy + centre * gf, sff) + centre))
        candidates.append((full, full))
    best, best_low, best_high = np.full(rows, np.inf), zero, zero
    for low, high in candidates:
        if a is None:
            high = np.clip(high, low if r0 is not None else 0.0, 1.0)
        if r0 is None:
            low = np.clip(low, 0.0, high)
        sse = cost(low, high)
        better = sse < best
        best = np.where(better, sse, best)
        best_low = np.where(better, low, best_low)
        best_high = np.where(better, high, best_high)
    return best_low, best_high, best


def safe_ratio(top: Array, bottom: Array) -> Array:
    """top / bottom, with denominators near 0 replaced by a small number."""
    return top / np.where(np.abs(bottom) > 1e-12, bottom, 1e-12)
