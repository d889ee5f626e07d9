"""Figures of several runs: all curves in one picture, and the paper's efficiency re-plot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scalerl.curves.backtest import BacktestResult
from scalerl.curves.compare import Comparison, known_r0, with_ceiling
from scalerl.curves.formula import Sigmoid
from scalerl.curves.result import Fit
from scalerl.report import words
from scalerl.report.figures import known_ceiling
from scalerl.report.series import DrawnCurve, Points, downsample, series_of_runs
from scalerl.report.theme import (
    MARKERS,
    Theme,
    ThemeName,
    compute_axis,
    drawing,
    new_figure,
    save,
    score_limits,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]

#: Up to this many runs are named at the end of their line; more need a legend.
DIRECT_LABELS = 6
#: Up to this many runs have room for their bands, and this many a name in the legend.
BANDS = 4
LEGEND = 30
#: Points drawn of one run, when there are many runs.
FEW_POINTS = 40
#: A ceiling suits a run if the error of its fit grows by no more than this factor.
SUITS = 1.5
#: F as the page's caption defines it.
EFFICIENCY_AXIS = "F(R) = C_mid^B (R − R_0) / (A − R), log scale"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plot_comparison(comparison: Comparison, path: str | Path | None = None) -> Figure:
    """All runs and their forecasts; each solid line ends where its fitted window ends."""
    return plot_runs(series_of_runs(comparison.fits), path, title=comparison_title(comparison))


def plot_runs(
    drawn: Sequence[DrawnCurve],
    path: str | Path | None = None,
    theme: ThemeName = "light",
    title: str = "",
    truth: float | None = None,
) -> Figure:
    """Curves that are measured in one kind of compute; `truth` is the ceiling that all have by
    construction of their task."""
    with drawing(theme) as t:
        fig, ax = new_figure((8.0, 4.8 if len(drawn) <= 12 else 6.4))
        _runs_limits(ax, drawn, truth)
        for i, s in enumerate(drawn):
            _draw_run(ax, s, i, t, len(drawn))
        compute_axis(ax, drawn[0].x_kind, t)
        ax.set_ylabel("pass rate")
        if truth is not None:
            known_ceiling(ax, truth, t)
        if title:
            ax.set_title(title)
        ends = [(float(s.x[-1]), float(s.median[-1])) for s in drawn]
        _name_lines(fig, ax, ends, [_label(s) for s in drawn], t)
        return save(fig, path)


def comparison_title(comparison: Comparison) -> str:
    """What the picture of a comparison shows, as its title."""
    if len(comparison.pairs) == 1:
        pair = comparison.pairs[0]
        if pair.verdict == "undecided":
            return words.shorten(f"{pair.a} and {pair.b}: {words.verdict(pair)}", 76)
        return words.shorten(words.verdict(pair), 76)
    return f"{len(comparison.fits)} runs and their forecasts"


def _runs_limits(ax: Axes, drawn: Sequence[DrawnCurve], truth: float | None) -> None:
    lines = [[s.used[1], s.held[1], s.median] for s in drawn]
    if len(drawn) <= BANDS:
        lines += [[s.band.ravel()] for s in drawn]
    lines += [] if truth is None else [[np.array([truth])]]
    score_limits(ax, np.concatenate([y for line in lines for y in line]), 0.05)
    measured = np.concatenate([x for s in drawn for x in (s.used[0], s.held[0])])
    first = float(measured[measured > 0].min())
    ax.set_xlim(first / 1.12, max(float(s.x[-1]) for s in drawn) * 1.02)
    ax.set_xscale("log")


def _label(s: DrawnCurve) -> str:
    name = words.shorten(s.name, 26)
    if s.alarm is not None:
        return f"{name}\nALARM: in decline"
    if s.ceiling is not None:
        return f"{name}\nceiling {s.ceiling[0]:.3f}"
    return f"{name}\nceiling not identified"


def _draw_run(ax: Axes, s: DrawnCurve, i: int, t: Theme, total: int) -> None:
    colour, marker = t.colour(i), MARKERS[i % len(MARKERS)]
    crowd = total > DIRECT_LABELS
    if total <= BANDS:
        ax.fill_between(s.x, *s.band.T, color=colour, alpha=0.16, lw=0)
    edge = ax.get_xlim()[0]
    for (x, y), face in ((s.used, colour), (s.held, "none")):
        # Many points would cover the line: they are smaller and paler.
        size, width, alpha = (2.0, 0.5, 0.3) if crowd or len(x) > 100 else (3.6, 0.8, 0.75)
        x, y = downsample(x, y, FEW_POINTS if crowd else 400)
        # ln 0 is not on the axis: an evaluation at zero compute sits on the left edge.
        x = np.maximum(x, edge)
        ax.plot(x, y, marker, ms=size, mfc=face, mec=colour, mew=width, alpha=alpha)
    width = 1.2 if crowd else 2.2
    ax.plot(s.x[s.inside], s.median[s.inside], color=colour, lw=width)
    ax.plot(s.x[s.ahead], s.median[s.ahead], color=colour, lw=0.7 * width, ls=(0, (4, 2)))
    ax.plot(
        [s.end],
        [s.median[s.inside][-1]],
        color=colour,
        marker=marker,
        ms=4 if crowd else 6,
        lw=width,
        label=words.shorten(s.name, 34) + ("  (ALARM)" if s.alarm else ""),
    )


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near `values`, in their order, at least `gap` apart, and inside [low, high] where
    there is room."""
    order = np.argsort(values, kind="stable")
    y = np.asarray(values, dtype=np.float64)[order]
    # Push up from the lowest; if that leaves the top, push down again from there.
    for i in range(1, len(y)):
        y[i] = max(y[i], y[i - 1] + gap)
    if len(y) and y[-1] > high:
        y[-1] = high
        for i in range(len(y) - 2, -1, -1):
            y[i] = min(y[i], y[i + 1] - gap)
    y = np.maximum(y, low + gap * np.arange(len(y)))
    out = np.empty(len(y))
    out[order] = y
    return [float(v) for v in out]


def _name_lines(
    fig: Figure, ax: Axes, ends: list[tuple[float, float]], labels: list[str], t: Theme
) -> None:
    """Labels of two lines to the right of the axes, each joined to the end of its curve; of many
    curves a legend, with the labels that they were drawn with."""
    if len(ends) > DIRECT_LABELS:
        _legend(fig, ax, t)
        return
    bottom, top = ax.get_ylim()
    # A label of two lines takes 0.38 inches; the axes are three quarters of the figure high.
    gap = (top - bottom) * 0.38 / (0.75 * fig.get_figheight())
    ys = spread([y for _, y in ends], gap, bottom + gap / 2, top - gap / 2)
    for i, ((x, y), at, label) in enumerate(zip(ends, ys, labels, strict=True)):
        ax.annotate(
            label,
            (x, y),
            (1.03, at),
            textcoords=ax.get_yaxis_transform(),
            va="center",
            fontsize=8.5,
            color=t.ink,
            arrowprops={
                "arrowstyle": "-",
                "color": t.colour(i),
                "lw": 0.9,
                "relpos": (0, 0.5),
                "shrinkA": 3,
            },
            annotation_clip=False,
        )


def _legend(fig: Figure, ax: Axes, t: Theme) -> None:
    narrow = fig.get_figwidth() < 7.0
    handles, labels = ax.get_legend_handles_labels()
    more = len(labels) - LEGEND
    if more > 0:
        # The last entry stands for all that have no room.
        labels[LEGEND - 1] = f"… and {more + 1} more"
    fig.legend(
        handles[:LEGEND],
        labels[:LEGEND],
        loc="outside lower center",
        ncols=1 if narrow else 2 if len(labels) <= 16 else 3,
        fontsize=7.5 if len(labels) <= 16 else 6.5,
        labelcolor=t.ink,
    )


def refit_with_ceiling(fit: Fit, a: float) -> Sigmoid:
    """The run refitted with its ceiling fixed to `a`, R_0 known as the paper has it."""
    return with_ceiling(fit, known_r0(fit), a)


def ceiling_fits(fit: Fit, law: Sigmoid) -> bool:
    """Whether the run can have this law's ceiling: it does not fit much worse with it, and most of
    its points lie between R_0 and the ceiling."""
    points = fit.points
    rmse = float(np.sqrt(np.mean((law.value(points.compute) - points.score) ** 2)))
    drawable = len(law.efficiency(points.compute, points.score)[0])
    # 0.002: a fit that is nearly exact may grow by a larger factor and still suit.
    return rmse <= SUITS * fit.law_rmse + 0.002 and drawable > len(points) / 2


@dataclass(frozen=True, slots=True, eq=False)
class EfficiencyLine:
    """The runs of a recipe, or a single run, with their ceiling fixed: ln F = B ln C."""

    name: str
    #: The mean of its runs.
    B: float
    #: The smallest and the largest compute of its runs.
    ends: Array
    #: Compute and log10 F of all its runs.
    points: Points
    #: Share of its runs with points that allow this ceiling.
    suits: float


def efficiency_lines(groups: Iterable[tuple[str, Sequence[Fit]]], a: float) -> list[EfficiencyLine]:
    """The line of each group of runs, refitted with the ceiling `a`."""
    found = []
    for name, fits in groups:
        laws = [refit_with_ceiling(f, a) for f in fits]
        both = list(zip(fits, laws, strict=True))
        b = float(np.mean([law.B for law in laws]))
        parts = [law.efficiency(f.points.compute, f.points.score) for f, law in both]
        x = np.concatenate([log_c for log_c, _ in parts])
        # Each run has a start of its own; the picture is of the slope.
        y = np.concatenate([f + (b - law.B) * c for (c, f), law in zip(parts, laws, strict=True)])
        order = np.argsort(x, kind="stable")
        compute = np.concatenate([f.points.compute[f.points.compute > 0] for f in fits])
        found.append(
            EfficiencyLine(
                name,
                b,
                np.array([compute.min(), compute.max()]),
                (np.exp(x[order]), y[order] / np.log(10.0)),
                float(np.mean([ceiling_fits(f, law) for f, law in both])),
            )
        )
    return found


def plot_efficiency(comparison: Comparison, size: tuple[float, float] | None = None) -> Figure:
    """The paper's re-plot: log F against log C with A fixed to the runs' mean. Each run becomes a
    straight line with its efficiency B as the slope. Of many runs only those are drawn that this
    ceiling suits: the slope of another says nothing."""
    a = comparison.mean_a
    lines = efficiency_lines([(f.name, [f]) for f in comparison.fits], a)
    suited = [line for line in lines if line.suits]
    few = ""
    # Of a few runs all are drawn: a missing one would be looked for.
    if len(lines) > DIRECT_LABELS and 2 <= len(suited) < len(lines):
        few = f" ({len(suited)} of {len(lines)} runs)"
        lines = suited
    return plot_efficiency_lines(lines, a, comparison.fits[0].run.x_kind, few, size)


def plot_efficiency_lines(
    lines: Sequence[EfficiencyLine],
    a: float,
    x_kind: str,
    few: str = "",
    size: tuple[float, float] | None = None,
) -> Figure:
    """log F against log C with the ceiling fixed at `a`: the steeper, the faster. `few` says in the
    title which lines are drawn."""
    with drawing("light") as t:
        fig, ax = new_figure(size or (8.0, 4.8 if len(lines) <= 12 else 6.4))
        for i, line in enumerate(lines):
            _draw_efficiency(ax, line, i, t, len(lines))
        heights = np.array([line.B * np.log10(line.ends) for line in lines])
        # Of many runs a few may be as good as vertical: they must not flatten all others.
        share = 0.0 if len(lines) <= DIRECT_LABELS else 0.05
        low, high = np.quantile(heights[:, 0], share), np.quantile(heights[:, 1], 1.0 - share)
        pad = 0.08 * (high - low + 0.1)
        ax.set_ylim(float(low - pad), float(high + pad))
        compute_axis(ax, x_kind, t)
        ax.yaxis.set_major_formatter(lambda v, _: power_of_ten(v))
        ax.set_ylabel(EFFICIENCY_AXIS)
        ax.set_title(f"Efficiency, A fixed at {a:.3f}{few}")
        labels = [f"{words.shorten(line.name, 26)}\nB = {line.B:.2f}" for line in lines]
        ends = zip((float(line.ends[1]) for line in lines), heights[:, 1].tolist(), strict=True)
        _name_lines(fig, ax, list(ends), labels, t)
        return fig


def power_of_ten(exponent: float) -> str:
    whole = round(exponent)
    if abs(exponent - whole) > 1e-6:
        return ""
    return "10" + str(whole).translate(_SUPERSCRIPT)


def _draw_efficiency(ax: Axes, line: EfficiencyLine, i: int, t: Theme, total: int) -> None:
    colour, marker = t.colour(i), MARKERS[i % len(MARKERS)]
    many = total > DIRECT_LABELS
    size, alpha = (2.2, 0.4) if many or len(line.points[0]) > 100 else (4.0, 0.8)
    x, y = downsample(*line.points, FEW_POINTS if many else 400)
    ax.plot(x, y, marker, ms=size, color=colour, alpha=alpha, mew=0)
    label = f"{words.shorten(line.name, 28)}  B = {line.B:.2f}"
    height = line.B * np.log10(line.ends)
    ax.plot(line.ends, height, color=colour, lw=1.1 if many else 2.0, label=label)


def plot_backtest(result: BacktestResult, path: str | Path | None = None) -> Figure:
    """One point a task and method; on the diagonal the median was right."""
    with drawing("light") as t:
        fig, ax = new_figure((6.0, 5.0))
        ends = (0.0, 1.0)
        ax.plot(ends, ends, color=t.muted, lw=0.9, ls=(0, (1, 2)))
        for i, row in enumerate(result.summary()):
            scores = [s for s in result.scores if s.method == row["method"]]
            ax.plot(
                [s.truth for s in scores],
                [s.median for s in scores],
                ls="",
                marker=MARKERS[i % len(MARKERS)],
                ms=5,
                color=t.colour(i),
                alpha=0.8,
                label=f"{row['method']}: median error {row['median_error']:.3f}",
            )
        every = [v for s in result.scores for v in (s.truth, s.median)]
        pad = 0.05 * max(max(every) - min(every), 0.02)
        ax.set_xlim(min(every) - pad, max(every) + pad)
        ax.set_ylim(min(every) - pad, max(every) + pad)
        ax.set_xlabel("pass rate at the end of the run")
        ax.set_ylabel("predicted (median)")
        tasks = len({(s.run, s.fraction) for s in result.scores})
        ax.set_title(f"Back-test, {tasks} tasks")
        fig.legend(loc="outside lower center", ncols=2, fontsize=8, labelcolor=t.ink)
        return save(fig, path)
