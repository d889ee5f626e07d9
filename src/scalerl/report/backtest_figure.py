"""The picture of a back-test: what each method predicted against what came."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.curves.backtest import BacktestResult
from scalerl.report.theme import MARKERS, ThemeName, drawing, new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        ax.set_title(
            f"Back-test, {tasks} tasks", loc="left", fontsize=11, fontweight="bold", pad=10
        )
        fig.legend(loc="outside lower center", ncols=2, fontsize=8, labelcolor=t.ink)
        return save(fig, path)
