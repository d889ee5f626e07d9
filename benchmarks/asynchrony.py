"""Asynchrony: pipeline-8 against the synchronous baseline and off-policy-8, on the same two cores.

    python benchmarks/asynchrony.py [--steps 100] [--repeats 2]

Same recipe, task, model and batch; only the schedule differs. Devices of a cluster cannot help each
other, and so the first three are with cores that wait; the others with cores that help: compare
like with like. Seconds to the same number of
optimiser steps (validation left out), what the ledger says about the waiting, and compute until the
same pass rate. The ideal: all work, shared by two cores that never wait.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from record import save

ALONE = "placement.idle_cores=wait"
SYNCHRONOUS = ["schedule.name=off-policy", "schedule.k=1"]
PIPELINE = ["schedule.name=pipeline", "schedule.k=8"]
SCHEDULES = {
    "synchronous": [*SYNCHRONOUS, ALONE],
    "off-policy-8": ["schedule.name=off-policy", "schedule.k=8", ALONE],
    "pipeline-8": [*PIPELINE, ALONE],
    "synchronous, helped": SYNCHRONOUS,
    "pipeline-8, helped": PIPELINE,
}
TARGET = 0.6


def train(out: Path, overrides: list[str], steps: int, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny-noisy", *overrides,
               "--steps", str(steps), "--seed", str(seed), "--out", str(out), "--json"]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    evals = [json.loads(line) for line in (out / "evals.jsonl").read_text().splitlines()]
    ledger = lines[-1]["ledger"]
    work = sum(ledger["spent"][k] for k in ("generate", "hand_over", "train"))
    reached = next((e["compute"] for e in evals if e["pass_rate"] >= TARGET), None)
    return {
        "seconds": ledger["device_seconds"] / 2,
        "work": work,
        "ideal_seconds": work / 2,
        "generate_wait": ledger["spent"]["generate_wait"],
        "train_wait": ledger["spent"]["train_wait"],
        "hand_over": ledger["spent"]["hand_over"],
        "staleness_mean": sum(s["staleness"]["mean"] for s in lines) / len(lines),
        "staleness_max": max(s["staleness"]["max"] for s in lines),
        "final": evals[-1]["pass_rate"],
        "seconds_to_target": None if reached is None else reached["device_hours"] * 1800,
        "flops_to_target": None if reached is None else reached["flops"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=104)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEDULES}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):  # in turns, so that other load hits all alike
            for name, overrides in SCHEDULES.items():
                run = train(Path(folder) / f"{name}-{repeat}", overrides, args.steps, repeat)
                found[name].append(run)
                print(f"{name} {repeat}: {run['seconds']:.0f} s", flush=True)
    base = median(r["seconds"] for r in found["synchronous"])
    print(f"{'schedule':<14} {'seconds':>8} {'speed-up':>8} {'ideal':>7} "
          f"{'gen waits':>9} {'train waits':>11} {'to ' + str(TARGET):>8} {'end':>6}")  # fmt: skip
    rows = {}
    for name, runs in found.items():
        middle = {
            k: median(r[k] for r in runs) if all(r[k] is not None for r in runs) else None
            for k in runs[0]
        }
        seconds = middle["seconds"]
        rows[name] = middle | {"speed_up": base / seconds}
        to = middle["seconds_to_target"]
        print(
            f"{name:<14} {seconds:>8.1f} {base / seconds:>7.2f}x {middle['ideal_seconds']:>7.1f} "
            f"{middle['generate_wait'] / seconds:>9.0%} {middle['train_wait'] / seconds:>11.0%} "
            f"{'never' if to is None else f'{to:.0f} s':>8} {middle['final']:>6.3f}"
        )
    save("asynchrony", {"steps": args.steps, "target": TARGET, "median": rows, "runs": found})


if __name__ == "__main__":
    main()
