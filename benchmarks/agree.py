"""Does the curve of a run on a Ray cluster with two FSDP2 ranks and two generators agree with that
of one machine's processes?

python benchmarks/agree.py OUT            three seeds into OUT (those that are there go on); saves
python benchmarks/agree.py OUT --judge    compares what is there; saves

Each run repeats the recipe of a recorded one (docs/replication/recipes), seed by seed, and changes
its placement only. `scalerl compare` says what it would say to anybody, by generated tokens and by
FLOPs: no clock of this machine is in the comparison. FLOPs count what went through the trainer, and
several ranks pad their rows where one process packs them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from record import save

RECORDED = Path(__file__).parents[1] / "docs" / "replication" / "recipes" / "runs"
SEEDS = (0, 1, 2)
AXES = ("generated_tokens", "flops")
ON_RAY = ("placement.backend=ray", "placement.trainers=2", "placement.generators=2",
          "placement.trainer=auto")  # fmt: skip


def recorded(seed: int) -> Path:
    return RECORDED / f"scalerl+tiny-s{seed}"


def run(out: Path, seed: int) -> None:
    """One run to its end; it may have begun earlier."""
    command = [sys.executable, "-m", "scalerl", "train"]
    if (out / "recipe.toml").exists():
        command += ["--resume", str(out)]
    else:
        command += [str(recorded(seed) / "recipe.toml"), *ON_RAY, "--out", str(out)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def evals(run: Path) -> list[dict[str, Any]]:
    path = run / "evals.jsonl"
    return [json.loads(line) for line in path.open()] if path.exists() else []


def judge(out: Path) -> dict[str, Any]:
    """The six curves, and the verdict of `scalerl compare` on the two placements."""
    runs = {("local", seed): recorded(seed) for seed in SEEDS}
    runs |= {("ray", seed): out / f"ray-s{seed}" for seed in SEEDS}
    curves = {(where, seed): evals(path) for (where, seed), path in runs.items()}
    # Of unequal length, both sides are compared as far as the shortest goes.
    last = min(found[-1]["step"] for found in curves.values() if found)
    table = out / "curves.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["run", "recipe", *AXES, "pass_rate", "n_eval"])
        for (where, seed), found in curves.items():
            for e in found:
                if e["step"] <= last:
                    compute, n = [e["compute"][axis] for axis in AXES], e["n_prompts"] * e["k"]
                    rows.writerow([f"{where}-s{seed}", where, *compute, e["pass_rate"], n])
    return {
        "steps": last,
        "runs": {
            f"{where}-s{seed}": {"pass_rate": [e["pass_rate"] for e in found]}
            | {axis: [e["compute"][axis] for e in found] for axis in AXES}
            for (where, seed), found in curves.items() if found
        },
        "compare": {axis: compared(table, axis) for axis in AXES},
    }  # fmt: skip


def compared(table: Path, axis: str) -> Any:
    command = [sys.executable, "-m", "scalerl", "compare", str(table), "--x", axis,
               "--y", "pass_rate", "--n-eval", "n_eval", "--group-by", "recipe",
               "--json"]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--judge", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for seed in () if arguments.judge else SEEDS:
        run(arguments.out / f"ray-s{seed}", seed)
    result = judge(arguments.out)
    for axis, found in result["compare"].items():
        pair = found["pairs"][0]
        print(f"by {axis}: {pair['verdict']} (p of the same ceiling {pair['p_same_ceiling']:.2f})")
    save("agree", result, options="OUT")


if __name__ == "__main__":
    main()
