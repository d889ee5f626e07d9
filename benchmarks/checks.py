"""Answers are checked beside the loop: what a slow verifier costs, and one that never answers.

    python benchmarks/checks.py [--steps 14] [--rounds 3]

The default run (32 x 16, k = 3) with its own check as a reward function, one call a group:

at once    no delay
slow       each call sleeps 0.5 s, `placement.checkers=64`
never      one call in a hundred hangs for ever, `placement.check_seconds=3`
one        slow, and one checker only: what the ledger says when the checks set the pace

Seconds per step by the ledger's clock, the first three left out; rounds in turns.
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

from record import save
from scalerl.tasks.running_sums import RunningSums

HERE = Path(__file__).parent
CASES = {
    "at once": ("at_once", ["placement.checkers=64"]),
    "slow": ("slow", ["placement.checkers=64"]),
    "never": ("sometimes_never", ["placement.checkers=64", "placement.check_seconds=3"]),
    "one": ("slow", ["placement.checkers=1"]),
}
#: Steps before the pipe is full.
SKIP = 3


def dataset(folder: Path) -> Path:
    rows = [{"prompt": p.question, "answer": ""} for p in RunningSums(prompts=4000).prompts()]
    path = folder / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(out: Path, data: Path, reward: str, changes: list[str], steps: int) -> dict[str, Any]:
    settings = [
        f"task.name=function:slow_rewards:{reward}",
        f"task.dataset={data}",
        "validation.every=1000",
        "validation.prompts=20",
        "validation.k=1",
        *changes,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny-noisy", *settings,
         "--steps", str(steps), "--out", str(out), "--json"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    first, last = lines[SKIP - 1]["ledger"], lines[-1]["ledger"]
    count = len(lines) - SKIP

    def grown(*path: str) -> float:
        a, b = first, last
        for key in path:
            a, b = a[key], b[key]
        return float(b - a) / count

    return {
        "seconds": grown("device_seconds") / 2,
        "generate": grown("spent", "generate"),
        "train": grown("spent", "train"),
        "check": grown("spent", "check"),
        "train_wait": grown("spent", "train_wait"),
        "check_wait": grown("spent", "check_wait"),
        "unscored": sum(line["filtered"]["unscored"] for line in lines),
        "rollouts": sum(line["filtered"]["rollouts"] for line in lines),
        "said": sorted({e["why"][:100] for e in events if e["event"] in ("checker", "warning")}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    args = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in args.cases}
    with tempfile.TemporaryDirectory() as folder:
        data = dataset(Path(folder))
        for i in range(args.rounds):
            for name in args.cases:
                if name == "one" and i:
                    continue  # it takes minutes, and its ratio is far from any limit
                reward, changes = CASES[name]
                # One checker that sleeps takes 16 s a step: a few are enough.
                steps = args.steps if name != "one" else SKIP + 3
                out = Path(folder) / f"{name}-{i}"
                found[name].append(train(out, data, reward, changes, steps))
                print(f"{name} {i}: {found[name][-1]['seconds']:.2f} s a step", flush=True)
    numbers = ("seconds", "generate", "train", "check", "train_wait", "check_wait")
    rows = {n: {k: median(r[k] for r in runs) for k in numbers} for n, runs in found.items()}
    base = rows["at once"]["seconds"]
    print(f"\n{'':<9}{'s/step':>8}{'ratio':>7}{'generate':>10}{'train':>7}{'check':>7}"
          f"{'waits':>7}{'of it checks':>14}{'unscored':>10}")  # fmt: skip
    for name, row in rows.items():
        row["ratio"] = row["seconds"] / base
        unscored = sum(r["unscored"] for r in found[name]) / sum(r["rollouts"] for r in found[name])
        print(f"{name:<9}{row['seconds']:>8.2f}{row['ratio']:>7.2f}{row['generate']:>10.2f}"
              f"{row['train']:>7.2f}{row['check']:>7.2f}{row['train_wait']:>7.2f}"
              f"{row['check_wait']:>14.2f}{unscored:>10.1%}")  # fmt: skip
    save("checks", {"steps": args.steps, "median": rows, "runs": found})


if __name__ == "__main__":
    main()
