"""Draw docs/images/learning.svg from benchmarks/results/learning.json: every seed of the default
run, sampled and greedy, the forecast made at half its compute, the fitted and the constructed
ceiling."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

MISSED = "#b3261e"
ROOT = Path(__file__).parent
TARGET = ROOT / "images" / "learning.svg"
POINT, LATER, GREEDY, BAND, TRUTH = "#1b6ca8", "#9db8cc", "#4b9b62", "#d98a29", "#777777"


def draw() -> Figure:
    found = json.loads((ROOT.parent / "benchmarks" / "results" / "learning.json").read_text())
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
    draw().savefig(TARGET, metadata={"Date": None})
    print(TARGET.name)
