"""Does the default run learn, and does its forecast tell the truth?

    python benchmarks/learning.py --runs runs/learning      some eighty minutes on two idle cores
    python benchmarks/learning.py --runs runs/learning --report-only
    python benchmarks/learning.py --runs runs/noisy --overlay tiny-noisy --result learning_noisy
    python benchmarks/learning.py --runs runs/study --set optimiser.lr=1e-4 --seeds 3
    python benchmarks/learning.py --runs runs/games --games     some forty minutes

The default task's ceiling is known by construction: a list of n items needs 4 n + 1 tokens of
thought, so the thinking budget decides which lists can be done at all. Runs `scalerl train scalerl
tiny` with ten seeds, and with one thing changed: a tighter thinking budget (which moves the
ceiling), another k, another learning rate (which do not). With --overlay, --set or --seeds it runs
just that; with --games, both embedded environments, by ScaleRL and by DeepSeek's GRPO, with three
seeds each. For each run: where it starts and ends, sampled and greedy; the forecast made at half
its compute against its final pass rate; and the fitted ceiling against the constructed one.

The record of every run stays in its directory under --runs, `<what>-<seed>`. The result is written
anew after each run. Runs that are there already are not repeated, and one that was cut short is
resumed: to go on after a break, give the same command again.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from record import RESULTS, save
from scalerl import fit, load_run
from scalerl.recipe import Recipe, diff
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.store import RunStore
from scalerl.tasks.registry import recipe_ceiling

#: The fitted ceiling may miss the constructed one by this much.
NEAR = 0.03
GREEDY = "0"


@dataclass(frozen=True)
class Case:
    """What is run, with how many seeds."""

    name: str
    seeds: int
    overlay: str = "tiny"
    changes: tuple[str, ...] = ()
    preset: str = "scalerl"

    def recipe(self, seed: int) -> Recipe:
        return Recipe.load(self.preset, self.overlay, overrides=[*self.changes, f"seed={seed}"])

    def path(self, runs: Path, seed: int) -> Path:
        return runs / f"{self.name.replace(' ', '-').replace('/', '_')}-{seed}"


CASES = (
    Case("default", 10),
    Case("tighter thinking budget", 2,
         changes=("length.think_tokens_min=48", "length.think_tokens_max=56")),
    Case("k = 1", 1, changes=("schedule.k=1",)),
    Case("half the learning rate", 1, changes=("optimiser.lr=1e-4",)),
)  # fmt: skip

#: A machine that is busy with other work must not end an episode.
PATIENT = ("environment.seconds=36000",)
GAMES = tuple(
    Case(f"{game} by {preset}", 3, game, PATIENT, preset)
    for preset in ("scalerl", "deepseek-grpo")
    for game in ("tiny-tools", "tiny-guess")
)


def ceiling_of(recipe: Recipe) -> float:
    """The highest pass rate on the recipe's own validation prompts, by construction."""
    found = recipe_ceiling(recipe)
    assert found is not None
    return found


def ended(out: Path) -> bool:
    events = out / "events.jsonl"
    return events.exists() and '"event": "end"' in events.read_text()


def run(case: Case, out: Path, seed: int) -> None:
    """Train, or go on, or do nothing if it is done."""
    there = (out / "recipe.toml").exists()
    if there and diff(Recipe.load(out / "recipe.toml"), case.recipe(seed)):
        raise SystemExit(f"{out} is a run of another recipe: give another directory as --runs")
    if ended(out):
        return
    what = ["--resume", str(out)] if there else [
        case.preset, case.overlay, *case.changes, "--seed", str(seed), "--out", str(out)
    ]  # fmt: skip
    start = time.monotonic()
    command = [sys.executable, "-m", "scalerl", "train", *what, "--json"]
    done = subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    print(f"{out.name}: {time.monotonic() - start:.0f} s", flush=True)


def judge(out: Path, recipe: Recipe) -> dict[str, Any]:
    """Forecast from the first half, and the ceiling from all of it."""
    curve = load_run(str(out))
    end = float(curve.compute[-1])
    first = fit(curve, hi=end / 2)
    half = first.predict([end])
    low, high = half.interval()[0]
    whole = fit(curve)
    a_low, a_high = whole.interval("A")
    store = RunStore(out, resume=True)
    steps, evals = list(store.read(StepLine)), list(store.read(EvalLine))
    greedy = [line.temperatures[GREEDY].pass_rate for line in evals if line.temperatures]
    final, truth = float(curve.score[-1]), ceiling_of(recipe)
    return {
        "run": out.name,
        "recipe": recipe.name,
        "steps": len(steps),
        "minutes": evals[-1].compute.minutes,
        "start": float(curve.score[0]),
        "final": final,
        "gain": final - float(curve.score[0]),
        "greedy_start": greedy[0] if greedy else None,
        "greedy_final": greedy[-1] if greedy else None,
        "forecast": float(half.median[0]),
        "forecast_90": [float(low), float(high)],
        "covered": bool(low <= final <= high),
        "ceiling_identified_at_half": first.identified,
        "ceiling": whole.params["A"],
        "ceiling_90": [a_low, a_high],
        "ceiling_identified": whole.identified,
        "truth": truth,
        "near": abs(whole.params["A"] - truth) <= NEAR,
        "ceiling_covered": bool(a_low <= truth <= a_high),
        "b": whole.params["B"],
        "c_mid": whole.params["C_mid"],
        "mixed_versions": float(np.mean([s.mixed_versions for s in steps])),
        "staleness_max": max(s.staleness.max for s in steps),
        "curve": [curve.compute.tolist(), curve.score.tolist()],
        "greedy_curve": greedy,
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the seeds of one case."""
    greedy = [r for r in runs if r["greedy_start"] is not None]
    return {
        "seeds": len(runs),
        "start": median(r["start"] for r in runs),
        "final": median(r["final"] for r in runs),
        "greedy_start": median(r["greedy_start"] for r in greedy) if greedy else None,
        "greedy_final": median(r["greedy_final"] for r in greedy) if greedy else None,
        "minutes": median(r["minutes"] for r in runs),
        "truth": runs[0]["truth"],
        "gain_at_least_half": sum(r["gain"] >= 0.5 for r in runs),
        "end_covered": sum(r["covered"] for r in runs),
        "ceiling_identified_at_half": sum(r["ceiling_identified_at_half"] for r in runs),
        "ceiling_identified": sum(r["ceiling_identified"] for r in runs),
        "ceiling_near": sum(r["near"] for r in runs),
        "ceiling_covered": sum(r["ceiling_covered"] for r in runs),
    }


def table(rows: dict[str, list[dict[str, Any]]]) -> None:
    print(f"{'run':<22} {'sampled':<13} {'greedy':<13} {'forecast at half':<18} "
          f"{'ceiling':<18} truth")  # fmt: skip
    for name, runs in rows.items():
        for i, r in enumerate(runs):
            sampled = f"{r['start']:.3f} → {r['final']:.3f}"
            greedy = ("" if r["greedy_start"] is None else
                      f"{r['greedy_start']:.3f} → {r['greedy_final']:.3f}")  # fmt: skip
            ahead = f"{r['forecast']:.3f} [{r['forecast_90'][0]:.2f}, {r['forecast_90'][1]:.2f}]"
            top = f"{r['ceiling']:.3f} [{r['ceiling_90'][0]:.2f}, {r['ceiling_90'][1]:.2f}]"
            marks = ("" if r["covered"] else " end missed") + (
                "" if r["ceiling_covered"] else " truth missed"
            )
            print(f"{f'{name[:18]} {i}':<22} {sampled:<13} {greedy:<13} {ahead:<18} {top:<18} "
                  f"{r['truth']:.3f}{marks}")  # fmt: skip


def report(cases: tuple[Case, ...], args: argparse.Namespace) -> None:
    """Judge every run that has ended, and write the result."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        for seed in range(case.seeds):
            if ended(case.path(args.runs, seed)):
                found = judge(case.path(args.runs, seed), case.recipe(seed))
                rows.setdefault(case.name, []).append({"seed": seed, **found})
    if not rows:
        raise SystemExit(f"no run in {args.runs} has ended yet")
    table(rows)
    found = {
        "axis": "flops",
        "summary": {name: summary(runs) for name, runs in rows.items()},
        "runs": rows,
    }
    path = RESULTS / f"{args.result}.json" if args.result else args.runs / "result.json"
    save("learning", found, path, said(args))


def said(args: argparse.Namespace) -> str:
    """What of the command line decides the result."""
    words = [f"--set {change}" for change in args.set]
    words += ["--games"] if args.games else []
    words += [f"--{key} {value}" for key in ("overlay", "seeds") if (value := getattr(args, key))]
    return " ".join(sorted(words))


def chosen(args: argparse.Namespace) -> tuple[Case, ...]:
    """The benchmark's own cases, or the one that is asked for."""
    if args.games:
        args.result = args.result or "games"
        return GAMES
    if not (args.overlay or args.set or args.seeds):
        args.result = args.result or "learning"
        return CASES
    overlay = args.overlay or "tiny"
    name = ", ".join([*([args.overlay] if args.overlay else []), *args.set]) or "default"
    return (Case(name, args.seeds or 10, overlay, tuple(args.set)),)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"),
                        help="directory for the records of the runs (runs/learning)")  # fmt: skip
    parser.add_argument("--overlay", metavar="NAME", help="laid over scalerl (tiny)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="change the recipe; may be repeated")  # fmt: skip
    parser.add_argument("--games", action="store_true", help="the embedded environments")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N - 1 (10)")
    parser.add_argument("--result", metavar="NAME",
                        help="write benchmarks/results/NAME.json (learning, for the whole "
                        "benchmark; else RUNS/result.json)")  # fmt: skip
    parser.add_argument("--report-only", action="store_true", help="judge what is there")
    args = parser.parse_args()
    # So that the run under way ends with us, however we are ended, and is resumed the next time.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cases = chosen(args)
    jobs = [(case, seed) for case in cases for seed in range(case.seeds)]
    for done, (case, seed) in enumerate([] if args.report_only else jobs):
        print(f"{done + 1} of {len(jobs)}: {case.name}, seed {seed}", flush=True)
        run(case, case.path(args.runs, seed), seed)
        report(cases, args)
    if args.report_only:
        report(cases, args)


if __name__ == "__main__":
    main()
