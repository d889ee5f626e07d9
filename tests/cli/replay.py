"""Feed the record of a run to a view, on the run's own clock.

python tests/cli/replay.py RUN --at 0.6 --svg docs/images/live-view.svg    draw the live view
python tests/cli/replay.py RUN --delay 0.05                                watch it in a terminal
"""

import argparse
import io
import json
import time
from pathlib import Path

from scalerl.cli.view import make_view
from scalerl.curves.live import LiveCurve
from scalerl.recipe import Recipe


class Clock:
    """Shows the time at which the record was written."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def follow(self, record, devices):
        ledger = record.get("ledger", {})
        seconds = ledger.get("device_seconds", 0.0) + ledger.get("validation_seconds", 0.0)
        self.now = max(self.now, seconds / devices)


def events(run):
    """The records of steps and validations in the order they were written."""
    found = []
    for order, name in enumerate(("steps", "evals")):
        for line in (run / f"{name}.jsonl").read_text().splitlines():
            record = json.loads(line)
            found.append((record["step"], order, record))
    return [(order == 1, record) for _, order, record in sorted(found, key=lambda e: e[:2])]


def replay(view, run, *, at=1.0, clock=None, delay=0.0, recipe=None, out=Path("runs/first")):
    """Up to the share `at` of the run's steps."""
    recipe = recipe or Recipe.load(str(run / "recipe.toml"))
    devices = recipe.placement.generators + recipe.placement.trainers
    recorded = events(run)
    steps = max(record["step"] for _, record in recorded)
    budget = recipe.budget.steps or steps
    curve = LiveCurve("pass_rate", "gpu_hours")
    view.begin(recipe, out, None)
    for is_eval, record in recorded:
        if record["step"] > at * budget:
            break
        if clock is not None:
            clock.follow(record, devices)
        if is_eval:
            curve.add(record["step"], record["compute"]["device_hours"], record["pass_rate"])
            view.evaluated(record, curve.look(curve.end(budget)))
        else:
            view.step(record)
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
