"""Draw docs/images/architecture.svg: training, forecasting, the run record between them, and the
paths of a prompt (numbers) and of a CSV row (letters).

python docs/draw_architecture.py
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from scalerl.report.theme import Theme, drawing, new_figure, save

TARGET = Path(__file__).parent / "images" / "architecture.svg"
#: Size of the axes, in units that fit the positions below.
WIDTH = 120.0
HEIGHT = 74.0


class Picture:
    """Boxes and arrows on axes that are WIDTH × HEIGHT units large."""

    def __init__(self, axes: Axes, theme: Theme) -> None:
        self.axes, self.theme = axes, theme

    def box(
        self, x: float, y: float, w: float, h: float, title: str, *lines: str, colour: str = ""
    ) -> None:
        edge = colour or self.theme.muted
        style = FancyBboxPatch(
            (x, y), w, h, boxstyle="round,pad=0,rounding_size=1", lw=1.3, ec=edge,
            fc=edge + "18" if colour else self.theme.paper,
        )  # fmt: skip
        self.axes.add_patch(style)
        self.axes.text(x + w / 2, y + h - 2.6, title, ha="center", va="center", weight="bold")
        for i, line in enumerate(lines):
            self.small(x + w / 2, y + h - 5.4 - 2.5 * i, line)

    def small(self, x: float, y: float, text: str, ha: str = "center") -> None:
        self.axes.text(x, y, text, ha=ha, va="center", fontsize=7.6, color=self.theme.muted)

    def frame(self, x: float, y: float, w: float, h: float, title: str, about: str) -> None:
        """A dashed frame around boxes: a package."""
        border = FancyBboxPatch(
            (x, y), w, h, boxstyle="round,pad=0,rounding_size=1.4", lw=1.0, ls="--",
            ec=self.theme.muted, fc="none",
        )  # fmt: skip
        self.axes.add_patch(border)
        self.axes.text(x + 1.5, y + h - 2.3, title, va="center", weight="bold")
        self.small(x + 2.5 + 1.0 * len(title), y + h - 2.4, about, ha="left")

    def arrow(
        self, start: tuple[float, float], end: tuple[float, float], stop: str = "", text: str = "",
        *, bend: float = 0.0, at: tuple[float, float] | None = None, colour: str = "",
        ha: str = "center",
    ) -> None:  # fmt: skip
        colour = colour or self.theme.ink
        self.axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=10, lw=1.3, color=colour,
                shrinkA=0, shrinkB=0, connectionstyle=f"arc3,rad={bend}",
            )
        )  # fmt: skip
        x, y = at or ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        if stop:
            self.axes.text(
                x, y, stop, ha="center", va="center", fontsize=7.4, color="white", weight="bold",
                bbox={"boxstyle": "circle,pad=0.25", "fc": colour, "ec": "none"}, zorder=4,
            )  # fmt: skip
        if text:
            shift = {"center": (0.0, 2.4), "left": (2.0, 0.0), "right": (-2.0, 0.0)}[ha]
            self.small(x + shift[0], y + shift[1], text, ha=ha)


def draw(picture: Picture) -> None:
    theme = picture.theme
    prompt, row, record = theme.colour(0), theme.colour(1), theme.colour(2)
    training(picture, prompt)
    picture.box(
        2, 25, 116, 8.5, "THE RUN RECORD   runs/",
        "recipe.toml    steps.jsonl    evals.jsonl    evals/    episodes/    events.jsonl    "
        "checkpoints/    "
        "the only thing that both halves share",
        colour=record,
    )  # fmt: skip
    forecasting(picture, prompt, row)


def training(p: Picture, colour: str) -> None:
    """Above the record: prompts, generation, scoring and training."""
    p.box(2, 60, 15, 11, "recipe/", "what a run is:", "TOML, typed")
    p.box(2, 42, 15, 12, "tasks/", "prompts, and", "how an answer", "is checked")
    p.frame(20, 38, 26, 34, "pipeline/", "the loop")
    p.box(23, 56, 20, 10, "intake", "draws prompts in time", "intake.py, schedule.py")
    p.box(23, 41, 20, 10, "rollouts", "groups in progress", "rollouts.py, episodes.py")
    p.frame(
        49, 38, 69, 34, "placement/",
        "where the workers run: processes | Ray | one process, virtual clock",
    )  # fmt: skip
    p.box(52, 45, 17, 15, "generators", "engine/", "write turns:", "token, log-prob,", "version")
    p.box(75, 45, 15, 15, "checkers", "tasks/: scores", "environments/:", "replies to turns")
    p.box(
        96, 45, 19, 15, "trainer", "algorithm/: loss", "trainer/: gradient,", "optimiser step,",
        "version + 1",
    )  # fmt: skip
    p.arrow((17, 65.5), (20, 65.5))
    p.arrow((17, 48), (23, 59), "1", colour=colour)
    p.arrow((33, 56), (33, 51), colour=colour)
    p.arrow((43, 46), (52, 49.5), "2", colour=colour)
    p.arrow((69, 54.5), (75, 54.5), "3", colour=colour)
    p.arrow((75, 48.5), (69, 48.5), "2", colour=colour)
    p.arrow((90, 52.5), (96, 52.5), "4", colour=colour)
    p.arrow((104, 45), (61, 45), "4", bend=-0.12, at=(82.5, 42.45), colour=colour)
    p.small(82.5, 40.2, "weights/: new weights reach rollouts in flight")
    p.arrow((82.5, 60), (43, 62.5), bend=0.14)
    p.small(64, 62.2, "pass rates")
    p.arrow((109, 45), (109, 33.5), "5", at=(109, 35.9), colour=colour)
    p.small(106.8, 35.6, "one line per step and per validation", ha="right")


def forecasting(p: Picture, prompt: str, row: str) -> None:
    """Below it: logs, fits and the report, without torch."""
    p.box(
        2,
        8,
        26,
        12,
        "logs of other frameworks",
        "CSV, JSONL, Parquet, W&B,",
        "TensorBoard, trackio,",
        "trainer_state.json",
    )
    p.box(
        34,
        8,
        22,
        12,
        "importers",
        "runs/importers/, runs/load.py",
        "columns, runs, units, order",
        "→ Run: compute, score",
    )
    p.box(62, 8, 22, 12, "curves/", "fit → forecast → compare", "ceiling, speed,", "with intervals")
    p.box(
        90,
        8,
        28,
        12,
        "report/, cli/",
        "tables, figures,",
        "one self-contained page;",
        "live view, stop rules",
    )
    p.arrow((28, 14), (34, 14), "a", colour=row)
    p.arrow((56, 14), (62, 14), "b", colour=row)
    p.arrow((84, 14), (90, 14), "c", colour=row)
    p.arrow((45, 25), (45, 20), "", colour=prompt)
    p.small(46, 22.6, "scalerl fit RUN", ha="left")
    p.arrow((73, 25), (73, 20), "6", colour=prompt)
    p.small(75, 22.6, "after every validation", ha="left")
    p.small(60, 3.6, "numbers: a prompt, from sampling to the fitted curve      "
            "letters: a CSV row, to the report")  # fmt: skip


def main() -> None:
    with drawing("light") as theme:
        figure, axes = new_figure((10.6, 6.55))
        axes.set(xlim=(0, WIDTH), ylim=(1, HEIGHT))
        axes.axis("off")
        draw(Picture(axes, theme))
        save(figure, TARGET)
    print(TARGET.name)


if __name__ == "__main__":
    main()
