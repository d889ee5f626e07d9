"""Draw docs/images/timeline.svg from a real run: when each worker works, and which weights wrote
each token.

python docs/draw_timeline.py    trains fourteen steps on the default task (a minute)
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import scalerl
from scalerl.recipe import Recipe
from scalerl.runs.listener import Listener

TARGET = Path(__file__).parent / "images" / "timeline.svg"
STEPS, FIRST, LAST = 14, 5, 11
SHOWN = 36
COLOURS = ["#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860"]


class Times(Listener):
    """The time of everything that happens."""

    def __init__(self) -> None:
        self.asked_at: dict[str, float] = {}
        #: Asked, finished, and the version of each token.
        self.rollouts: list[tuple[float, float, Any]] = []
        #: Began, ended, and the version it made.
        self.steps: list[tuple[float, float, int]] = []
        #: When each version was first heard of from a generator.
        self.switched: dict[int, float] = {}

    def asked(self, at: float, ids: Sequence[str]) -> None:
        self.asked_at |= dict.fromkeys(ids, at)

    def wrote(self, at: float, version: int, rollouts: Sequence[tuple[str, Any]]) -> None:
        self.switched.setdefault(version, at)
        self.rollouts += [(self.asked_at[name], at, r.versions) for name, r in rollouts]

    def trained(self, began: float, ended: float, version: int) -> None:
        self.steps.append((began, ended, version))


def watch() -> Times:
    recipe = Recipe.load(
        "scalerl", "tiny",
        overrides=[f"budget.steps={STEPS}", "batch.prompts=16", "batch.generations=16",
                   "validation.every=1000", "validation.prompts=8", "validation.k=1"],
    )  # fmt: skip
    times = Times()
    with tempfile.TemporaryDirectory() as folder:
        scalerl.train(recipe, folder, listener=times)
    return times


def draw(run: Times) -> Figure:
    spans = [t for t in run.steps if FIRST <= t[2] <= LAST]
    begin, end = spans[0][0] - 0.1, spans[-1][1] + 0.1
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1, 7])
    for start, stop, version in spans:
        top.barh(0, stop - start, left=start - begin, height=0.7, color=_colour(version))
        top.text((start + stop) / 2 - begin, 0, f"→ {version}", ha="center", va="center",
                 color="white", fontsize=8)  # fmt: skip
    top.set_yticks([0], ["trainer"])
    top.set_title(
        "The trainer makes version after version; rollouts in flight change weights on the way",
        fontsize=10,
    )
    inside = [r for r in run.rollouts if r[0] > begin and r[1] < end and len(r[2])]
    step = max(len(inside) // SHOWN, 1)
    for row, (asked, done, versions) in enumerate(sorted(inside[::step], key=lambda r: r[0])):
        _bar(bottom, row, asked, done, versions, run.switched, begin)
    bottom.set_yticks([])
    bottom.invert_yaxis()
    bottom.set_ylabel("rollouts, by the time they were asked for")
    bottom.set_xlabel("seconds")
    bottom.set_xlim(0, end - begin)
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _bar(
    axes: Any, row: int, asked: float, done: float, versions: Any, switched: Any, begin: float
) -> None:
    """One rollout, in the colours of the versions that wrote it."""
    seen = sorted(set(versions.tolist()))
    edges = [asked, *(min(max(switched.get(v, done), asked), done) for v in seen[1:]), done]
    for version, left, right in zip(seen, edges[:-1], edges[1:], strict=True):
        axes.barh(row, right - left, left=left - begin, height=0.75, color=_colour(version))


def _colour(version: int) -> str:
    return COLOURS[version % len(COLOURS)]


def main() -> None:
    figure = draw(watch())
    figure.savefig(TARGET, metadata={"Date": None})
    print(TARGET.name)


if __name__ == "__main__":
    main()
