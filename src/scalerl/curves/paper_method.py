"""Method "paper": which R_0 and grids the paper's procedure (paper.py) is given, and the Fit that
comes of its cells."""

from __future__ import annotations

import numpy as np

from scalerl.curves import paper
from scalerl.curves.beliefs import PointBelief, normal_quantiles
from scalerl.curves.prediction import tails
from scalerl.curves.result import IDENTIFIED_WIDTH, Fit
from scalerl.curves.window import Window
from scalerl.errors import InputError

#: The paper's own practice: its fits end at 1.4 to 4.6 C_mid, and 3 is where A can be quoted.
IDENTIFIED_END = 3.0


def fit_paper_cells(w: Window) -> Fit:
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
    paper_scale = paper.is_paper_scale(w.run.compute, w.run.score, w.run.x_kind)
    default_a, default_mid = paper.grids(inside.compute, inside.score, r0, paper_scale)
    if not paper_scale and w.a_grid is None:
        warnings.append("the paper's grids are for its own scale: rescaled to these points")
    a_values = default_a if w.a_grid is None else np.asarray(w.a_grid, dtype=np.float64)
    mids = default_mid if w.mid_grid is None else np.asarray(w.mid_grid, dtype=np.float64)
    found = paper.fit_paper(inside.compute, inside.score, r0, a_values, mids, w.progress)
    return fit_from_cells(w, found, source, warnings)


def fit_from_cells(w: Window, found: paper.PaperFit, source: str, warnings: list[str]) -> Fit:
    """The best cell, with the other cells as samples of the parameters."""
    degrees = max(len(w.inside) - 3, 1)
    sd = float(np.sqrt(found.sse / degrees))
    # A cell is as plausible as its sum of squares says, were the noise independent.
    excess = (found.sse_grid - found.sse) / max(found.sse / degrees, 1e-12)
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
        PointBelief(best, sd, samples),
        best.params(),
        best.value(w.inside.compute),
        w.fall(),
        source,
        identified,
        warnings,
    )
