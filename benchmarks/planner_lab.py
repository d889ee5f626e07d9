"""Prediction against measurement: one calibration, ten other settings of the default run.

    python benchmarks/planner_lab.py calibrate    runs the base setting, in addition to earlier
                                                  calibrations: the speed of a machine drifts
    python benchmarks/planner_lab.py first        predicts five settings, runs them, saves both
    python benchmarks/planner_lab.py second       the same with five others
    python benchmarks/planner_lab.py third        the same with five more

The order is enforced: a part refuses to run until the result of the part before is committed, and
while the planner differs from that commit. So no term of the model can be chosen with the settings
in view that test it. After `second` two terms were changed (answers that a tighter budget cuts are
wrong; the loop's turn is bounded by its own CPU seconds), and all settings were run and predicted
again; so `third` alone is new to the model as it is. What was predicted of `second` before is in
planner_lab_second_blind.json. After `first` terms were changed (a short run is simulated whole,
from its first step; the loop's turn is the lower quartile of the trainer's waits; the trainer's
time is fitted to CPU seconds where cores are shared), and its settings were predicted again. What
was predicted of it before the last change is in planner_lab_first_blind.json.
Runs on an otherwise idle machine only (`--busy` overrides; times then mean nothing). Cores do not
help each other (idle_cores = wait): a core is a device here.

Another model width and tools with latency need a calibration of their own, because rates hold for
one model: planner_models.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from record import RESULTS, save
from scalerl.planner.calibrate import Calibration, calibrate, reproduced
from scalerl.planner.simulate import simulate
from scalerl.recipe import Recipe

ROOT = Path(__file__).parent.parent
#: Where the run of the calibration is kept between the parts.
KEPT = ROOT / "out" / "planner_lab"
STEPS = 40
#: Seeds of each setting: two runs of one setting differ by 5 to 10 %.
REPEATS = 3
#: Load of the machine above which nothing is measured.
MAX_LOAD = 0.5
BASE = {
    "placement.idle_cores": "wait", "validation.every": 1000, "checkpoint.every": 1000,
    "budget.steps": STEPS,
}  # fmt: skip
FIRST: dict[str, dict[str, Any]] = {
    "half the prompts": {"batch.prompts": 16},
    "off-policy-1": {"schedule.name": "off-policy", "schedule.k": 1},
    "two generators": {"placement.generators": 2},
    "8 generations": {"batch.generations": 8},
    "k = 1": {"schedule.k": 1},
}
SECOND: dict[str, dict[str, Any]] = {
    "k = 8": {"schedule.k": 8},
    "half as many prompts again": {"batch.prompts": 48},
    "thoughts of 24 to 32 tokens": {"length.think_tokens_min": 24, "length.think_tokens_max": 32},
    "off-policy-4": {"schedule.name": "off-policy", "schedule.k": 4},
    "all groups kept": {"filter.zero_variance": "keep"},
}
THIRD: dict[str, dict[str, Any]] = {
    "thoughts of 28 to 36 tokens": {"length.think_tokens_min": 28, "length.think_tokens_max": 36},
    "24 generations": {"batch.generations": 24},
    "k = 2, two generators": {"schedule.k": 2, "placement.generators": 2},
    "off-policy-2": {"schedule.name": "off-policy", "schedule.k": 2},
    "20 prompts, all groups kept": {"batch.prompts": 20, "filter.zero_variance": "keep"},
}
SETTINGS = {"first": FIRST, "second": SECOND, "third": THIRD}
#: The part whose result must be committed before.
BEFORE = {"second": "first", "third": "second"}
#: What is compared, and the largest error that is aimed at.
BARS = {"step_seconds": 0.15, "staleness": 0.25, "generator_wait": 0.10, "trainer_wait": 0.10}


def recipe_of(changes: dict[str, Any]) -> Recipe:
    return Recipe.load("scalerl", "tiny").replace(BASE | changes)


def train(recipe: Recipe, out: Path) -> None:
    """A run in a process of its own."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.parent / f"{out.name}.toml"
    file.write_text(recipe.to_toml())
    command = [sys.executable, "-m", "scalerl", "train", str(file), "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def predicted(calibrations: Sequence[Calibration], recipe: Recipe) -> dict[str, float]:
    """The prediction from the calibration: the median over its repeats."""
    found = [simulate(recipe, c.world(recipe), STEPS) for c in calibrations]
    return {name: float(np.median([getattr(f, name) for f in found])) for name in BARS}


def kept_runs() -> list[Path]:
    """The runs of the calibration."""
    return sorted(path for path in KEPT.glob("*") if path.is_dir())


def measure(changes: dict[str, Any], folder: Path, first: int = 0) -> dict[str, Any]:
    """Runs of a setting: medians, and the step seconds of each."""
    found = [
        one(changes | {"seed": seed}, folder / str(seed)) for seed in range(first, first + REPEATS)
    ]
    medians: dict[str, Any] = {name: float(np.median([f[name] for f in found])) for name in BARS}
    return medians | {"repeats": [f["step_seconds"] for f in found]}


def one(changes: dict[str, Any], out: Path) -> dict[str, float]:
    """What one run of a setting measures."""
    train(recipe_of(changes), out)
    return calibrate(out).measured


def compared(
    calibration: Sequence[Calibration], settings: dict[str, dict[str, Any]],
    known: dict[str, dict[str, Any]],
) -> list[dict[str, Any]]:  # fmt: skip
    # All predictions first: none is made with a measurement of the same part in view.
    with ProcessPoolExecutor() as pool:
        recipes = [recipe_of(changes) for changes in settings.values()]
        guesses = dict(
            zip(settings, pool.map(partial(predicted, calibration), recipes), strict=True)
        )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, changes) in enumerate(settings.items()):
            # A run of the base setting beside each setting: how far the machine has drifted.
            now = (
                known.get(name, {}).get("base_seconds")
                or one({"seed": i}, Path(folder) / f"base-{i}")["step_seconds"]
            )
            measured = known.get(name) or measure(changes, Path(folder) / str(i))
            measured["base_seconds"] = now
            guess = guesses[name]
            error = {n: guess[n] - measured[n] for n in BARS}
            error["step_seconds"] = guess["step_seconds"] / measured["step_seconds"] - 1
            rows.append({"setting": name, "predicted": guess, "measured": measured, "error": error})
            print(
                f"{name:<28} step {guess['step_seconds']:.3f} / {measured['step_seconds']:.3f} s "
                f"({error['step_seconds']:+.0%}), staleness {guess['staleness']:.2f} / "
                f"{measured['staleness']:.2f}, waits {error['generator_wait']:+.2f} "
                f"{error['trainer_wait']:+.2f}"
            )
    return rows


def check_order(part: str) -> None:
    """Refuse a part until the one before is committed, with the planner as it is now."""
    before = BEFORE[part]
    first = RESULTS / f"planner_lab_{before}.json"
    if not first.is_file():
        sys.exit(f"run `{before}`, and commit its result, before `{part}`")
    commit = _git("log", "-1", "--format=%H", "--", str(first))
    if not commit or _git("status", "--porcelain", "--", str(first)):
        sys.exit(f"the result of `{before}` is not committed: commit it before `{part}`")
    if _git(
        "diff", "--name-only", commit, "--", "src/scalerl/planner", "benchmarks/planner_lab.py"
    ):
        sys.exit(
            f"the planner has changed since {commit[:8]}, which holds the result of `{before}`: "
            "its terms must be fixed before the next five are run"
        )


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    steps = np.abs([row["error"]["step_seconds"] for row in rows])
    worst = {name: float(max(abs(r["error"][name]) for r in rows)) for name in BARS}
    return {"step_median": float(np.median(steps))} | {f"{n}_worst": v for n, v in worst.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("part", choices=["calibrate", *SETTINGS])
    options.add_argument(
        "--again", action="store_true", help="predict again what was measured; measure nothing"
    )
    options.add_argument("--busy", action="store_true", help="measure beside other load")
    args = options.parse_args()
    load = os.getloadavg()[0]
    if load > MAX_LOAD and not (args.busy or args.again):
        sys.exit(f"the machine is busy (load {load:.1f}): run this on an idle one")
    if args.part == "calibrate":
        number = len(kept_runs())
        print(json.dumps(measure({}, KEPT, number)))
        return
    if not kept_runs():
        sys.exit("run `calibrate` first")
    if args.part in BEFORE and not args.again:
        check_order(args.part)
    with ProcessPoolExecutor() as pool:
        calibration = list(pool.map(reproduced, [calibrate(path) for path in kept_runs()]))
    path = RESULTS / f"planner_lab_{args.part}.json"
    known = {}
    if args.again:
        known = {r["setting"]: r["measured"] for r in json.loads(path.read_text())["rows"]}
    rows = compared(calibration, SETTINGS[args.part], known)
    found = summary(rows)
    print(json.dumps(found, indent=1))
    own = [c.measured for c in calibration]
    base = {
        "predicted": predicted(calibration, recipe_of({})),
        "measured": {name: float(np.median([m[name] for m in own])) for name in BARS},
    }
    print(f"the calibration itself: {json.dumps(base)}")
    now = float(np.median([row["measured"]["base_seconds"] for row in rows]))
    found["drift"] = now / base["measured"]["step_seconds"] - 1
    print(f"the base setting beside these runs: {now:.3f} s a step, {found['drift']:+.0%}")
    save("planner_lab", {"rows": rows, "summary": found, "base": base}, path)


if __name__ == "__main__":
    main()
