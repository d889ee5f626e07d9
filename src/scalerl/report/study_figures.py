"""Figures of a study: the curves of all variants, and the paper's efficiency re-plot of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scalerl.report import words
from scalerl.report.comparison_figures import (
    EFFICIENCY_AXIS,
    ceiling_fits,
    legend,
    power_of_ten,
    refit_with_ceiling,
)
from scalerl.report.series import downsample, forecast_part
from scalerl.report.study_curves import FEW_POINTS, MemberCurve, Points, VariantCurve
from scalerl.report.theme import MARKERS, compute_axis, drawing, freeze_layout, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Variants with a band, and variants in the efficiency re-plot: one for each colour.
BANDS = 4
MAX_LINES = 7


def plot_variants(curves: Sequence[VariantCurve], size: tuple[float, float] = (8.0, 5.4)) -> Figure:
    """All variants that could be fitted, in the light theme."""
    drawn = [c for c in curves if len(c.x)]
    with drawing("light") as t:
        fig, ax = new_figure(size)
        for i, c in enumerate(drawn):
            colour, marker = t.colour(i), MARKERS[i % len(MARKERS)]
            if len(drawn) <= BANDS:
                ax.fill_between(c.x, *c.band.T, color=colour, alpha=0.16, lw=0)
            for points, face in ((c.used, colour), (c.held, "none")):
                x, y = downsample(*points, FEW_POINTS)
                ax.plot(np.maximum(x, c.x[0]), y, ls="", marker=marker, ms=2.4, mfc=face,
                        mec=colour, mew=0.6, alpha=0.45)  # fmt: skip
            inside = c.x <= c.end
            ahead = forecast_part(inside)
            ax.plot(c.x[inside], c.median[inside], color=colour, lw=1.4, marker=marker, ms=5,
                    markevery=[int(inside.sum()) - 1],
                    label=words.shorten(c.name, 34))  # fmt: skip
            ax.plot(c.x[ahead], c.median[ahead], color=colour, lw=1.0, ls=(0, (4, 2)))
        if drawn:
            compute_axis(ax, drawn[0].x_kind, t)
        ax.set_ylabel("pass rate")
        title = f"{len(drawn)} variants, forecast from half of their compute"
        ax.set_title(title)
        legend(fig, ax, t)
        return freeze_layout(fig)


@dataclass(frozen=True, slots=True, eq=False)
class EfficiencyLine:
    """A variant with its ceiling fixed: ln F = B ln C."""

    name: str
    B: float
    #: log10 F against compute, of all its seeds.
    points: Points
    #: Share of its seeds with points that allow this ceiling.
    suits: float


def efficiency_lines(members: Sequence[MemberCurve]) -> tuple[float, list[EfficiencyLine]]:
    """The ceiling that all are refitted with (the mean of theirs), and the line of each variant:
    B is the mean of its seeds."""
    # F needs the sigmoid: other laws have no C_mid.
    fits = {m.name: m.fit for m in members if m.fit is not None and "C_mid" in m.fit.params}
    if not fits:
        return 0.0, []
    a = float(np.mean([f.params["A"] for f in fits.values()]))
    found = []
    for variant in dict.fromkeys(m.variant for m in members if m.name in fits):
        mine = [fits[m.name] for m in members if m.variant == variant and m.name in fits]
        laws = [refit_with_ceiling(f, a) for f in mine]
        parts = [
            law.efficiency(f.points.compute, f.points.score)
            for f, law in zip(mine, laws, strict=True)
        ]
        b = float(np.mean([law.B for law in laws]))
        # Each seed has a start of its own; the picture is of the slope.
        x = np.concatenate([log_c for log_c, _ in parts])
        y = np.concatenate([f + (b - law.B) * c for (c, f), law in zip(parts, laws, strict=True)])
        order = np.argsort(x, kind="stable")
        fitting = float(np.mean([ceiling_fits(f, law) for f, law in zip(mine, laws, strict=True)]))
        points = (np.exp(x[order]), y[order] / np.log(10.0))
        found.append(EfficiencyLine(variant, b, points, fitting))
    return a, found


def chosen(lines: Sequence[EfficiencyLine]) -> list[EfficiencyLine]:
    """Those that can have this ceiling, and as many as there are colours; the reference first."""
    # Half of the seeds: the line is their mean.
    able = [line for line in lines if len(line.points[0]) and line.suits >= 0.5]
    return able[:MAX_LINES]


def plot_study_efficiency(
    lines: Sequence[EfficiencyLine], a: float, x_kind: str, size: tuple[float, float] = (5.4, 4.4)
) -> Figure:
    """log F against log C with A fixed: the steeper, the faster. In the light theme."""
    with drawing("light") as t:
        fig, ax = new_figure(size)
        for i, line in enumerate(lines):
            colour, marker = t.colour(i), MARKERS[i % len(MARKERS)]
            x, y = downsample(*line.points, FEW_POINTS)
            ends = line.points[0][[0, -1]]
            ax.plot(x, y, ls="", marker=marker, ms=3, color=colour, alpha=0.4, mew=0)
            ax.plot(ends, line.B * np.log10(ends), color=colour, lw=1.5, marker=marker, ms=5,
                    label=f"{words.shorten(line.name, 28)}  B = {line.B:.2f}")  # fmt: skip
        compute_axis(ax, x_kind, t)
        ax.yaxis.set_major_formatter(lambda v, _: power_of_ten(v))
        ax.set_ylabel(EFFICIENCY_AXIS)
        title = f"Efficiency, A fixed at {a:.3f}"
        ax.set_title(title)
        legend(fig, ax, t)
        return freeze_layout(fig)
