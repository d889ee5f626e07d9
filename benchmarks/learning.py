"""Does the default run learn, and does its forecast tell the truth?

    python benchmarks/learning.py --out runs/learning        about an hour on two idle cores
    python benchmarks/learning.py --out runs/learning --report-only

The default task's ceiling is known by construction: a list of n items needs 4 n tokens of thought,
so the thinking budget decides which lists can be done at all. Runs `scalerl train scalerl tiny`
with ten seeds, and with one thing changed: a tighter thinking budget (which moves the ceiling),
another k, another learning rate (which do not). For each run: the forecast made at half its
compute against its final pass rate, and the fitted ceiling against the constructed one. Runs that
are there already are not repeated; a run cut short is resumed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from record import save
from scalerl import fit, load_run
from scalerl.recipe import Recipe
from scalerl.tasks.running_sums import ceiling

#: Name → (what is changed, seeds).
RUNS: dict[str, tuple[list[str], int]] = {
    "default": ([], 10),
    "tighter thinking budget": (["length.think_tokens_min=48", "length.think_tokens_max=56"], 2),
    "k = 1": (["schedule.k=1"], 1),
    "half the learning rate": (["optimiser.lr=5e-5"], 1),
}
#: The fitted ceiling may miss the constructed one by this much.
NEAR = 0.03


def ceiling_of(overrides: list[str]) -> float:
    """By construction."""
    recipe = Recipe.load("scalerl", "tiny", overrides=overrides)
    low, high = recipe.length.think_tokens_min, recipe.length.think_tokens_max
    assert low is not None and high is not None
    return ceiling(low, high)


def run(out: Path, overrides: list[str], seed: int) -> None:
    """Train, or go on, or do nothing if it is done."""
    events = out / "events.jsonl"
    if events.exists() and '"event": "end"' in events.read_text():
        return
    what = ["--resume", str(out)] if (out / "recipe.toml").exists() else [
        "scalerl", "tiny", *overrides, "--seed", str(seed), "--out", str(out)
    ]  # fmt: skip
    start = time.monotonic()
    command = [sys.executable, "-m", "scalerl", "train", *what, "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"{out.name}: {time.monotonic() - start:.0f} s", flush=True)


def judge(out: Path, truth: float) -> dict[str, Any]:
    """Forecast from the first half, and the ceiling from all of it."""
    curve = load_run(str(out))
    end = float(curve.compute[-1])
    half = fit(curve, hi=end / 2).predict([end])
    low, high = half.interval()[0]
    whole = fit(curve)
    a_low, a_high = whole.interval("A")
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    final = float(curve.score[-1])
    return {
        "run": out.name,
        "steps": len(steps),
        "minutes": steps[-1]["ledger"]["device_seconds"] / 120.0,
        "start": float(curve.score[0]),
        "final": final,
        "gain": final - float(curve.score[0]),
        "forecast": float(half.median[0]),
        "forecast_90": [float(low), float(high)],
        "covered": bool(low <= final <= high),
        "ceiling": whole.params["A"],
        "ceiling_90": [a_low, a_high],
        "ceiling_identified": whole.identified,
        "truth": truth,
        "near": abs(whole.params["A"] - truth) <= NEAR,
        "ceiling_covered": bool(a_low <= truth <= a_high),
        "b": whole.params["B"],
        "c_mid": whole.params["C_mid"],
        "mixed_versions": float(np.mean([s["mixed_versions"] for s in steps])),
        "staleness_max": max(s["staleness"]["max"] for s in steps),
        "curve": [curve.compute.tolist(), curve.score.tolist()],
    }


def table(rows: dict[str, list[dict[str, Any]]]) -> None:
    print(f"{'run':<22} {'start':>5} {'end':>5}  {'forecast at half':<18} {'ceiling':<18} truth")
    for name, runs in rows.items():
        for i, r in enumerate(runs):
            ahead = f"{r['forecast']:.3f} [{r['forecast_90'][0]:.2f}, {r['forecast_90'][1]:.2f}]"
            top = f"{r['ceiling']:.3f} [{r['ceiling_90'][0]:.2f}, {r['ceiling_90'][1]:.2f}]"
            marks = ("" if r["covered"] else " end missed") + (
                "" if r["ceiling_covered"] else " truth missed"
            )
            print(
                f"{f'{name[:18]} {i}':<22} {r['start']:>5.3f} {r['final']:>5.3f}  "
                f"{ahead:<18} {top:<18} {r['truth']:.3f}{marks}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--report-only", action="store_true")
    args = parser.parse_args()
    jobs = [(name, seed) for name, (_, seeds) in RUNS.items() for seed in range(seeds)]
    for done, (name, seed) in enumerate(jobs):
        overrides = RUNS[name][0]
        if not args.report_only:
            print(f"{done + 1} of {len(jobs)}: {name}, seed {seed}", flush=True)
            run(args.out / f"{name.replace(' ', '-')}-{seed}", overrides, seed)
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, seed in jobs:
        path = args.out / f"{name.replace(' ', '-')}-{seed}"
        if (path / "evals.jsonl").exists():
            rows.setdefault(name, []).append(judge(path, ceiling_of(RUNS[name][0])))
    table(rows)
    default = rows["default"]
    summary = {
        "seeds": len(default),
        "gain_at_least_half": sum(r["gain"] >= 0.5 for r in default),
        "end_covered": sum(r["covered"] for r in default),
        "ceiling_near": sum(r["near"] for r in default),
        "ceiling_covered": sum(r["ceiling_covered"] for r in default),
    }
    print(json.dumps(summary))
    save("learning", {"axis": "flops", "summary": summary, "runs": rows})


if __name__ == "__main__":
    main()
