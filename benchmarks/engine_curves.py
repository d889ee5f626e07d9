"""Does a run learn alike whoever writes: with vLLM, and with the local engine?

    python benchmarks/engine_curves.py --runs runs/vllm     three seeds; needs vLLM; hours
    python benchmarks/engine_curves.py --runs runs/vllm --report-only

Runs the recipe of docs/replication (`scalerl tiny`) with `placement.engine=vllm`, and compares its
seeds with those that are recorded there by FLOPs, as `scalerl compare --group-by recipe` does: as
they are, and over the compute that all of them have. A run that was cut short is resumed by the
same command, and is judged as far as it has come.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from record import save
from scalerl import Run, compare, load_run

HOME = Path(__file__).parents[1] / "docs" / "replication" / "recipes"
RECIPE = HOME / "recipes" / "scalerl+tiny.toml"
#: Validations that a run needs to be judged.
ENOUGH = 9


def path_of(runs: Path, seed: int) -> Path:
    return runs / f"vllm-s{seed}"


def train(out: Path, seed: int) -> None:
    """Train, or go on, or do nothing if it is done."""
    events = out / "events.jsonl"
    if events.exists() and '"event": "end"' in events.read_text():
        return
    what = ["--resume", str(out)] if (out / "recipe.toml").exists() else [
        str(RECIPE), "placement.engine=vllm", "--seed", str(seed), "--out", str(out)
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "scalerl", "train", *what, "--plain"], check=False)
    if done.returncode:
        raise SystemExit(f"seed {seed} failed: its record is in {out}")


def report(runs: Path, seeds: int) -> None:
    """Judge what is there."""
    arms: dict[str, list[Run]] = {"local": [], "vllm": []}
    for seed in range(seeds):
        evals = path_of(runs, seed) / "evals.jsonl"
        if evals.exists() and len(evals.read_text().splitlines()) >= ENOUGH:
            arms["vllm"].append(load_run(str(path_of(runs, seed))))
        arms["local"].append(load_run(str(HOME / "runs" / f"scalerl+tiny-s{seed}")))
    if not arms["vllm"]:
        raise SystemExit(f"no run in {runs} has {ENOUGH} validations yet")
    every = [replace(run, group=name) for name, found in arms.items() for run in found]
    common = min(float(run.compute[-1]) for run in every)
    whole = compare(every, group_by="recipe").pairs[0]
    cut = compare(every, group_by="recipe", hi=common).pairs[0]
    print(f"as they are: {whole}\nup to {common:.3g} FLOPs: {cut}")
    curves = {
        name: [{"run": run.name, "flops": run.compute.tolist(), "pass_rate": run.score.tolist()}
               for run in found]
        for name, found in arms.items()
    }  # fmt: skip
    save("engine_curves", {"axis": "flops", "pair": whole.to_dict(), "common": common,
                           "pair_up_to_common": cut.to_dict(), "curves": curves},
         options=f"--seeds {seeds}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/vllm"), metavar="DIR",
                        help="directory for the records of the runs (runs/vllm)")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 to N - 1 (3)")
    parser.add_argument("--report-only", action="store_true", help="judge what is there")
    args = parser.parse_args()
    # So that the run under way ends with us, however we are ended, and is resumed the next time.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if not args.report_only:
        for seed in range(args.seeds):
            train(path_of(args.runs, seed), seed)
    report(args.runs, args.seeds)


if __name__ == "__main__":
    main()
