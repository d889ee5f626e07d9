"""A force as a picture: level, C_mid and share of unstable runs against the dose, a colour for each
line, with 90 % intervals.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.report import words
from scalerl.report.theme import MARKERS, Theme, ThemeName, drawing, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from scalerl.study.dose_draws import Interval
    from scalerl.study.dose_results import CellResult, ForceResults, LineResult

#: In inches: three axes below each other, as wide as the text of a page.
SIZE = (6.4, 6.8)
#: Heights of the three axes relative to each other.
HEIGHTS = (3, 1.6, 1.6)
#: Distance between the marks of two lines at one dose, as a share of the axis.
APART = 0.012
#: Characters of a line of the title.
TITLE = 68
#: Characters of a line's name in the legend.
NAME = 28
Value = tuple[float, float, float]


def plot_force(
    found: ForceResults, path: str | Path | None = None, theme: ThemeName = "light"
) -> Figure:
    """Draw `Study.force_results()`: one panel of three axes."""
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with drawing(theme) as t:
        fig = NewFigure(figsize=SIZE, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06))
        level, mid, unstable = fig.subplots(3, 1, sharex=True, height_ratios=HEIGHTS)
        ceiling = all(line.kind == "ceiling" for line in found.lines)
        _curves(level, found.lines, (lambda c: c.ceiling) if ceiling else (lambda c: c.end), t)
        level.set_ylabel("ceiling A" if ceiling else "pass rate at the end")
        _verdicts(level, found.lines, t)
        _curves(mid, found.lines, _mid, t)
        mid.set_yscale("log")
        mid.yaxis.set_major_formatter(lambda v, _: words.compute(v))
        mid.yaxis.set_minor_formatter(lambda v, _: "")
        mid.set_ylabel("C_mid")
        _curves(unstable, found.lines, lambda c: _shares(c) if c.runs else None, t)
        unstable.set_ylim(-0.05, 1.05)
        unstable.set_ylabel("P(unstable)")
        _dose_axis(unstable, found)
        question = words.shorten(found.force.question, 2 * TITLE)
        level.set_title(textwrap.fill(question, TITLE, break_on_hyphens=False), fontsize=9.5)
        if len(level.get_legend_handles_labels()[1]) > 1:
            fig.legend(loc="outside lower center", ncols=3, fontsize=8.5, labelcolor=t.ink)
        return save(fig, path)


def _mid(cell: CellResult) -> Interval | None:
    # Without a climb there is no middle of it: such an end is the prior's.
    return cell.c_mid if cell.c_mid is not None and math.isfinite(cell.c_mid[2]) else None


def _shares(cell: CellResult) -> Value:
    low, _, high = cell.p_unstable
    return low, cell.unstable / cell.runs, high


def _curves(
    ax: Axes,
    lines: Sequence[LineResult],
    value: Callable[[CellResult], Value | None],
    t: Theme,
) -> None:
    """The marks of every line with their intervals, joined where doses follow each other."""
    for i, line in enumerate(lines):
        shift = APART * (i - (len(lines) - 1) / 2)
        found = [(c.place + shift, v) for c in line.cells if (v := value(c)) is not None]
        if not found:
            continue
        x, values = [place for place, _ in found], [v for _, v in found]
        colour = t.colour(i)
        ax.vlines(x, [v[0] for v in values], [v[2] for v in values], color=colour, lw=1.2,
                  alpha=0.6)  # fmt: skip
        label = words.shorten(line.name, NAME) if ax.get_subplotspec().is_first_row() else None  # type: ignore[union-attr]
        ax.plot(x, [v[1] for v in values], color=colour, lw=1.1, marker=MARKERS[i % len(MARKERS)],
                ms=4.5, label=label)  # fmt: skip
    ax.grid(axis="y", color=t.faint, linewidth=0.8)


def _verdicts(ax: Axes, lines: Sequence[LineResult], t: Theme) -> None:
    """A bar at the foot of the axes over the doses at which a line falls."""
    foot = 0
    for i, line in enumerate(lines):
        if line.falls_at is None:
            continue
        low, middle, high = line.falls_at
        y = 0.02 + 0.022 * foot
        foot += 1
        how: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "color": t.colour(i)}
        ax.plot([low, min(high, 1.0)], [y, y], lw=3, alpha=0.5, solid_capstyle="butt", **how)
        ax.plot([middle], [y], marker="|", ms=7, mew=2, ls="", **how)


def _dose_axis(ax: Axes, found: ForceResults) -> None:
    # A line of a study of some cells may lack a dose that another has.
    ticks = {c.place: c.cell.dose.label for line in found.lines for c in line.cells}
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.set_xlim(-0.05, 1.05)
    ax.set_xlabel(found.force.dose_key)
