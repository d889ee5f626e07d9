"""What does it cost to give freed memory back, and what does it save?

python benchmarks/give_back.py        prints; saves nothing

Two ranks of FSDP2 train a model of 8 layers of SmolLM2-135M's width. The settings of the C library
below follow one another in the same processes. For each: CPU seconds (user, system) and page faults
of three steps, the peak of the resident memory meanwhile, and what is held after them. CPU seconds
hardly depend on other load.
"""

from __future__ import annotations

import ctypes
import os
import resource
import tempfile
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import torch
import torch.multiprocessing

from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.algorithm.options import options_from_recipe
from scalerl.placement.processes import HERE, LOOPBACK
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.interface import RankSpec, TrainerSpec
from scalerl.trainer.rendezvous import rendezvous_store

WORDS = 16384
#: Numbers of glibc's mallopt.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KB, MB = 1 << 10, 1 << 20
#: A name; from which size arrays have a mapping of their own; what the heap keeps at its end; and
#: whether `malloc_trim` is called after each step. A threshold stays for the settings after it.
SETTINGS: tuple[tuple[str, int, int, bool], ...] = (
    ("as it is", 0, 0, False),
    ("malloc_trim after each step", 0, 0, True),
    ("mappings from 4 MB", 4 * MB, 0, False),
    ("mappings from 256 kB", 256 * KB, 256 * KB, False),
)


def model(folder: Path) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=576, intermediate_size=1536, num_hidden_layers=8,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
        max_position_embeddings=2048,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def batch() -> tuple[Group, ...]:
    rng = np.random.default_rng(0)

    def episode(right: bool) -> Episode:
        n = int(rng.integers(8, 40))
        turn = Turn.from_lists(rng.integers(5, WORDS, n), logprobs=[-9.7] * n)
        prompt = rng.integers(5, WORDS, 16)
        return Episode.from_turn(prompt, turn).with_reward(1.0 if right else -1.0, right)

    return tuple(Group(str(i), tuple(episode(j % 2 == 0) for j in range(4))) for i in range(3))


def megabytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) // 1024


def rank_process(conn: Connection, spec: TrainerSpec) -> None:
    from scalerl.trainer.registry import TRAINERS

    libc = ctypes.CDLL("libc.so.6")
    torch.set_num_threads(1)
    trainer, groups = TRAINERS["fsdp"](spec), batch()
    for _ in range(2):
        trainer.step(groups)
    for name, from_size, keep, trim in SETTINGS:
        if from_size:
            assert libc.mallopt(M_MMAP_THRESHOLD, from_size) == 1
        if keep:
            assert libc.mallopt(M_TRIM_THRESHOLD, keep) == 1
        trainer.step(groups)
        if trim or from_size:
            libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again here
        found = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_SELF)
            trainer.step(groups)
            if trim:
                libc.malloc_trim(0)
            after = resource.getrusage(resource.RUSAGE_SELF)
            user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
            found.append((round(user, 2), round(system, 2), after.ru_minflt - before.ru_minflt))
        peak, held = megabytes("VmHWM:"), megabytes("VmRSS:")
        print(f"rank {spec.ranks.rank if spec.ranks else 0}, {name}: {found}, peak {peak} MB, "
              f"held {held} MB", flush=True)  # fmt: skip
    conn.send(None)


def main() -> None:
    context = torch.multiprocessing.get_context("spawn")
    store, port = rendezvous_store(HERE)
    place = RankSpec(0, 2, HERE, port, LOOPBACK, 900.0)
    with tempfile.TemporaryDirectory() as folder:
        spec = TrainerSpec(
            model=model(Path(folder)), dtype="float32", head="fp32",
            options=options_from_recipe(Recipe.load("scalerl", "tiny")),
            optimiser=OptimiserSection(lr=1e-6), temperature=1.0, token_budget=128, device="cpu",
            trust_remote_code=False, threads=1,
        )  # fmt: skip
        pipes = [context.Pipe() for _ in range(2)]
        processes = [
            context.Process(
                target=rank_process,
                args=(theirs, replace(spec, ranks=replace(place, rank=i))),
                daemon=True,
            )
            for i, (_, theirs) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for ours, _ in pipes:
            ours.recv()
        for process in processes:
            process.join()
    del store


if __name__ == "__main__":
    main()
