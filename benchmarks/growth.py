"""How time and memory of a step grow, and whether a long run slows down.

    python benchmarks/growth.py [--long 10000]

1. Seconds and memory of a step against prompts, generations, length, model size, generators.
2. Memory of every process over a run of 10,000 tiny steps.
3. The record, the curriculum and the forecast at 10^5 steps, simulated: cost of the next step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from record import save
from scalerl.algorithm.curriculum import Curriculum, NoPositiveResampling
from scalerl.curves.live import LiveCurve
from scalerl.runs.lines import StepLine
from scalerl.runs.store import RunStore

#: What is varied around the default: name → overrides.
CASES: dict[str, list[list[str]]] = {
    "prompts": [[f"batch.prompts={n}"] for n in (8, 32, 64)],
    "generations": [[f"batch.generations={n}"] for n in (4, 16)],
    "length": [
        [f"length.think_tokens_min={n}", f"length.think_tokens_max={n}",
         f"task.options.items_max={n // 4}"]
        for n in (16, 60)
    ],
    "generators": [[f"placement.generators={n}"] for n in (1, 2)],
}  # fmt: skip
SMALL = ["batch.prompts=2", "batch.generations=2", "task.options.items_max=3",
         "task.options.prompts=500", "length.think_tokens_min=12", "length.think_tokens_max=14",
         "validation.every=1000000", "validation.prompts=4",
         "validation.k=1", "checkpoint.every=1000", "curriculum.name=uniform",
         "filter.empty_steps=0"]  # fmt: skip


def memory_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    sizes = [int(x.split()[1]) / 1024 for x in text.splitlines() if x.startswith("VmRSS")]
    return sizes[0] if sizes else 0.0  # a process that has just ended has none


def train(
    out: Path, overrides: list[str], steps: int, every: float = 2.0
) -> tuple[list[dict[str, Any]], list[tuple[int, dict[str, float]]]]:
    """The step records, and (step, MB of each process) now and then."""
    command = [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny-noisy", *overrides,
               "--steps", str(steps), "--out", str(out), "--json"]  # fmt: skip
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples = []
    while run.poll() is None:
        time.sleep(every)
        try:
            status = json.loads((out / "status.json").read_text())
        except (OSError, ValueError):
            continue
        samples.append((status["step"], {n: memory_mb(p) for n, p in status["pids"].items()}))
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}")
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()], samples


def growth(folder: Path, steps: int) -> list[dict[str, Any]]:
    rows = []
    for axis, cases in CASES.items():
        for case in cases:
            out = folder / f"{axis}-{len(rows)}"
            lines, samples = train(out, [*case, "validation.every=1000"], steps, every=0.5)
            clock = [r["ledger"]["device_seconds"] for r in lines]
            devices = 1 + (int(case[0].split("=")[1]) if axis == "generators" else 1)
            tail = [(b - a) / devices for a, b in pairwise(clock[4:])]
            last = lines[-1]["ledger"]
            rows.append(
                {
                    "axis": axis,
                    "value": int(case[0].split("=")[1]),
                    "seconds": median(tail),
                    "train_seconds": median(r["seconds"] for r in lines[4:]),
                    "tokens": last["generated_tokens"] / len(lines),
                    "memory_mb": {n: max(s[n] for _, s in samples) for n in samples[-1][1]},
                }
            )
            r = rows[-1]
            print(f"{axis:<12} {r['value']:>5} {r['seconds']:>7.3f} s a step "
                  f"{r['tokens'] / r['seconds']:>8.0f} tok/s "
                  f"{sum(r['memory_mb'].values()):>7.0f} MB", flush=True)  # fmt: skip
    return rows


def long_run(folder: Path, steps: int) -> dict[str, Any]:
    lines, samples = train(folder / "long", SMALL, steps, every=5.0)
    clock = [r["ledger"]["device_seconds"] / 2 for r in lines]
    tenth = len(lines) // 10
    early, late = clock[2 * tenth] - clock[tenth], clock[-1] - clock[-1 - tenth]
    settled = [s for s in samples if s[0] > tenth and all(s[1].values())]
    drift = {n: settled[-1][1][n] - settled[0][1][n] for n in settled[0][1] if settled[0][1].get(n)}
    print(f"{len(lines)} steps: {early / tenth * 1e3:.1f} ms a step early, "
          f"{late / tenth * 1e3:.1f} ms late; memory drift in MB: "
          + ", ".join(f"{n} {d:+.1f}" for n, d in drift.items()), flush=True)  # fmt: skip
    return {
        "steps": len(lines),
        "early_ms": early / tenth * 1e3,
        "late_ms": late / tenth * 1e3,
        "drift_mb": drift,
        "samples": samples[:: max(len(samples) // 50, 1)],
    }


def simulated(folder: Path) -> list[dict[str, Any]]:
    """Milliseconds that the book-keeping of one more step costs at 10^3, 10^4 and 10^5 steps."""
    store = RunStore(folder / "simulated")
    curriculum = Curriculum([f"p{i}" for i in range(53_000)], NoPositiveResampling(), seed=0)
    curve = LiveCurve("pass_rate", "steps", n_eval=16_000)
    line = StepLine.from_dict({"step": 0, "prompts": [f"p{i}" for i in range(48)]})
    assert line is not None
    rows = []
    at = 0
    for target in (1_000, 10_000, 100_000):
        cost = {"record": 0.0, "curriculum": 0.0}
        for step in range(at + 1, target + 1):
            start = time.perf_counter()
            for prompt in curriculum.draw(48):
                curriculum.record(prompt, step * 7 % 14, 16)
            middle = time.perf_counter()
            if step > target - 100:
                store.append(replace(line, step=step))
                cost["record"] += time.perf_counter() - middle
                cost["curriculum"] += middle - start
            if step % 100 == 0:
                value = 0.6 / (1 + (2e4 / step) ** 1.5) + 0.01 * ((step * 31 % 7) / 7 - 0.5)
                curve.add(step, step, max(value, 0.0))
        at = target
        start = time.perf_counter()
        curve.forecast(2.0 * target)
        ms = {name: seconds * 10 for name, seconds in cost.items()}
        rows.append({"steps": target, **ms, "forecast": (time.perf_counter() - start) * 1e3})
        print(f"{target:>7} steps: record {ms['record']:.2f} ms, curriculum "
              f"{ms['curriculum']:.2f} ms a step; forecast of {len(curve)} points "
              f"{rows[-1]['forecast']:.0f} ms", flush=True)  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=14)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        save(
            "growth",
            {
                "simulated": simulated(path),
                "long": long_run(path, args.long),
                "growth": growth(path, args.steps),
            },
        )


if __name__ == "__main__":
    main()
