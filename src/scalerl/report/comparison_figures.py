"""Figures of several runs: all curves in one picture, and the paper's efficiency re-plot."""

from __future__ import annotations

from collections.abc import Sequence
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
from scalerl.report.series import Series, downsample, series_of_runs
from scalerl.report.theme import (
    MARKERS,
    Theme,
    ThemeName,
    compute_axis,
    drawing,
    new_figure,
    save,
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


def plot_comparison(
    comparison: Comparison,
    path: str | Path | None = None,
    theme: ThemeName = "light",
    size: tuple[float, float] | None = None,
) -> Figure:
    """All runs and their forecasts; each solid line ends where its fitted window ends."""
    return plot_runs(
        series_of_runs(comparison.fits), path, theme, size, comparison_title(comparison)
    )


def plot_runs(
    drawn: Sequence[Series],
    path: str | Path | None = None,
    theme: ThemeName = "light",
    size: tuple[float, float] | None = None,
    title: str = "",
    truth: float | None = None,
) -> Figure:
    """The curves of runs that are measured in one kind of compute; `truth` is the ceiling that all
    have by construction of their task."""
    named = len(drawn) <= DIRECT_LABELS
    with drawing(theme) as t:
        fig, ax = new_figure(size or (8.0, 4.8 if len(drawn) <= 12 else 6.4))
        _runs_limits(ax, drawn, truth)
        for i, s in enumerate(drawn):
            _draw_run(ax, s, i, t, len(drawn))
        compute_axis(ax, drawn[0].fit.run.x_kind, t)
        ax.set_ylabel("pass rate")
        if truth is not None:
            known_ceiling(ax, truth, t)
        if title:
            ax.set_title(title)
        if named:
            ends = [(float(s.x[-1]), float(s.median[-1])) for s in drawn]
            _name_lines(fig, ax, ends, [_label(s.fit) for s in drawn], t)
        else:
            legend(fig, ax, t)
        return save(fig, path)


def comparison_title(comparison: Comparison) -> str:
    """What the picture of a comparison shows, as its title."""
    if len(comparison.pairs) == 1:
        pair = comparison.pairs[0]
        if pair.verdict == "undecided":
            return words.shorten(f"{pair.a} and {pair.b}: {words.verdict(pair)}", 76)
        return words.shorten(words.verdict(pair), 76)
    return f"{len(comparison.fits)} runs and their forecasts"


def _runs_limits(ax: Axes, drawn: Sequence[Series], truth: float | None) -> None:
    lines = [[s.used[1], s.held[1], s.median] for s in drawn]
    if len(drawn) <= BANDS:
        lines += [[s.band.ravel()] for s in drawn]
    lines += [] if truth is None else [[np.array([truth])]]
    scores = np.concatenate([y for line in lines for y in line])
    pad = 0.05 * max(float(np.ptp(scores)), 0.02)
    ax.set_ylim(max(float(scores.min()) - pad, -0.02), min(float(scores.max()) + pad, 1.02))
    first = min(float(s.fit.run.compute[s.fit.run.compute > 0][0]) for s in drawn)
    ax.set_xlim(first / 1.12, max(float(s.x[-1]) for s in drawn) * 1.02)
    ax.set_xscale("log")


def _label(fit: Fit) -> str:
    name = words.shorten(fit.name, 26)
    if fit.alarm is not None:
        return f"{name}\nALARM: in decline"
    if fit.identified:
        return f"{name}\nceiling {fit.params['A']:.3f}"
    return f"{name}\nceiling not identified"


def _draw_run(ax: Axes, s: Series, i: int, t: Theme, total: int) -> None:
    colour, marker = t.colour(i), MARKERS[i % len(MARKERS)]
    crowd = total > DIRECT_LABELS
    if total <= BANDS:
        ax.fill_between(s.x, *s.band.T, color=colour, alpha=0.16, lw=0)
    edge = ax.get_xlim()[0]
    for (x, y), face in ((s.used, colour), (s.held, "none")):
        dense = crowd or len(x) > 100
        x, y = downsample(x, y, FEW_POINTS if crowd else 400)
        ax.plot(
            # ln 0 is not on the axis: an evaluation at zero compute sits on the left edge.
            np.maximum(x, edge),
            y,
            ls="",
            marker=marker,
            ms=2.0 if dense else 3.6,
            mfc=face,
            mec=colour,
            mew=0.5 if dense else 0.8,
            alpha=0.3 if dense else 0.75,
        )
    width = 1.2 if crowd else 2.2
    ax.plot(s.x[s.inside], s.median[s.inside], color=colour, lw=width)
    ax.plot(s.x[s.ahead], s.median[s.ahead], color=colour, lw=0.7 * width, ls=(0, (4, 2)))
    ax.plot(
        [s.fit.end],
        [s.median[s.inside][-1]],
        color=colour,
        marker=marker,
        ms=4 if crowd else 6,
        lw=width,
        label=words.shorten(s.fit.name, 34) + ("  (ALARM)" if s.fit.alarm else ""),
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
    """Labels of two lines to the right of the axes, each joined to the end of its curve."""
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


def legend(fig: Figure, ax: Axes, t: Theme) -> None:
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


def plot_efficiency(
    comparison: Comparison,
    path: str | Path | None = None,
    theme: ThemeName = "light",
    size: tuple[float, float] | None = None,
) -> Figure:
    """The paper's re-plot: log F against log C with A fixed to the runs' mean. Each run becomes a
    straight line with its efficiency B as the slope. Of many runs only those are drawn that this
    ceiling suits: the slope of another says nothing."""
    fits, a = comparison.fits, comparison.mean_a
    laws = [refit_with_ceiling(f, a) for f in fits]
    title = f"Efficiency, A fixed at {a:.3f}"
    chosen = [i for i, (f, law) in enumerate(zip(fits, laws, strict=True)) if ceiling_fits(f, law)]
    # Of a few runs all are drawn: a missing one would be looked for.
    if len(fits) > DIRECT_LABELS and 2 <= len(chosen) < len(fits):
        title += f" ({len(chosen)} of {len(fits)} runs)"
        fits, laws = tuple(fits[i] for i in chosen), [laws[i] for i in chosen]
    with drawing(theme) as t:
        fig, ax = new_figure(size or (8.0, 4.8 if len(fits) <= 12 else 6.4))
        ends = []
        for i, (f, law) in enumerate(zip(fits, laws, strict=True)):
            ends.append(_efficiency_line(ax, f, law, i, t, len(fits)))
        # Of many runs a few may be as good as vertical: they must not flatten all others.
        share = 0.0 if len(fits) <= DIRECT_LABELS else 0.05
        low = float(np.quantile([e[2] for e in ends], share))
        high = float(np.quantile([e[3] for e in ends], 1.0 - share))
        pad = 0.08 * (high - low + 0.1)
        ax.set_ylim(low - pad, high + pad)
        compute_axis(ax, fits[0].run.x_kind, t)
        ax.yaxis.set_major_formatter(lambda v, _: power_of_ten(v))
        ax.set_ylabel(EFFICIENCY_AXIS)
        ax.set_title(title)
        if len(fits) <= DIRECT_LABELS:
            labels = [
                f"{words.shorten(f.name, 26)}\nB = {law.B:.2f}"
                for f, law in zip(fits, laws, strict=True)
            ]
            _name_lines(fig, ax, [(x, y) for x, y, _, _ in ends], labels, t)
        else:
            legend(fig, ax, t)
        return save(fig, path)


def power_of_ten(exponent: float) -> str:
    whole = round(exponent)
    if abs(exponent - whole) > 1e-6:
        return ""
    return "10" + str(whole).translate(_SUPERSCRIPT)


def _efficiency_line(
    ax: Axes, fit: Fit, law: Sigmoid, i: int, t: Theme, total: int
) -> tuple[float, float, float, float]:
    """Draws one run; gives the end of its line and the range of F over the line."""
    points = fit.points
    colour, marker = t.colour(i), MARKERS[i % len(MARKERS)]
    crowd = total > DIRECT_LABELS or len(points) > 100
    log_c, log_f = law.efficiency(points.compute, points.score)
    log_c, log_f = downsample(log_c, log_f, FEW_POINTS if total > DIRECT_LABELS else 400)
    x = points.compute[points.compute > 0][[0, -1]]
    y = law.B * np.log(x) / np.log(10.0)
    ax.plot(
        np.exp(log_c),
        log_f / np.log(10.0),
        ls="",
        marker=marker,
        ms=2.2 if crowd else 4,
        color=colour,
        alpha=0.4 if crowd else 0.8,
        mew=0,
    )
    label = f"{words.shorten(fit.name, 28)}  B = {law.B:.2f}"
    ax.plot(x, y, color=colour, lw=1.1 if total > DIRECT_LABELS else 2.0, label=label)
    return float(x[-1]), float(y[-1]), float(y[0]), float(y[-1])


def plot_backtest(
    result: BacktestResult, path: str | Path | None = None, theme: ThemeName = "light"
) -> Figure:
    """One point a task and method; on the diagonal the median was right."""
    with drawing(theme) as t:
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
