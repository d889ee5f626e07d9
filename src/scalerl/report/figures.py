"""Figures of one run: its fit, a prediction, and the joint posterior of ceiling and C_mid.

They return a matplotlib Figure, and write it where they are given a path that ends in .png or .svg.
matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scalerl.curves.identified import NO_GAIN
from scalerl.curves.prediction import Prediction
from scalerl.curves.result import Fit
from scalerl.errors import InputError
from scalerl.report import words
from scalerl.report.series import Series, drawn_until, series
from scalerl.report.theme import (
    MARKERS,
    Theme,
    ThemeName,
    compute_axis,
    drawing,
    new_figure,
    note,
    save,
    score_limits,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]

SIZE = (8.0, 4.8)
#: Shares of the posterior inside the two contours.
SHARES = (0.9, 0.5)
BINS = 72
#: Smoothing, in bins.
SMOOTH = 2.4


def plot_fit(
    fit: Fit,
    path: str | Path | None = None,
    theme: ThemeName = "light",
    to: float | None = None,
    truth: float | None = None,
) -> Figure:
    """A run, its law inside the window and beyond, how sure that is, and where it ends. The picture
    goes to twice the compute spent, or to `to` if that is further; `truth` is a ceiling that is
    known by construction of the task.

    >>> from scalerl import fit, load_run
    >>> figure = plot_fit(fit(load_run("example:paper-8b"), lo=1500, hi=50_000))
    >>> figure.axes[0].get_xlabel()
    'GPU-hours, log scale'
    """
    s = series(fit, None if to is None else max(to, drawn_until(fit)))
    with drawing(theme) as t:
        fig, ax = new_figure(SIZE)
        labels = _interval_labels(fit.level)
        ax.fill_between(s.x, *s.seen.T, color=t.accent, alpha=0.10, lw=0, label=labels[0])
        ax.fill_between(s.x, *s.band.T, color=t.accent, alpha=0.25, lw=0, label=labels[1])
        if s.power is not None:
            ax.plot(
                s.x,
                s.power_curve(),
                color=t.second,
                lw=1.3,
                ls=(0, (5, 3)),
                label=f"power law, A = {s.power.A:.3f}",
            )
        label = f"{fit.law.title}, median"
        if len(s.law):
            alone = f"{fit.law.title} alone"
            ax.plot(s.x[: len(s.law)], s.law, color=t.ink, lw=1.0, ls=(0, (1, 1.5)), label=alone)
            label = "true pass rate, median"
        ax.plot(s.x[s.inside], s.median[s.inside], color=t.accent, lw=2.4, label=label)
        ax.plot(s.x[s.ahead], s.median[s.ahead], color=t.accent, lw=1.5)
        _limits(ax, s, truth)
        _points(ax, s, t)
        compute_axis(ax, fit.run.x_kind, t)
        _window_end(ax, fit, t)
        _breaks(ax, fit, t)
        _early(ax, fit, t)
        _ceiling(ax, fit, t)
        if truth is not None:
            known_ceiling(ax, truth, t)
        _c_mid(ax, fit, t)
        ax.set_ylabel("pass rate")
        fig.legend(loc="outside lower center", ncols=3, fontsize=8, labelcolor=t.ink)
        ax.set_title(words.shorten(fit.name, 60), pad=18)
        _banner(fig, fit.alarm, t)
        return save(fig, path)


def _interval_labels(level: float) -> tuple[str, str]:
    return f"{words.percent(level)}: one evaluation", f"{words.percent(level)}: true pass rate"


def known_ceiling(ax: Axes, truth: float, t: Theme) -> None:
    """The ceiling that the task has by construction, as a labelled line."""
    ax.axhline(truth, color=t.muted, lw=1.1, ls=(0, (6, 2, 1, 2)))
    side = ax.get_yaxis_transform()
    said = f"ceiling by construction {words.score(truth)}"
    note(ax, 0.01, truth, said, t, va="bottom", transform=side)


def _limits(ax: Axes, s: Series, truth: float | None) -> None:
    """Axes that hold every point, the curve and its band, and the ceilings if there are any."""
    scores = np.concatenate([s.used[1], s.held[1], s.band.ravel(), s.median, s.law])
    scores = scores if truth is None else np.append(scores, truth)
    if s.fit.identified:
        scores = np.append(scores, s.fit.interval("A"))
    score_limits(ax, scores, 0.06)
    positive = s.fit.run.compute[s.fit.run.compute > 0]
    ax.set_xlim(float(min(positive[0], s.x[0])) / 1.12, float(s.x[-1]) * 1.02)


def _points(ax: Axes, s: Series, t: Theme) -> None:
    edge = ax.get_xlim()[0]
    # From about 80 points on, large ones would cover the curve.
    size = 4.2 if len(s.used[0]) + len(s.held[0]) < 80 else 2.8
    kinds = ((s.used, t.ink, "points fitted"), (s.held, "none", "points held out"))
    for (x, y), face, label in kinds:
        if not len(x):
            continue
        # ln 0 is not on the axis: an evaluation at zero compute sits on its left edge.
        ax.plot(
            np.maximum(x, edge),
            y,
            ls="",
            marker="o",
            ms=size,
            mfc=face,
            mec=t.ink,
            mew=0.9,
            alpha=0.85,
            clip_on=False,
            zorder=3,
            label=label,
        )
    if s.fit.run.compute[0] == 0:
        ax.annotate(
            "C = 0",
            (edge, s.fit.run.score[0]),
            (6, -3),
            textcoords="offset points",
            fontsize=7.5,
            color=t.muted,
            va="top",
        )


def _window_end(ax: Axes, fit: Fit, t: Theme) -> None:
    ax.axvline(fit.end, color=t.muted, lw=0.9, ls=(0, (1, 2)))
    across = ax.get_xaxis_transform()
    note(ax, fit.end, 1.01, "fitted | forecast", t, transform=across, ha="center", va="bottom")


def _breaks(ax: Axes, fit: Fit, t: Theme) -> None:
    for at in fit.run.breaks:
        ax.axvline(at, color=t.muted, lw=1.2, ls=(0, (4, 2)))
        across = ax.get_xaxis_transform()
        note(ax, at, 0.01, "changed ", t, transform=across, ha="right", va="bottom")


def _early(ax: Axes, fit: Fit, t: Theme) -> None:
    """What is probably not the law's yet, the greyer the more probably."""
    for share, probability in fit.early:
        if share > 0.0:
            ax.axvspan(ax.get_xlim()[0], share * fit.end, color=t.muted, alpha=0.25 * probability,
                       lw=0, zorder=0)  # fmt: skip
    begins = fit.law_begins
    if begins > ax.get_xlim()[0]:
        across = ax.get_xaxis_transform()
        note(ax, begins, 0.99, "early phase ", t, transform=across, ha="right", va="top")


def _ceiling(ax: Axes, fit: Fit, t: Theme) -> None:
    """The ceiling's line, bracket and number if it is identified; otherwise the words."""
    side = ax.get_yaxis_transform()
    level = words.percent(fit.level)
    if fit.identified:
        a = fit.params["A"]
        low, high = fit.interval("A")
        ax.axhline(a, color=t.accent, lw=0.9, ls=(0, (2, 2)))
        ax.plot([1.012] * 2, [low, high], transform=side, color=t.accent, lw=3, clip_on=False)
        text = f"ceiling {a:.3f}\n{level}: {low:.3f}\nto {high:.3f}"
        ax.text(1.026, a, text, transform=side, va="center", fontsize=8.5, color=t.ink)
        return
    if fit.alarm is not None:
        text = "no ceiling:\nrun in decline"
    elif fit.no_gain >= NO_GAIN:
        text = "no gain seen;\na rise cannot\nbe excluded"
    elif not fit.law.identifiable:
        text = "ceiling not\nidentified" if "A" in fit.params else "no ceiling"
    else:
        low, high = fit.interval("A")
        bottom, top = ax.get_ylim()
        text = f"ceiling not\nidentified\n{level}: {words.ceiling_range(fit)}".replace(
            " or", "\nor"
        )
        if low < top:
            # An arrow, where the interval leaves the picture.
            end = min(high, top)
            ax.annotate(
                "",
                (1.012, end),
                (1.012, max(low, bottom)),
                xycoords=side,
                arrowprops={
                    "arrowstyle": "->" if high > top else "-",
                    "color": t.accent,
                    "lw": 1.4,
                    "ls": (0, (2, 1.5)),
                    "shrinkA": 0,
                    "shrinkB": 0,
                },
                annotation_clip=False,
            )
    ax.text(1.026, 0.97, text, transform=ax.transAxes, va="top", fontsize=8.5, color=t.muted)


def _c_mid(ax: Axes, fit: Fit, t: Theme) -> None:
    mid = fit.params.get("C_mid")
    low, high = ax.get_xlim()
    if mid is None or fit.alarm is not None or not low < mid < high:
        return
    across = ax.get_xaxis_transform()
    ax.plot([mid, mid], [0.0, 0.045], transform=across, color=t.accent, lw=1.6)
    name = f"C_mid {words.compute(mid)}"
    note(ax, mid, 0.055, name, t, transform=across, ha="center", va="bottom")


def _banner(fig: Figure, alarm: str | None, t: Theme) -> None:
    """The alarm, if there is one, above everything else."""
    if alarm is None:
        return
    fig.suptitle(
        textwrap.fill(f"ALARM  {alarm}", 100),
        x=0.02,
        ha="left",
        fontsize=9,
        fontweight="bold",
        color=t.paper,
        bbox={"boxstyle": "square,pad=0.5", "fc": t.alarm, "ec": "none"},
    )


def plot_prediction(prediction: Prediction, path: str | Path | None = None) -> Figure:
    """The prediction at its amounts of compute: bands if there are many, bars if there are few."""
    order = np.argsort(prediction.compute, kind="stable")
    x = prediction.compute[order]
    median = prediction.median[order]
    true, seen = prediction.interval()[order], prediction.interval(observed=True)[order]
    labels = _interval_labels(prediction.level)
    with drawing("light") as t:
        fig, ax = new_figure(SIZE)
        # More numbers beside their points would overlap.
        if len(x) > 8:
            ax.fill_between(x, *seen.T, color=t.accent, alpha=0.10, lw=0, label=labels[0])
            ax.fill_between(x, *true.T, color=t.accent, alpha=0.25, lw=0, label=labels[1])
            ax.plot(x, median, color=t.accent, lw=2.2, label="median")
        else:
            ax.vlines(x, *seen.T, color=t.accent, lw=1.2, alpha=0.55, label=labels[0])
            ax.vlines(x, *true.T, color=t.accent, lw=6, alpha=0.45, label=labels[1])
            ax.plot(x, median, color=t.accent, lw=1, marker="o", ms=6, label="median")
            for c, m in zip(x, median, strict=True):
                ax.annotate(f"{m:.3f}", (c, m), (9, 0), textcoords="offset points", va="center")
        now = prediction.median_now
        ax.axhline(now, color=t.muted, lw=0.9, ls=(0, (1, 2)))
        side = ax.get_yaxis_transform()
        note(ax, 1.01, now, f"now {now:.3f}", t, transform=side, va="center")
        positive = x[x > 0]
        if len(positive):
            ax.set_xlim(positive[0] / 1.25, x[-1] * 1.35)
            compute_axis(ax, "unknown", t)
        ax.set_xlabel("compute, log scale")
        ax.set_ylabel("pass rate")
        ax.set_title(f"Prediction for {words.shorten(prediction.run, 50)}", pad=12)
        _banner(fig, prediction.alarm, t)
        fig.legend(loc="outside lower center", ncols=3, fontsize=8, labelcolor=t.ink)
        return save(fig, path)


# -- ceiling and C_mid together --------------------------------------------------------------------


def plot_joint(
    fit: Fit | Sequence[Fit],
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
    with drawing("light") as t:
        fig, ax = new_figure(size or (6.0, 4.6))
        corners = np.array([_draw_joint(ax, f, i, t) for i, f in zip(places, shown, strict=True)])
        _joint_limits(ax, corners)
        compute_axis(ax, shown[0].run.x_kind, t)
        ax.set_xlabel(f"C_mid, {words.KIND[shown[0].run.x_kind]}")
        ax.set_ylabel("ceiling A")
        title = "Ceiling and C_mid together"
        if len(fits) == 1:
            title = words.shorten(shown[0].name, 30)
            title += "" if shown[0].identified else ": ceiling not identified"
        else:
            fig.legend(loc="outside lower center", fontsize=7.5, labelcolor=t.ink)
        ax.set_title(title)
        return fig


def has_joint(fit: Fit) -> bool:
    """Whether the fit has samples of a ceiling and a C_mid."""
    return fit.law.identifiable and "C_mid" in fit.params


def _joint_limits(ax: Axes, corners: Array) -> None:
    """Axes that hold the outer contours, of which `corners` has (ln C_mid, A) low and high."""
    (x_low, y_low), (x_high, y_high) = corners[:, 0].min(axis=0), corners[:, 1].max(axis=0)
    # Lower bounds of the span: a posterior without width would give axes without length.
    pad_x, pad_y = 0.08 * max(x_high - x_low, 0.2), 0.08 * max(y_high - y_low, 0.02)
    ax.set_xlim(np.exp(x_low - pad_x), np.exp(x_high + pad_x))
    ax.set_ylim(max(y_low - pad_y, 0.0), min(y_high + pad_y, 1.01))


def _draw_joint(
    ax: Axes, fit: Fit, i: int, t: Theme
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Draws one run; gives the lower left and upper right corner of its outer contour."""
    a, mid = fit.predictive.parameter("A"), fit.predictive.parameter("C_mid")
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
        # Far samples would stretch the grid until the contours are a few cells wide.
        low, high = np.quantile(v, (0.01, 0.99))
        if high - low < 1e-9:
            return None
        ranges.append((low - 0.15 * (high - low), high + 0.15 * (high - low)))
    counts, x_edges, y_edges = np.histogram2d(x, y, bins=BINS, range=ranges)
    mass = gaussian_filter(counts, SMOOTH).T
    ordered = np.sort(mass.ravel())[::-1]
    enclosed = np.cumsum(ordered) / ordered.sum()
    levels = [float(ordered[min(int(np.searchsorted(enclosed, s)), BINS**2 - 1)]) for s in SHARES]
    # All mass in one cell: contours need ascending levels.
    if levels[1] <= levels[0]:
        return None
    centres = [(e[1:] + e[:-1]) / 2 for e in (x_edges, y_edges)]
    return centres[0], centres[1], mass, levels
