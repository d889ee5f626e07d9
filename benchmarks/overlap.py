"""Do the two sides really overlap? Rollouts of equal length, the hardest case: all end at once.

    python benchmarks/overlap.py [--steps 30] [--rounds 3]

16 prompts x 8 rollouts of exactly 32 tokens, by `scalerl train` under both schedules (the work of
benchmarks/against_trl.py, case "fixed"). A step should take what the slower of the two sides works
for it: `ratio` is the step's time over that. Under off-policy-1 the sides take turns by definition,
and the ledger's waits say so.
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

from against_trl import CASES, PROMPT, model_of, tokenizer_of
from record import save

HERE = Path(__file__).parent
SCHEDULES = {"pipeline-3": ["schedule.k=3"], "pipeline-1": ["schedule.k=1"],
             "off-policy-1": ["schedule.name=off-policy", "schedule.k=1"]}  # fmt: skip
SKIP = 5


def train(folder: Path, out: Path, changes: list[str], steps: int) -> dict[str, float]:
    case = CASES["fixed"]
    settings = {
        "model.path": folder / "model", "task.name": "function:against_trl:chance",
        "task.dataset": folder / "rows.jsonl", "length.control": "none",
        "length.max_tokens": case["completion"], "batch.prompts": case["prompts"],
        "batch.generations": case["generations"], "sampling.max_prompt_tokens": PROMPT,
        "validation.prompts": 2, "validation.k": 1, "validation.every": 1000,
        "filter.truncated": "keep", "curriculum.name": "uniform", "optimiser.lr": 1e-3,
        "checkpoint.every": 1000,
    }  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny",
         *(f"{k}={v}" for k, v in settings.items()), *changes, "--steps", str(steps),
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
        model_of(ragged=False).save_pretrained(folder / "model")
        tokenizer_of(ragged=False).save_pretrained(folder / "model")
        rows = (json.dumps({"prompt": f"count:{i:03d}", "answer": ""}) for i in range(1000))
        (folder / "rows.jsonl").write_text("\n".join(rows))
        for i in range(args.rounds):
            for name, changes in SCHEDULES.items():
                found[name].append(train(folder, folder / f"{name}-{i}", changes, args.steps))
                print(f"{name} {i}: {found[name][-1]['seconds']:.3f} s", flush=True)
    table: dict[str, Any] = {}
    print(f"\n{'':<14}{'s/step':>8}{'generate':>10}{'train':>8}{'ratio':>7}{'gen waits':>11}"
          f"{'train waits':>13}{'stale':>7}")  # fmt: skip
    for name, runs in found.items():
        row = table[name] = {k: median(r[k] for r in runs) for k in runs[0]}
        print(f"{name:<14}{row['seconds']:>8.3f}{row['generate']:>10.3f}{row['train']:>8.3f}"
              f"{row['ratio']:>7.2f}{row['generate_wait']:>11.3f}{row['train_wait']:>13.3f}"
              f"{row['staleness']:>7.2f}")  # fmt: skip
    save("overlap", {"steps": args.steps, "median": table, "runs": found})


if __name__ == "__main__":
    main()
