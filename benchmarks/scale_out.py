"""What do many processes cost, on one machine of two cores?

python benchmarks/scale_out.py             saves
python benchmarks/scale_out.py --quick     small; saves nothing

fsdp   one optimiser step of a model of SmolLM2-135M's shape with random weights: in one process
       with one and with two threads, and by two ranks of FSDP2 with a thread each; and the most
       memory that a process held, as it is and where the C library gives back at once what is freed
ray    `scalerl train scalerl tiny` as processes of this machine and as actors of a Ray cluster:
       seconds a step, in turns; like with like, so that no core helps another (actors may live on
       other machines)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing

from record import LOAD, RESULTS, save
from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.algorithm.options import options_from_recipe
from scalerl.placement.processes import HERE, LOOPBACK
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.interface import RankSpec, TrainerSpec
from scalerl.trainer.rendezvous import rendezvous_store

#: Of the batch: prompts, rollouts of each, tokens of each.
BATCH = (4, 4, 48)
#: Makes glibc map every larger array, so that its memory is given back when it is freed.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 18), "MALLOC_TRIM_THRESHOLD_": str(1 << 18)}
#: Steps of the runs, of which the first ones are not counted, and times that they are taken.
STEPS, SKIP, ROUNDS = 40, 5, 4


# -- fsdp -----------------------------------------------------------------------------------------


def model(folder: Path, *, small: bool) -> str:
    """Random weights of SmolLM2-135M's shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536,
        num_hidden_layers=2 if small else 30, num_attention_heads=9, num_key_value_heads=3,
        tie_word_embeddings=True, max_position_embeddings=2048,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def batch() -> tuple[Group, ...]:
    rng = np.random.default_rng(0)
    prompts, rollouts, tokens = BATCH

    def episode(prompt: npt.NDArray[np.int64], right: bool) -> Episode:
        turn = Turn.from_lists(rng.integers(5, 49000, tokens), logprobs=[-10.8] * tokens)
        return Episode.from_turn(prompt, turn).with_reward(1.0 if right else -1.0, right)

    def group(name: str) -> Group:
        prompt = rng.integers(5, 49000, 16)
        return Group(name, tuple(episode(prompt, j % 2 == 0) for j in range(rollouts)))

    return tuple(group(str(i)) for i in range(prompts))


def trainer_process(conn: Connection, spec: TrainerSpec, steps: int) -> None:
    from scalerl.trainer.registry import TRAINERS

    torch.set_num_threads(spec.threads)
    trainer = TRAINERS["local" if spec.ranks is None else "fsdp"](spec)
    groups, seconds, norms = batch(), [], []
    for _ in range(steps + 1):
        began = time.monotonic()
        norms.append(trainer.step(groups).grad_norm)
        seconds.append(time.monotonic() - began)
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    conn.send((statistics.median(seconds[1:]), peak / 1024, norms[0]))


def fsdp(
    spec: TrainerSpec, ranks: int, threads: int, steps: int, *, gives_back: bool
) -> dict[str, Any]:
    for name, value in GIVE_BACK.items():  # what is started from here has them from its beginning
        os.environ.pop(name, None)
        if gives_back:
            os.environ[name] = value
    context = torch.multiprocessing.get_context("spawn")
    keep, port = rendezvous_store(HERE)
    specs = [replace(spec, threads=threads)]
    if ranks > 1:
        place = RankSpec(0, ranks, HERE, port, LOOPBACK, 600.0)
        specs = [replace(specs[0], ranks=replace(place, rank=i)) for i in range(ranks)]
    pipes = [context.Pipe() for _ in specs]
    processes = [
        context.Process(target=trainer_process, args=(theirs, each, steps), daemon=True)
        for (_, theirs), each in zip(pipes, specs, strict=True)
    ]
    for process in processes:
        process.start()
    found = [ours.recv() for ours, _ in pipes]
    for process in processes:
        process.join()
    del keep
    return {
        "ranks": ranks, "threads": threads, "gives_back": gives_back,
        "seconds": max(f[0] for f in found),
        "megabytes_a_rank": max(f[1] for f in found), "grad_norm": found[0][2],
    }  # fmt: skip


def trainers(small: bool) -> list[dict[str, Any]]:
    recipe = Recipe.load("scalerl", "tiny")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        spec = TrainerSpec(
            model=model(Path(folder), small=small), dtype="float32", head="fp32",
            options=options_from_recipe(recipe), optimiser=OptimiserSection(lr=1e-6),
            temperature=1.0, token_budget=12_288, device="cpu", trust_remote_code=False,
        )  # fmt: skip
        for ranks, threads in ((1, 1), (1, 2), (2, 1)):
            for gives_back in (False, True):
                steps = 1 if small else 3
                rows.append(fsdp(spec, ranks, threads, steps, gives_back=gives_back))
                print(rows[-1], flush=True)
    return rows


# -- ray ------------------------------------------------------------------------------------------


def run(out: Path, backend: str, steps: int) -> float:
    """Seconds a step."""
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny",
         f"placement.backend={backend}", "placement.idle_cores=wait",
         "validation.every=1000", "checkpoint.every=1000",
         "--steps", str(steps), "--out", str(out)],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    lines = [json.loads(line) for line in (out / "steps.jsonl").open()]
    first, last = lines[SKIP - 1]["ledger"], lines[-1]["ledger"]
    seconds = (last["device_seconds"] - first["device_seconds"]) / 2
    return float(seconds / (len(lines) - SKIP))


def overhead(steps: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(rounds):
            for backend, seconds in found.items():
                seconds.append(run(Path(folder) / f"{backend}-{i}", backend, steps))
                print(f"{backend}: {seconds[-1]:.3f} s a step", flush=True)
    local, ray = (statistics.median(found[b]) for b in ("local", "ray"))
    return {"seconds": found, "overhead": ray / local - 1.0, "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("ray", "fsdp"), help="the other half stays as it was")
    arguments = parser.parse_args()
    quick, only = arguments.quick, arguments.only
    path = RESULTS / "scale_out.json"
    result: dict[str, Any] = json.loads(path.read_text()) if only and path.exists() else {}
    result = {half: result[half] for half in ("ray", "fsdp") if half in result}
    if only != "fsdp":
        result["ray"] = overhead(8 if quick else STEPS, 1 if quick else ROUNDS) | {"load": LOAD}
        print(result["ray"])
    if only != "ray":
        result["fsdp"] = {"rows": trainers(quick), "load": LOAD}
    if not quick:
        save("scale_out", result)


if __name__ == "__main__":
    main()
