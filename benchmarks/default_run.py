"""The default run on two cores: how soon it starts, how long a step takes, who waits.

    python benchmarks/default_run.py [--steps 60] [--rounds 3] [--before CHECKOUT]

`scalerl train scalerl tiny` as it is, with a second generator, and without what is written in C
(SCALERL_NATIVE=0), in turns; `--before` adds the sources of another checkout. Seconds of a step are
the ledger's, validation left out; `run` is what 300 steps and their 31 validations would take at
that pace. `start` is from the command to the first step. Waits are shares of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from record import save

HERE = Path(__file__).parent.parent
WHOLE_RUN = (300, 31)  # steps, validations


def train(
    out: Path, sources: Path, changes: list[str], native: str, steps: int
) -> dict[str, float]:
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", *changes,
         "--steps", str(steps), "--out", str(out), "--json"],
        env=os.environ | {"PYTHONPATH": str(sources / "src"), "SCALERL_NATIVE": native},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    first = None
    record = out / "steps.jsonl"
    while process.poll() is None:
        if first is None and record.exists() and record.stat().st_size:
            first = time.perf_counter() - began
        time.sleep(0.02)
    if process.wait() or first is None:
        raise SystemExit("the run failed: what it said is above")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    evals = (out / "evals.jsonl").read_text().splitlines()
    ledger, n = lines[-1]["ledger"], len(lines)
    spent, devices = ledger["spent"], 3 if "placement.generators=2" in changes else 2
    seconds = ledger["device_seconds"] / devices
    validation = spent["validate"] / (devices - 1) / len(evals)
    return {
        "start": first,
        "step": seconds / n,
        "generate": (spent["generate"] + spent["hand_over"]) / n,
        "train": spent["train"] / n,
        "generate_wait": spent["generate_wait"] / seconds / (devices - 1),
        "train_wait": spent["train_wait"] / seconds,
        "validation": validation,
        "run": seconds / n * WHOLE_RUN[0] + validation * WHOLE_RUN[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit")
    args = parser.parse_args()
    ways: dict[str, tuple[Path, list[str], str]] = {
        "default": (HERE, [], "1"),
        "two generators": (HERE, ["placement.generators=2"], "1"),
        "without C": (HERE, [], "0"),
    }
    if args.before:
        ways["before"] = (args.before, [], "1")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.rounds):
            for name, (sources, changes, native) in ways.items():
                out = Path(folder) / f"{name}-{i}".replace(" ", "-")
                found[name].append(train(out, sources, changes, native, args.steps))
                print(f"{name} {i}: {found[name][-1]['step']:.3f} s a step", flush=True)
    table: dict[str, Any] = {
        name: {k: median(r[k] for r in runs) for k in runs[0]} for name, runs in found.items()
    }
    columns = list(next(iter(table.values())))
    print(f"\n{'':<16}" + "".join(f"{c:>15}" for c in columns))
    for name, row in table.items():
        print(f"{name:<16}" + "".join(f"{row[c]:>15.3f}" for c in columns))
    save("default_run", {"steps": args.steps, "median": table, "runs": found})


if __name__ == "__main__":
    main()
