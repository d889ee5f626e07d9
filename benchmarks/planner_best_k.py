"""The best k of the default task on this machine, predicted and then run beside its neighbours.

    python benchmarks/planner_best_k.py predict    step time and staleness of each k, from the
                                                   calibration of planner_lab.py
    python benchmarks/planner_best_k.py confirm    runs the predicted k and its two neighbours

`confirm` refuses to run until the prediction is committed. The rule is that of `scalerl plan`: the
smallest k whose step is as fast as the fastest within the error of the simulation, because fresher
tokens never cost steps. What decides is the time to a pass rate, which no simulation knows: so the
runs are compared by that, and by the seconds of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from planner_lab import BASE, MAX_LOAD, kept_runs, train
from record import RESULTS, save
from scalerl.planner.calibrate import calibrate, reproduced
from scalerl.planner.simulate import simulate
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalLine
from scalerl.runs.reader import RunReader

PATH = RESULTS / "planner_best_k.json"
GRID = (1, 2, 3, 4, 6, 8)
#: Calibrations, and seeds of each k.
SEEDS = 3
#: Validations often enough to read the time to the target between two of them.
RUN_STEPS = 80
RUN = BASE | {"validation.every": 10, "budget.steps": RUN_STEPS}
#: Pass rate that all three reach well before the end of these runs.
TARGET = 0.4


def recipe_of(k: int, **changes: Any) -> Recipe:
    return Recipe.load("scalerl", "tiny").replace(RUN | {"schedule.k": k} | changes)


def predict() -> dict[str, Any]:
    """Step time and staleness of each k, and the k that is proposed."""
    # The latest calibrations: the speed of a machine drifts.
    calibrations = [reproduced(calibrate(path)) for path in kept_runs()[-SEEDS:]]
    rows = []
    for k in GRID:
        found = [simulate(recipe_of(k), c.world(recipe_of(k)), RUN_STEPS) for c in calibrations]
        row = {name: float(np.median([getattr(f, name) for f in found]))
               for name in ("step_seconds", "step_error", "staleness")}  # fmt: skip
        rows.append({"k": k} | row)
        print(f"k = {k}: {row['step_seconds']:.3f} s a step, staleness {row['staleness']:.2f}")
    fastest = min(rows, key=lambda row: row["step_seconds"])
    limit = fastest["step_seconds"] + 2 * fastest["step_error"]
    best = next(row["k"] for row in rows if row["step_seconds"] <= limit)
    print(f"proposed: k = {best}")
    return {"rows": rows, "proposed": best}


def run_once(k: int, seed: int, folder: Path) -> dict[str, float]:
    out = folder / f"{k}-{seed}"
    train(recipe_of(k, seed=seed), out)
    points = [line for line in RunReader(out).read(EvalLine) if line.pass_rate is not None]
    rates = np.maximum.accumulate([float(p.pass_rate or 0.0) for p in points])
    # Two devices: one generates, one trains.
    seconds = np.array([p.compute.device_hours for p in points]) * 3600 / 2
    if rates[-1] < TARGET:
        sys.exit(f"k = {k}, seed {seed}: {rates[-1]:.3f} at the end, below the target {TARGET}")
    at = int(np.argmax(rates >= TARGET))
    share = (TARGET - rates[at - 1]) / (rates[at] - rates[at - 1])
    measured = calibrate(out).measured
    return {
        "seconds_to_target": float(seconds[at - 1] + share * (seconds[at] - seconds[at - 1])),
        "step_seconds": measured["step_seconds"],
        "staleness": measured["staleness"],
    }


def confirm(predicted: dict[str, Any]) -> dict[str, Any]:
    """The proposed k and its neighbours, in turns, so that slow minutes hit all alike."""
    at = GRID.index(predicted["proposed"])
    chosen = GRID[max(min(at - 1, len(GRID) - 3), 0) :][:3]
    runs: dict[int, list[dict[str, float]]] = {k: [] for k in chosen}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(SEEDS):
            for k in chosen:
                runs[k].append(run_once(k, seed, Path(folder)))
                print(k, seed, runs[k][-1])
    medians = {
        str(k): {name: float(np.median([r[name] for r in each])) for name in each[0]}
        for k, each in runs.items()
    }
    first = min(medians, key=lambda k: medians[k]["seconds_to_target"])
    print(json.dumps(medians, indent=1), f"first at {TARGET}: k = {first}")
    return {"target": TARGET, "runs": {str(k): v for k, v in runs.items()}, "medians": medians,
            "first": int(first)}  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("part", choices=["predict", "confirm"])
    options.add_argument("--busy", action="store_true", help="measure beside other load")
    args = options.parse_args()
    if args.part == "predict":
        save("planner_best_k", {"predicted": predict()}, PATH)
        return
    if (
        not PATH.is_file()
        or subprocess.run(["git", "diff", "--quiet", "HEAD", "--", PATH]).returncode
    ):
        sys.exit("run `predict`, and commit its result, before `confirm`")
    if os.getloadavg()[0] > MAX_LOAD and not args.busy:
        sys.exit("the machine is busy: run this on an idle one")
    predicted = json.loads(PATH.read_text())["predicted"]
    save("planner_best_k", {"predicted": predicted, "measured": confirm(predicted)}, PATH)


if __name__ == "__main__":
    main()
