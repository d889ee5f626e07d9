"""Do the two sides really overlap? Rollouts of equal length, the hardest case: all end at once.

    python benchmarks/overlap.py [--steps 30] [--rounds 3]

16 prompts x 8 rollouts of exactly 32 tokens, by `scalerl train` under both schedules (the work of
benchmarks/against_trl.py, case "fixed"). A step should take what the slower of the two sides works
for it: `ratio` is the step's time over that. Under off-policy-1 the sides take turns by definition,
and the ledger's waits say so. Training is the longer side here, and the generator's core is idle
for part of the time: `alone` is without its help (placement.idle_cores=wait).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from against_trl import CASES, workplace
from record import save

HERE = Path(__file__).parent
ALONE = "placement.idle_cores=wait"
SYNCHRONOUS = ["schedule.name=off-policy", "schedule.k=1"]
SCHEDULES = {"pipeline-3": ["schedule.k=3"], "pipeline-3, alone": ["schedule.k=3", ALONE],
             "pipeline-1": ["schedule.k=1"], "off-policy-1": SYNCHRONOUS,
             "off-policy-1, alone": [*SYNCHRONOUS, ALONE]}  # fmt: skip
SKIP = 5


def train(out: Path, settings: dict[str, Any], changes: list[str], steps: int) -> dict[str, float]:
    subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny",
         *(f"{k}={v}" for k, v in settings.items()), *changes,
         "checkpoint.every=1000", "--steps", str(steps),
         "--out", str(out), "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    first, last, count = lines[SKIP - 1]["ledger"], lines[-1]["ledger"], len(lines) - SKIP
    spent = {k: (last["spent"][k] - first["spent"][k]) / count for k in last["spent"]}
    seconds = (last["device_seconds"] - first["device_seconds"]) / 2 / count
    slower = max(spent["generate"] + spent["hand_over"], spent["train"])
    stale = [line["staleness"]["mean"] for line in lines[SKIP:]]
    return spent | {"seconds": seconds, "slower": slower, "ratio": seconds / slower,
                    "staleness": sum(stale) / len(stale)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SCHEDULES}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        settings = workplace(folder, CASES["fixed"])
        for i in range(args.rounds):
            for name, changes in SCHEDULES.items():
                found[name].append(
                    train(folder / f"{name}-{i}".replace(", ", "-"), settings, changes, args.steps)
                )
                print(f"{name} {i}: {found[name][-1]['seconds']:.3f} s", flush=True)
    table: dict[str, Any] = {}
    print(f"\n{'':<20}{'s/step':>8}{'generate':>10}{'train':>8}{'ratio':>7}{'gen waits':>11}"
          f"{'train waits':>13}{'stale':>7}")  # fmt: skip
    for name, runs in found.items():
        row = table[name] = {k: median(r[k] for r in runs) for k in runs[0]}
        print(f"{name:<20}{row['seconds']:>8.3f}{row['generate']:>10.3f}{row['train']:>8.3f}"
              f"{row['ratio']:>7.2f}{row['generate_wait']:>11.3f}{row['train_wait']:>13.3f}"
              f"{row['staleness']:>7.2f}")  # fmt: skip
    save("overlap", {"steps": args.steps, "median": table, "runs": found})


if __name__ == "__main__":
    main()
