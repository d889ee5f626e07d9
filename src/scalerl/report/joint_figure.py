"""The joint picture of ceiling and C_mid: how the two trade against each other in the posterior."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scalerl.curves.result import Fit
from scalerl.errors import InputError
from scalerl.report import words
from scalerl.report.theme import MARKERS, Theme, ThemeName, compute_axis, drawing, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]

#: Shares of the posterior inside the two contours.
SHARES = (0.9, 0.5)
BINS = 72
#: Smoothing, in bins.
SMOOTH = 2.4


def plot_joint(
    fit: Fit | Sequence[Fit],
    path: str | Path | None = None,
    theme: ThemeName = "light",
    size: tuple[float, float] | None = None,
    colours: Sequence[int] | None = None,
) -> Figure:
    """Where ceiling and C_mid may lie together: half of the posterior inside the inner contour,
    90 % inside the outer one. A long diagonal means that the points cannot tell a higher ceiling
    from a slower climb. `colours` are places in the theme's list, one a fit."""
    fits = [fit] if isinstance(fit, Fit) else list(fit)
    shown = [f for f in fits if has_joint(f)]
    if not shown:
        raise InputError("the joint picture of A and C_mid needs a fit of the sigmoid")
    places = range(len(shown)) if colours is None else colours
    with drawing(theme) as t:
        fig, ax = new_figure(size or (6.0, 4.6))
        corners = np.array([_draw(ax, f, i, t) for i, f in zip(places, shown, strict=True)])
        _limits(ax, corners)
        compute_axis(ax, shown[0].run.x_kind, t)
        ax.set_xlabel(f"C_mid, {words.KIND[shown[0].run.x_kind]}")
        ax.set_ylabel("ceiling A")
        title = "Ceiling and C_mid together"
        if len(fits) == 1:
            title = words.shorten(shown[0].name, 30)
            title += "" if shown[0].identified else ": ceiling not identified"
        else:
            fig.legend(loc="outside lower center", fontsize=7.5, labelcolor=t.ink)
        ax.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=10)
        return save(fig, path)


def has_joint(fit: Fit) -> bool:
    """Whether the fit has samples of a ceiling and a C_mid."""
    return fit.law.identifiable and "C_mid" in fit.params


def _limits(ax: Axes, corners: Array) -> None:
    """Axes that hold the outer contours, of which `corners` has (ln C_mid, A) low and high."""
    (x_low, y_low), (x_high, y_high) = corners[:, 0].min(axis=0), corners[:, 1].max(axis=0)
    pad_x, pad_y = 0.08 * max(x_high - x_low, 0.2), 0.08 * max(y_high - y_low, 0.02)
    ax.set_xlim(np.exp(x_low - pad_x), np.exp(x_high + pad_x))
    ax.set_ylim(max(y_low - pad_y, 0.0), min(y_high + pad_y, 1.01))


def _draw(ax: Axes, fit: Fit, i: int, t: Theme) -> tuple[tuple[float, float], tuple[float, float]]:
    """Draws one run; gives the lower left and upper right corner of its outer contour."""
    a, mid = fit.belief.parameter("A"), fit.belief.parameter("C_mid")
    colour = t.colour(i)
    centre = (float(np.log(np.median(mid))), float(np.median(a)))
    corners = (centre, centre)
    found = density(np.log(mid), a)
    if found is not None:
        log_mid, ceiling, mass, levels = found
        x = np.exp(log_mid)
        for outer in levels:
            ax.contourf(x, ceiling, mass, levels=[outer, np.inf], colors=[colour], alpha=0.16)
        ax.contour(x, ceiling, mass, levels=levels, colors=[colour], linewidths=(0.9, 1.5))
        rows, columns = np.nonzero(mass >= levels[0])
        corners = (
            (float(log_mid[columns].min()), float(ceiling[rows].min())),
            (float(log_mid[columns].max()), float(ceiling[rows].max())),
        )
    label = words.shorten(fit.name, 30) + ("" if fit.identified else ": not identified")
    marker = MARKERS[i % len(MARKERS)] if fit.identified else "x"
    ax.plot([np.exp(centre[0])], [centre[1]], ls="", marker=marker, ms=6, color=colour, label=label)
    return corners


def density(x: Array, y: Array) -> tuple[Array, Array, Array, list[float]] | None:
    """Smoothed 2-D density of samples on a grid, and the heights that enclose SHARES of it; None
    where the samples do not vary."""
    from scipy.ndimage import gaussian_filter

    ranges = []
    for v in (x, y):
        low, high = np.quantile(v, (0.01, 0.99))
        if high - low < 1e-9:
            return None
        ranges.append((low - 0.15 * (high - low), high + 0.15 * (high - low)))
    counts, x_edges, y_edges = np.histogram2d(x, y, bins=BINS, range=ranges)
    mass = gaussian_filter(counts, SMOOTH).T
    ordered = np.sort(mass.ravel())[::-1]
    enclosed = np.cumsum(ordered) / ordered.sum()
    levels = [float(ordered[min(int(np.searchsorted(enclosed, s)), BINS**2 - 1)]) for s in SHARES]
    if levels[1] <= levels[0]:
        return None
    centres = [(e[1:] + e[:-1]) / 2 for e in (x_edges, y_edges)]
    return centres[0], centres[1], mass, levels
