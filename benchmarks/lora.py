"""The default task by LoRA: ranks 1, 8 and 32 beside training all weights.

python benchmarks/lora.py DIR               three seeds of 300 steps, as a study in DIR; saves
python benchmarks/lora.py DIR --quick       one seed of 20 steps; saves nothing
python benchmarks/lora.py DIR --model PATH  only costs of a publish, of this model; saves nothing

The study is `scalerl study DIR scalerl tiny --sweep adapter.rank=1,8,32`: the reference trains all
weights, with optimiser.lr; adapters train with optimiser.lr x adapter.lr_factor. Its verdicts are
those of `scalerl report DIR`. Then, for each variant (times are CPU seconds of one thread, which
other load on the machine hardly changes):

    publish_bytes     what a publish carries
    publish_seconds   the trainer is held up: the copy, with an adapter the probe's pass, too
    load_seconds      the generator is held up: checksum and merge, between proofs
    proof_seconds     the same with a proof
    optimiser_bytes   state of the optimiser and masters of what is trained
    steps_per_second  of the whole run, validations included
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from record import save
from scalerl import Recipe, Study
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.generator_worker import GeneratorWorker
from scalerl.placement.specs import Specs
from scalerl.placement.trainer_worker import TrainerWorker
from scalerl.runs.lines import StepLine
from scalerl.runs.store import RunStore

RANKS = (1, 8, 32)
SEEDS = 3
STEPS = 300
#: Publishes that are timed, after one that is not.
ROUNDS = 10


def median_seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    work()
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def costs(recipe: Recipe) -> dict[str, float]:
    """What a publish costs, and what the optimiser keeps, in one process over shared memory."""
    setup = RunSetup.from_recipe(recipe)
    specs = Specs.from_setup(setup, None, default_channel="shared-memory")
    trainer: Any = specs.make_trainer(specs.trainer)
    channel: Any = specs.channel
    sends = TrainerWorker(trainer, channel.sender(), time.perf_counter, specs.trainer.adapter)
    # Far more than the loads that are timed: those without a proof come first.
    engine = replace(specs.engine, verify_every=10_000)
    if engine.adapter is not None:
        engine = replace(engine, adapter=replace(engine.adapter, proof_every=10_000))
    takes = GeneratorWorker(
        specs.make_engine(engine), channel.receiver(), time.perf_counter,
        deterministic=False, spec=engine,
    )  # fmt: skip
    publish = median_seconds(sends._publish)

    def prove() -> None:
        takes.reset(channel.receiver())  # doubt: the next load is proven
        takes.start()

    found = {
        "publish_bytes": float(channel.layout.size * channel.layout.dtype.itemsize),
        "publish_seconds": publish,
        "proof_seconds": median_seconds(prove, 3),
        "load_seconds": median_seconds(lambda: takes.receiver.into(takes.target)),
        "trained_parameters": float(sum(t.numel() for t in trainer.masters.tensors())),
    }
    for tensor in trainer.masters.tensors():
        tensor.grad = torch.zeros_like(tensor)
    trainer.optimiser.step()
    kept = [v for state in trainer.optimiser.state.values() for v in state.values()]
    masters = [] if recipe.adapter.rank == 0 else trainer.masters.tensors()
    found["optimiser_bytes"] = float(sum(t.nbytes for t in (*kept, *masters)))
    return found


def steps_per_second(run: Path) -> float | None:
    lines = list(RunStore(run, resume=True).read(StepLine))
    if len(lines) < 2:
        return None
    minutes = lines[-1].compute.minutes - lines[0].compute.minutes
    return (lines[-1].step - lines[0].step) / (60 * minutes)


def study_of(path: Path, quick: bool) -> tuple[Study, dict[str, Any]]:
    study = Study(
        path,
        ["scalerl", "tiny"],
        sweep={"adapter.rank": list(RANKS)},
        seeds=1 if quick else SEEDS,
        steps=20 if quick else STEPS,
        screen=1.0,
    )
    study.run(jobs=1)
    rows: dict[str, Any] = {}
    for row in study.table():
        members = [m for m in study.members if m.variant == row.variant]
        rates = [r for m in members if (r := steps_per_second(m.path)) is not None]
        rows[row.variant] = {
            "seeds": row.seeds,
            "A": row.estimates.get("A"),
            "verdict": row.verdict,
            "words": row.words,
            "steps_per_second": statistics.median(rates) if rates else None,
            "pass_rates": [study.evals(m)[-1].pass_rate for m in members if study.evals(m)],
        }
    return study, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.model:
        for rank in (0, *RANKS):
            recipe = Recipe.load("scalerl", "tiny").replace(
                {"model.path": arguments.model, "adapter.rank": rank, "length.control": "none",
                 "length.max_tokens": 64}
            )  # fmt: skip
            show(f"rank {rank}" if rank else "all weights", costs(recipe))
        return
    study, rows = study_of(arguments.dir, arguments.quick)
    for name, recipe in study.variants.items():
        rows[name] |= costs(recipe)
        show(name, rows[name])
    if not arguments.quick:
        save("lora", {"steps": STEPS, "variants": rows})


def show(name: str, row: dict[str, Any]) -> None:
    shown = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items())
    print(f"{name}: {', '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
