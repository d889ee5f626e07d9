"""Feed the record of a run to a view, on the run's own clock.

python tests/cli/replay.py RUN --at 0.6 --svg docs/images/live-view.svg    draw the live view
python tests/cli/replay.py RUN --delay 0.05                                watch it in a terminal
"""

import argparse
import io
import time
from pathlib import Path

from scalerl.cli.view import make_view
from scalerl.curves.live import LiveCurve
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.store import RunStore


class Clock:
    """Shows the time at which a line was written."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def follow(self, line):
        self.now = max(self.now, 60.0 * line.compute.minutes)


def events(run):
    """The lines of steps and validations in the order they were written."""
    store = RunStore(run, resume=True)
    lines = [*store.read(StepLine), *store.read(EvalLine)]
    return sorted(lines, key=lambda line: (line.step, isinstance(line, EvalLine)))


def replay(view, run, *, at=1.0, clock=None, delay=0.0, recipe=None, out=Path("runs/first")):
    """Up to the share `at` of the run's steps."""
    recipe = recipe or Recipe.load(str(run / "recipe.toml"))
    recorded = events(run)
    budget = recipe.budget.steps or max(line.step for line in recorded)
    curve = LiveCurve("pass_rate", "gpu_hours")
    view.begin(recipe, out, None)
    for line in recorded:
        if line.step > at * budget:
            break
        if clock is not None:
            clock.follow(line)
        if isinstance(line, EvalLine):
            curve.add(line.step, line.compute.device_hours, line.pass_rate)
            view.evaluated(line, curve.forecast(curve.end(budget)))
        else:
            view.step(line)
        time.sleep(delay)


def draw(run, at, path):
    """The panel at one moment, as rich draws it."""
    from rich.console import Console

    from scalerl.cli.live_view import LiveView

    size = {"width": 80, "height": 40, "force_terminal": True}
    clock = Clock()
    picture = Console(record=True, file=io.StringIO(), **size)
    with LiveView(Console(file=io.StringIO(), **size), clock) as view:
        replay(view, run, at=at, clock=clock)
        picture.print(view.panel())
    path.write_text(picture.export_svg(title="scalerl train", unique_id="live"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--at", type=float, default=1.0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--raise", dest="fails", action="store_true")
    args = parser.parse_args()
    if args.svg:
        draw(args.run, args.at, args.svg)
        return
    with make_view() as view:
        replay(view, args.run, at=args.at, delay=args.delay)
        if args.fails:
            raise KeyboardInterrupt
        view.end("replayed")


if __name__ == "__main__":
    main()
