"""Does a second generator halve the time of an evaluation? 1,000 prompts x 16 answers.

    python benchmarks/eval_generators.py [--rounds 3]
    python benchmarks/eval_generators.py --quick        100 prompts, one round; saves nothing

One and two generators in turns, on a random Llama of 1.6 million parameters (FP32, one thread per
process). Seconds from the first question to the last score, with all workers up; CPU seconds of the
busiest generator and of all processes. `bound` is the least time on two cores that do nothing else:
the CPU seconds of the busiest process, or half of all, whichever is more.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from multi_turn import make_model
from record import save
from scalerl.evaluation.runner import EvaluationWorkers
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.validation import Validation
from scalerl.recipe.load import load

PROMPTS = 1000
K = 16
#: Width and layers of the model, and the longest answer in tokens.
SIZE = (192, 4)
TOKENS = 64


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(model: str, generators: int, prompts: int) -> dict[str, float]:
    changes = [
        f"model.path={model}", "task.name=running-sums", "task.options.prompts=40000",
        "length.control=none", f"length.max_tokens={TOKENS}", f"validation.prompts={prompts}",
        f"validation.k={K}", "validation.temperature=1", "validation.also_temperatures=[]",
        f"placement.generators={generators}", "placement.idle_cores=wait",
    ]  # fmt: skip
    setup = RunSetup.from_recipe(load("scalerl", "tiny", overrides=changes))
    asked = Validation.from_setup(setup).asked
    with EvaluationWorkers(setup, setup.model, print) as workers:
        first = dict(list(asked.items())[: 8 * generators])
        list(workers.score_answers(Validation(setup, first).unanswered(), 0))  # all are up
        pids = workers.crew.pids()
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        start = time.perf_counter()
        scored = list(workers.score_answers(Validation(setup, asked).unanswered(), 0))
        seconds = time.perf_counter() - start
        cpu = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    assert len(scored) == prompts
    busiest, total = max(cpu.values()), sum(cpu.values())
    return {"seconds": seconds, "busiest_cpu": busiest, "total_cpu": total,
            "bound": max(busiest, total / 2)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="100 prompts; saves nothing")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prompts = 100 if args.quick else PROMPTS
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), SIZE)
        for _ in range(1 if args.quick else args.rounds):
            for generators, runs in found.items():
                runs.append(measure(model, generators, prompts))
                shown = "  ".join(f"{k} {v:.1f}" for k, v in runs[-1].items())
                print(f"{generators} generators: {shown}", flush=True)
    rows = {n: {k: median(r[k] for r in runs) for k in runs[0]} for n, runs in found.items()}
    ratio, bound = (rows[1][k] / rows[2][k] for k in ("seconds", "bound"))
    print(f"two generators: {ratio:.2f} times as fast as one; by their CPU seconds {bound:.2f} on "
          "two idle cores")  # fmt: skip
    if not args.quick:
        save("eval_generators", {"prompts": prompts, "k": K, "median": rows, "runs": found,
                                 "ratio": ratio, "ratio_of_bounds": bound})  # fmt: skip


if __name__ == "__main__":
    main()
