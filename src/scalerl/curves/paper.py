"""The paper's own fitting procedure (arXiv 2510.13786, Appendix A.5), step by step.

1. drop the points below about 1.5k GPU-hours;
2. a grid over A in {0.450, 0.455, ..., 0.800} and 100 equally spaced C_mid in [100, 40000];
3. in each of the 7,100 cells fit only B, with scipy's curve_fit and its default start;
4. keep the cell with the smallest sum of squared residuals.

The grids are in the paper's unit and for its scores. For other data they are arguments, or
rescaled: A from R_0 + 0.2 to R_0 + 2.5 times the rise so far, C_mid from 0.002 to 2 times the last
compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scalerl.curves.formula import Array, Sigmoid, log_compute, logistic
from scalerl.curves.identified import IDENTIFIED_WIDTH
from scalerl.curves.prediction import PointPredictive, normal_quantiles, tails
from scalerl.curves.result import Fit, Window
from scalerl.errors import InputError

#: Compute below which the paper leaves points out, in GPU-hours.
PAPER_CUT = 1500.0
#: The paper's grid over A.
PAPER_A_GRID = np.linspace(0.450, 0.800, 71)
#: The paper's grid over C_mid, in GPU-hours.
PAPER_MID_GRID = np.linspace(100.0, 40000.0, 100)
#: Ends of the rescaled grid over A, in multiples of the rise above R_0.
A_RISES = (0.2, 2.5)
#: Ends of the rescaled grid over C_mid, in multiples of the last compute.
MID_SPAN = (0.002, 2.0)
#: Range of B that the fast variant searches.
FAST_B = (1e-3, 60.0)
#: Golden-section steps of the fast variant; each narrows ln B by 0.618, to 1e-4 of the bracket.
FAST_STEPS = 20
#: The window must end at this many C_mid for A to be identified: the paper's fits end at 1.4 to
#: 4.6, and 3 is where A can be quoted.
IDENTIFIED_END = 3.0


@dataclass(frozen=True, slots=True)
class PaperFit:
    """The best cell, and the sum of squares of every cell for profile intervals."""

    formula: Sigmoid
    sse: float
    a_grid: Array
    mid_grid: Array
    #: (A, C_mid) cells; inf where no B could be fitted.
    sse_grid: Array
    b_grid: Array


def is_paper_scale(compute: Array, score: Array, x_kind: str) -> bool:
    """Whether the paper's own cut and grids apply: its unit, its run sizes, its range of scores."""
    return bool(
        x_kind == "gpu_hours"
        and 2 * PAPER_CUT <= compute[-1] <= 10 * PAPER_MID_GRID[-1]
        and PAPER_A_GRID[0] <= score.max() <= PAPER_A_GRID[-1]
    )


def cut(compute: Array, score: Array, x_kind: str) -> float | None:
    """Compute below which points are left out, on runs of the paper's scale; None elsewhere."""
    return PAPER_CUT if is_paper_scale(compute, score, x_kind) else None


def grids(compute: Array, score: Array, r0: float, paper_scale: bool) -> tuple[Array, Array]:
    """The grids over A and C_mid for these points."""
    if paper_scale:
        return PAPER_A_GRID, PAPER_MID_GRID
    # Two highest scores, against one lucky evaluation; the floor keeps a flat curve's grid open.
    rise = max(float(np.sort(score)[-2:].mean()) - r0, 0.02)
    low, high = (min(r0 + k * rise, 1.0) for k in A_RISES)
    end = float(compute[-1])
    return (
        np.linspace(low, high, len(PAPER_A_GRID)),
        np.linspace(MID_SPAN[0] * end, MID_SPAN[1] * end, len(PAPER_MID_GRID)),
    )


def fit_paper(
    compute: Array,
    score: Array,
    r0: float,
    a_grid: Array,
    mid_grid: Array,
    progress: Callable[[float], None] | None = None,
) -> PaperFit:
    """One curve_fit per cell, which takes seconds; `fit_paper_fast` finds the same optimum."""
    import warnings

    # Here, not above: importing scipy.optimize takes longer than a fit by our own method.
    from scipy.optimize import OptimizeWarning, curve_fit

    t = log_compute(compute)
    sse = np.full((len(a_grid), len(mid_grid)), np.inf)
    b_grid = np.full_like(sse, np.nan)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", OptimizeWarning)
        for i, a in enumerate(a_grid):
            for j, mid in enumerate(mid_grid):
                law = _law_of_b(r0, a, t - np.log(mid))
                try:
                    (b,), _cov = curve_fit(law, compute, score)
                except RuntimeError:  # no convergence in this cell
                    continue
                sse[i, j] = ((law(compute, b) - score) ** 2).sum()
                b_grid[i, j] = b
            if progress is not None:
                progress((i + 1) / len(a_grid))
    return _best(r0, a_grid, mid_grid, sse, b_grid)


def _law_of_b(r0: float, a: float, z: Array) -> Callable[[Array, float], Array]:
    """The law as a function of B only, in the form that curve_fit needs: z = ln C - ln C_mid."""

    def law(_compute: Array, b: float) -> Array:
        return r0 + (a - r0) * logistic(b * z)

    return law


def fit_paper_fast(
    compute: Array, score: Array, r0: float, a_grid: Array, mid_grid: Array
) -> PaperFit:
    """The same cells as `fit_paper`, with B found in all of them at once by golden section. Used
    in back-tests; a test compares its sum of squares with `fit_paper`'s."""
    t = log_compute(compute)
    finite = np.isfinite(t)
    # At C = 0 the law is R_0 in every cell: a constant of the sum of squares.
    base = float(((score[~finite] - r0) ** 2).sum())
    z = t[finite][None, :] - np.log(mid_grid)[:, None]
    y = score[finite] - r0
    gain = (a_grid - r0)[:, None]

    def cost(log_b: Array) -> Array:
        f = logistic(np.exp(log_b)[..., None] * z[None, :, :])
        sse: Array = ((gain[..., None] * f - y) ** 2).sum(axis=-1)
        return sse

    # A coarse scan of B brackets the optimum of each cell for the golden section.
    scan = np.linspace(np.log(FAST_B[0]), np.log(FAST_B[1]), 24)
    f = logistic(np.exp(scan)[:, None, None] * z[None, :, :])
    ff, fy = (f * f).sum(axis=-1), f @ y
    # Without the constant sum of y^2, which does not move the minimum.
    sse = (gain**2)[..., None] * ff.T[None, :, :] - 2.0 * gain[..., None] * fy.T[None, :, :]
    k = np.clip(np.argmin(sse, axis=-1), 1, len(scan) - 2)
    low, high = scan[k - 1], scan[k + 1]
    ratio = (np.sqrt(5.0) - 1.0) / 2.0
    for _ in range(FAST_STEPS):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        go_left = cost(left) < cost(right)
        low, high = np.where(go_left, low, left), np.where(go_left, right, high)
    log_b = (low + high) / 2.0
    return _best(r0, a_grid, mid_grid, cost(log_b) + base, np.exp(log_b))


def _best(r0: float, a_grid: Array, mid_grid: Array, sse: Array, b_grid: Array) -> PaperFit:
    i, j = np.unravel_index(int(np.argmin(sse)), sse.shape)
    best = Sigmoid(R_0=r0, A=float(a_grid[i]), B=float(b_grid[i, j]), C_mid=float(mid_grid[j]))
    return PaperFit(best, float(sse[i, j]), a_grid, mid_grid, sse, b_grid)


def fit_paper_cells(w: Window) -> Fit:
    """Method "paper": choose R_0 and grids as the paper does, and fit all cells."""
    inside = w.inside
    warnings = []
    if isinstance(w.r0, int | float):
        r0, source = float(w.r0), "given"
    elif w.r0 == "fit":
        raise InputError("method 'paper' takes R_0 as known: give --r0 a number, or 'first'")
    elif w.r0 is None and w.run.r0 is not None:
        r0, source = w.run.r0, "given"
    elif w.r0 is None and w.run.compute[0] == 0:
        r0, source = float(w.run.score[0]), "measured"
    else:
        r0, source = float(inside.score[0]), "first"
        warnings.append(f"R_0 taken from the first score ({r0:.3f}): the ceiling depends on it")
    paper_scale = is_paper_scale(w.run.compute, w.run.score, w.run.x_kind)
    default_a, default_mid = grids(inside.compute, inside.score, r0, paper_scale)
    if not paper_scale and w.a_grid is None:
        warnings.append("the paper's grids are for its own scale: rescaled to these points")
    a_values = default_a if w.a_grid is None else np.asarray(w.a_grid, dtype=np.float64)
    mids = default_mid if w.mid_grid is None else np.asarray(w.mid_grid, dtype=np.float64)
    found = fit_paper(inside.compute, inside.score, r0, a_values, mids, w.progress)
    return fit_from_cells(w, found, source, warnings)


def fit_from_cells(w: Window, found: PaperFit, source: str, warnings: list[str]) -> Fit:
    """The best cell, with the other cells as samples of the parameters."""
    degrees = max(len(w.inside) - 3, 1)
    sd = float(np.sqrt(found.sse / degrees))
    # A cell is as plausible as its sum of squares says, were the noise independent.
    excess = (found.sse_grid - found.sse) / max(found.sse / degrees, 1e-12)
    # exp(-700) is about the smallest float64: cells without a fit (inf) get no weight.
    weight = np.exp(-0.5 * np.minimum(excess, 1400.0)).ravel()
    total = np.cumsum(weight)
    n = len(normal_quantiles())
    cells = np.minimum(np.searchsorted(total, (np.arange(n) + 0.5) / n * total[-1]), len(total) - 1)
    i, j = np.unravel_index(cells, found.sse_grid.shape)
    best = found.formula
    samples = {
        "R_0": np.full(n, best.R_0),
        "A": found.a_grid[i],
        "B": found.b_grid[i, j],
        "C_mid": found.mid_grid[j],
    }
    if best.A in (found.a_grid[0], found.a_grid[-1]) or best.C_mid in (
        found.mid_grid[0],
        found.mid_grid[-1],
    ):
        warnings.append("the best cell lies on the edge of the grid: the optimum may be outside")
    low, high = np.quantile(samples["A"], tails(0.9))
    end = w.ends[1]
    identified = bool(high - low <= IDENTIFIED_WIDTH and end >= IDENTIFIED_END * best.C_mid)
    if not identified:
        warnings.append(
            f"the paper's procedure puts the ceiling at {best.A:.3f}; it is not identified: the "
            f"window ends at {end / best.C_mid:.1f} C_mid"
        )
    return w.build(
        PointPredictive(best, sd, samples),
        best.params(),
        best.value(w.inside.compute),
        w.fall(),
        source,
        identified,
        warnings,
    )
