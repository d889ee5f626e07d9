"""Prediction against measurement where rates do not carry over: a wider model, and a slow tool.

    python benchmarks/planner_models.py            both
    python benchmarks/planner_models.py tool       one; the rows of the other are kept

Rates hold for one model and one kind of episode. So each of the two has a calibration of its own,
from which its other settings are predicted, all before any of them is run. The wider model is
random, and all groups are kept: this is about seconds, not about learning. On an otherwise idle
machine only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from multi_turn import make_model
from planner_lab import BARS, BASE, MAX_LOAD, STEPS, summary, train
from record import RESULTS, save
from scalerl.planner.calibrate import Calibration, calibrate, reproduced
from scalerl.planner.simulate import simulate
from scalerl.planner.world import EnvironmentModel
from scalerl.recipe import Recipe

#: Runs of each setting.
REPEATS = 2
#: Width and layers of the wider model; the default one has 64 and 2.
SIZE = (128, 2)
#: Turns of an episode, tokens of a reply, and most tokens of a turn.
TURNS = 4
REPLY = 16
TURN_TOKENS = 12
KEEP = {"filter.zero_variance": "keep", "filter.empty_steps": 0, "curriculum.name": "uniform"}
#: Kind → setting → changes of the recipe; "seconds" are those of the tool's reply.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "width": {"k = 1": {"schedule.k": 1}, "half the prompts": {"batch.prompts": 16}},
    "tool": {
        "0.05 s": {"seconds": 0.05}, "0.3 s": {"seconds": 0.3},
        "0.05 s, k = 1": {"seconds": 0.05, "schedule.k": 1},
    },
}  # fmt: skip


def recipe_of(kind: str, changes: dict[str, Any], folder: Path) -> Recipe:
    changes = dict(changes)
    seconds = changes.pop("seconds", 0.0)
    base = Recipe.load("scalerl", "tiny").replace(BASE | KEEP)
    if kind == "width":
        return base.replace({"model.path": str(folder / "model")} | changes)
    settings = {"seconds": seconds, "turns": TURNS, "reply": REPLY}
    tool = {
        "task.name": "environment:slow_tools:SlowTool",
        "task.options": {"settings": settings, "held_out_share": 0.5},
        "environment.turns": TURNS, "environment.observation_tokens": REPLY,
        "length": {"control": "none", "max_tokens": TURN_TOKENS}, "placement.checkers": 64,
    }  # fmt: skip
    return base.replace(tool | changes)


def slower(environment: EnvironmentModel, seconds: float) -> EnvironmentModel:
    """The same environment with a tool that takes exactly these seconds more a reply."""
    whole = environment.seconds + seconds
    spread = environment.spread * environment.seconds / whole
    return replace(environment, seconds=whole, spread=spread)


def predicted(found: list[Calibration], recipe: Recipe, seconds: float) -> dict[str, float]:
    """The median over the calibration's repeats."""
    worlds = [c.world(recipe) for c in found]
    if seconds:
        worlds = [replace(w, environment=slower(w.environment, seconds)) for w in worlds]
    simulated = [simulate(recipe, world, STEPS) for world in worlds]
    return {name: float(np.median([getattr(s, name) for s in simulated])) for name in BARS}


def measure(kind: str, changes: dict[str, Any], folder: Path, out: Path) -> list[Calibration]:
    found = []
    for seed in range(REPEATS):
        train(recipe_of(kind, changes | {"seed": seed}, folder), out / str(seed))
        found.append(calibrate(out / str(seed)))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("kind", nargs="?", choices=list(SETTINGS))
    options.add_argument("--busy", action="store_true", help="measure beside other load")
    asked = options.parse_args()
    if os.getloadavg()[0] > MAX_LOAD and not asked.busy:
        sys.exit("the machine is busy: run this on an idle one")
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where the slow tool is
    rows = []
    if asked.kind:
        kept = json.loads((RESULTS / "planner_models.json").read_text())["rows"]
        rows = [row for row in kept if row["kind"] != asked.kind]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder, SIZE)
        for kind, settings in SETTINGS.items():
            if asked.kind not in (None, kind):
                continue
            base = [reproduced(c) for c in measure(kind, {}, folder, folder / kind / "base")]
            guesses = {
                setting: predicted(
                    base, recipe_of(kind, changes, folder), changes.get("seconds", 0)
                )
                for setting, changes in settings.items()
            }
            for i, (setting, changes) in enumerate(settings.items()):
                runs = measure(kind, changes, folder, folder / kind / str(i))
                measured = {n: float(np.median([c.measured[n] for c in runs])) for n in BARS}
                error = {n: guesses[setting][n] - measured[n] for n in BARS}
                error["step_seconds"] = (
                    guesses[setting]["step_seconds"] / measured["step_seconds"] - 1
                )
                rows.append({"kind": kind, "setting": setting, "predicted": guesses[setting],
                             "measured": measured, "error": error})  # fmt: skip
                print(kind, setting, json.dumps(rows[-1]["error"]))
    print(json.dumps(summary(rows), indent=1))
    save("planner_models", {"rows": rows, "summary": summary(rows)})


if __name__ == "__main__":
    main()
