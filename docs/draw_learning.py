"""Draw docs/images/learning.svg and games.svg from benchmarks/results/learning.json and games.json:
every seed of the default run and of the embedded games, the forecast made at half its compute, and
the constructed ceiling."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

MISSED = "#b3261e"
ROOT = Path(__file__).parent
RESULTS = ROOT.parent / "benchmarks" / "results"
POINT, LATER, GREEDY, BAND, TRUTH = "#1b6ca8", "#9db8cc", "#4b9b62", "#d98a29", "#777777"


def draw_games() -> Figure:
    """A panel for each game and recipe, with a line for each seed."""
    found = json.loads((RESULTS / "games.json").read_text())
    figure = Figure(figsize=(11, 2.8), layout="constrained")
    grid = figure.subplots(1, len(found["runs"]), sharey=True)
    for axes, (name, runs) in zip(grid, found["runs"].items(), strict=True):
        for run in runs:
            compute, score = run["curve"]
            end = compute[-1]
            axes.plot([c / end for c in compute], score, "o-", ms=2.5, lw=0.8, color=POINT)
            low, high = run["forecast_90"]
            axes.errorbar(
                1.0 + 0.03 * run["seed"], run["forecast"],
                [[run["forecast"] - low], [high - run["forecast"]]],
                fmt="_", ms=6, lw=1.5, color=BAND, zorder=3,
            )  # fmt: skip
        axes.axvline(0.5, color=TRUTH, lw=0.6, ls=":")
        axes.axhline(runs[0]["truth"], color=TRUTH, lw=0.8, ls="--")
        axes.set_title(name, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(0, 1)
    figure.supxlabel("share of the run's compute", fontsize=9)
    figure.supylabel("pass rate", fontsize=9)
    figure.suptitle(
        "Three seeds each. Orange: forecast of the end from the first half (90 %). Dashed: the "
        "constructed ceiling",
        fontsize=10,
    )
    return figure


def draw() -> Figure:
    found = json.loads((RESULTS / "learning.json").read_text())
    runs = found["runs"]["default"]
    columns = min(len(runs), 5)
    figure = Figure(figsize=(11, 2.3 * -(-len(runs) // columns)), layout="constrained")
    grid = figure.subplots(
        -(-len(runs) // columns), columns, sharex=True, sharey=True, squeeze=False
    )
    for axes, run in zip(grid.ravel(), runs, strict=False):
        compute, score = run["curve"]
        end = compute[-1]
        axes.plot([c / end for c in compute], run["greedy_curve"], lw=1.2, color=GREEDY, zorder=1)
        for c, s in zip(compute, score, strict=True):
            axes.plot(c / end, s, "o", ms=3, color=POINT if c <= end / 2 else LATER)
        low, high = run["forecast_90"]
        axes.errorbar(
            1.0, run["forecast"], [[run["forecast"] - low], [high - run["forecast"]]],
            fmt="_", ms=10, lw=2, color=BAND, zorder=3,
        )  # fmt: skip
        axes.axvline(0.5, color=TRUTH, lw=0.6, ls=":")
        axes.axhline(run["truth"], color=TRUTH, lw=0.8, ls="--")
        a_low, a_high = run["ceiling_90"]
        axes.set_title(
            f"seed {run['seed']}: A {run['ceiling']:.3f} [{a_low:.2f}, {a_high:.2f}]",
            fontsize=9, color="black" if run["ceiling_covered"] else MISSED,
        )  # fmt: skip
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(0, 1)
    figure.supxlabel("share of the run's compute", fontsize=9)
    figure.supylabel("pass rate", fontsize=9)
    figure.suptitle(
        "The default run. Dots: at temperature 1. Green: greedy. Orange: forecast of the end from "
        "the dark dots (90 %).\nDashed: the constructed ceiling. A: the one fitted to all dots "
        "(90 %); red where that misses the truth",
        fontsize=10,
    )
    return figure


if __name__ == "__main__":
    for name, figure in (("learning", draw()), ("games", draw_games())):
        figure.savefig(ROOT / "images" / f"{name}.svg", metadata={"Date": None})
        print(f"{name}.svg")
