"""Who writes faster on a CPU: the local engine, or vLLM's CPU build behind the same protocol?

    python benchmarks/engines.py                 needs vLLM and SmolLM2 (examples/smollm2.py)
    python benchmarks/engines.py --quick         the tiny model only, one repeat; saves nothing

Both write the same requests, so many rollouts at once, 16 to a prompt, all of one length, with one
thread, FP32, log-probs and seeds as in a run. In turns: each engine once to warm up, then
alternately; the best of the repeats. Times are CPU time, which on an idle machine is the time
itself; the clock's are in the result beside them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import workload as w
from record import save
from scalerl.engine.interface import Engine, EngineSpec
from scalerl.engine.registry import ENGINES
from scalerl.models.load import model_path

#: Rows at once, prompt and answer in tokens, repeats.
TINY: dict[str, Any] = {"rows": (64, 256, 512), "prompt": 21, "completion": 49, "repeats": 5}
SMOLLM2: dict[str, Any] = {"rows": (16, 64), "prompt": 32, "completion": 24, "repeats": 3}
NAMES = ("local", "vllm")


def words_of(model: str) -> int:
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(model).vocab_size)


def measure(model: str, how: dict[str, Any], repeats: int) -> list[dict[str, Any]]:
    """Tokens per second of both engines, for each number of rows."""
    columns = how["prompt"] + how["completion"]
    spec = EngineSpec(model, "float32", "fp32", slots=max(how["rows"]), validation_slots=1,
                      columns=columns, device="cpu", trust_remote_code=False)  # fmt: skip
    engines: dict[str, Engine] = {name: ENGINES[name](spec) for name in NAMES}
    words = words_of(model)
    found = []
    for rows in how["rows"]:
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
        for turn in range(repeats + 1):
            # Other prompts each time: nobody has read them before.
            asked = w.requests(rows // 16, 16, how["prompt"], how["completion"], words, turn)
            for name, engine in engines.items():
                taken = w.timed(lambda e=engine, a=asked: w.write(e, a))
                if turn:
                    times[name].append(taken)
        tokens = rows * how["completion"]
        row: dict[str, Any] = {"rows": rows, "prompt": how["prompt"],
                               "completion": how["completion"]}  # fmt: skip
        for name in NAMES:
            cpu = [c for _, c in times[name]]
            row[name] = {"tokens_per_second": tokens / min(cpu), "cpu_seconds": cpu,
                         "seconds": [s for s, _ in times[name]]}  # fmt: skip
        found.append(row)
        speeds = [row[name]["tokens_per_second"] for name in NAMES]
        print(f"{Path(model).name:>14} {rows:>4} rows: local {speeds[0]:>8.0f} tok/s, vLLM "
              f"{speeds[1]:>8.0f} tok/s, local / vLLM {speeds[0] / speeds[1]:.2f}",
              flush=True)  # fmt: skip
    return found


def smollm2() -> str:
    """Where it is; made where it is not."""
    script = Path(__file__).parents[1] / "examples" / "smollm2.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.splitlines()[-1])
    return done.stdout.split()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny only; saves nothing")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    found = {"tiny": measure(model_path("tiny"), TINY, 1 if quick else TINY["repeats"])}
    if quick:
        return
    found["smollm2"] = measure(smollm2(), SMOLLM2, SMOLLM2["repeats"])
    import vllm

    save("engines", {"vllm": vllm.__version__, "torch": torch.__version__, "threads": 1, **found})


if __name__ == "__main__":
    main()
