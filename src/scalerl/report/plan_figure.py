"""The picture of a plan: placements with their step times and waits, the pass rate against days,
and three steps in detail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scalerl.report.theme import Theme, ThemeName, drawing, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from scalerl.planner.plan import Plan
    from scalerl.planner.timeline import Timeline

SIZE = (10.0, 6.6)
#: Points of the curve against days.
POINTS = 60


def plot_plan(
    plan: Plan, timeline: Timeline, path: str | Path | None = None, theme: ThemeName = "light"
) -> Figure:
    """Draw a plan; returns the figure."""
    from matplotlib import pyplot as plt

    with drawing(theme) as t:
        fig = plt.figure(figsize=SIZE, layout="constrained")
        grid = fig.add_gridspec(2, 2, height_ratios=[3, 2])
        _placements(fig.add_subplot(grid[0, 0]), plan, t)
        _days(fig.add_subplot(grid[0, 1]), plan, t)
        _timeline(fig.add_subplot(grid[1, :]), timeline, t)
        return save(fig, path)


def _placements(ax: Axes, plan: Plan, t: Theme) -> None:
    """Step time of each placement as an interval, and which side waits."""
    steps = plan.steps[::-1]
    names = [f"{s.placement.split}  {s.placement.schedule_text}" for s in steps]
    for i, step in enumerate(steps):
        low, mid, high = step.interval()
        colour = t.accent if step is plan.best else t.muted
        ax.plot([low, high], [i, i], color=colour, lw=5, alpha=0.35, solid_capstyle="butt")
        ax.plot([mid], [i], "o", color=colour)
        g, w = np.median(step.generator_wait), np.median(step.trainer_wait)
        ax.annotate(f"{g:.0%} / {w:.0%}", (high, i), xytext=(6, 0), textcoords="offset points",
                    va="center", fontsize=8, color=t.muted)  # fmt: skip
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.set_xlim(0, 1.25 * max(s.interval()[2] for s in steps))
    ax.set_xlabel("seconds of a step: median and 90 %; generators / trainer wait", fontsize=8)
    ax.set_title("placements")


def _days(ax: Axes, plan: Plan, t: Theme) -> None:
    """Steps, or the pass rate by the curve, against days."""
    seconds = plan.seconds_per_step
    last = plan.days or 7.0
    days = np.linspace(last / POINTS, 1.5 * last, POINTS)
    if plan.outlook is None:
        values = days[:, None] * 86400 / seconds[None, :]
        ax.set_ylabel("optimiser steps")
    else:
        values = plan.outlook.pass_rates(days * 86400, seconds)
        ax.set_ylabel("pass rate")
        for target in plan.outlook.targets:
            ax.axhline(target.score, color=t.second, lw=1.0, ls=(0, (5, 3)))
    low, mid, high = np.quantile(values, [0.05, 0.5, 0.95], axis=1)
    ax.fill_between(days, low, high, color=t.accent, alpha=0.25, lw=0)
    ax.plot(days, mid, color=t.accent)
    if plan.days is not None:
        ax.axvline(plan.days, color=t.muted, lw=1.0)
    ax.set_xlabel("days: median and 90 %", fontsize=8)
    ax.set_title(f"{plan.best.placement.split}, {plan.best.placement.schedule_text}")


def _timeline(ax: Axes, timeline: Timeline, t: Theme) -> None:
    """Three steps: the trainer above, groups from their request to their last answer below."""
    for begin, end in timeline.steps:
        ax.broken_barh([(begin, end - begin)], (0, 2), color=t.accent)
        ax.axvline(end, color=t.faint, lw=1.0, zorder=0)
    for i, (begin, end) in enumerate(timeline.groups):
        ax.broken_barh([(begin, end - begin)], (-1.5 - i, 0.8), color=t.second, alpha=0.6)
    ax.set_yticks([1, -1 - len(timeline.groups) / 2], ["trainer", "groups"])
    ax.set_xlabel("seconds; weights are published at each line", fontsize=8)
    ax.set_title("three steps, simulated")
