"""Where the time of a step goes: 32 prompts x 16 rollouts of `scalerl train scalerl tiny-noisy`,
written by the engine and learnt by the trainer in one process on one thread.

python benchmarks/profile_step.py                      this checkout ("after")
python benchmarks/profile_step.py --before CHECKOUT    and another one's sources, by turns (of any
                                                       commit whose engine takes groups)

Timers sit around calls and count exclusively: what an inner timer takes, the outer one does not.
They count CPU time, which on one thread of an idle machine is the time itself, and on a busy one
does not count the others' turns. "before", once measured, is kept in the result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import scalerl
from record import RESULTS, save
from scalerl.algorithm.episode import Episode, Group
from scalerl.algorithm.objective import prepare
from scalerl.engine import local as engine_local
from scalerl.engine import model_decoder
from scalerl.engine.interface import Request, TurnResult
from scalerl.models.cpu.decode import FusedWeights, LlamaDecoder
from scalerl.models.cpu.packed import PackedLlama
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.specs import Specs
from scalerl.recipe import Recipe
from scalerl.trainer import local as trainer_local
from scalerl.trainer import scorer as trainer_scorer

try:
    from scalerl.models.cpu.c_decode import CDecoder
except ImportError:  # an earlier commit
    CDecoder = None  # type: ignore[assignment,misc]


class Timers:
    """Seconds by label, exclusive."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.stack: list[str] = []
        self.since = 0.0
        self.undo: list[Callable[[], None]] = []

    def switch(self) -> None:
        now = time.process_time()
        if self.stack:
            self.seconds[self.stack[-1]] += now - self.since
        self.since = now

    @contextmanager
    def label(self, name: str) -> Iterator[None]:
        self.switch()
        self.stack.append(name)
        try:
            yield
        finally:
            self.switch()
            self.stack.pop()

    def around(self, owner: Any, name: str, label: str) -> None:
        """Time a function or method, where there is one of that name."""
        inner = getattr(owner, name, None)
        if inner is None:
            return

        def timed(*arguments: Any, **options: Any) -> Any:
            with self.label(label):
                return inner(*arguments, **options)

        setattr(owner, name, timed)
        self.undo.append(lambda: setattr(owner, name, inner))

    def release(self) -> None:
        for undo in reversed(self.undo):
            undo()


def workload() -> tuple[RunSetup, list[Request]]:
    setup = RunSetup.from_recipe(Recipe.load("scalerl", "tiny-noisy"))
    batch = setup.recipe.batch
    requests = []
    for p, prompt in enumerate(list(setup.prompts.values())[: batch.prompts]):
        ids = tuple(setup.tokens_of(prompt).tolist())
        seeds = {row: 1000 * p + row for row in range(batch.generations)}
        requests.append(Request(str(p), ids, setup.control, seeds, setup.sampling))
    return setup, requests


def write(engine: Any, requests: list[Request]) -> list[TurnResult]:
    engine.submit(requests)
    out: list[TurnResult] = []
    while engine.health().busy:
        out += engine.step().written
    return out


def grouped(setup: RunSetup, written: list[TurnResult]) -> list[Group]:
    by_place = {(w.request, w.row): w.turn for w in written}
    groups = []
    for p, prompt in enumerate(list(setup.prompts.values())[: setup.recipe.batch.prompts]):
        mine = [by_place[str(p), row] for row in range(setup.recipe.batch.generations)]
        checked = setup.task.check_all([setup.answer(prompt, r.token_ids, 0) for r in mine])
        ids = setup.tokens_of(prompt)
        episodes = tuple(
            Episode.from_turn(ids, turn).with_reward(c.reward, c.correct)
            for turn, c in zip(mine, checked, strict=True)
        )
        groups.append(Group(prompt.id, episodes))
    return groups


def time_engine(timers: Timers) -> None:
    for owner in (torch, torch.Tensor, F):
        for name in ("baddbmm", "bmm", "softmax", "scaled_dot_product_attention"):
            timers.around(owner, name, "attention")
        for name in ("linear", "addmm"):
            timers.around(owner, name, "linear")
    timers.around(torch.Tensor, "index_copy_", "cache")
    timers.around(model_decoder.SlotLayer, "update", "cache")
    for name in ("drop_rows", "append_rows", "move_to", "mask"):
        timers.around(model_decoder.Slots, name, "cache")
    for name in ("sample", "draw", "draw_from_seeds", "uniform"):
        timers.around(engine_local, name, "sampling")
    timers.around(LlamaDecoder, "drop_rows", "cache")
    timers.around(LlamaDecoder, "_body", "norm, rotary, activation")
    timers.around(FusedWeights, "fresh", "weights")
    timers.around(CDecoder, "_share_out", "decoding in C")
    timers.around(CDecoder, "_tell", "weights")
    timers.around(CDecoder, "_read", "prompts")


def time_trainer(timers: Timers, trainer: Any) -> None:
    timers.around(torch.Tensor, "backward", "backward")
    timers.around(torch.autograd, "backward", "backward")
    timers.around(trainer_scorer, "final_hidden", "forward")
    timers.around(trainer_scorer, "chunked_logprobs", "head forward")
    timers.around(trainer.optimiser, "step", "optimiser")
    timers.around(torch.nn.utils, "clip_grad_norm_", "optimiser")
    timers.around(trainer_local, "diagnose", "loss and diagnostics")
    timers.around(trainer_local, "objective", "loss and diagnostics")
    timers.around(PackedLlama, "hidden", "forward")
    timers.around(PackedLlama, "_fused", "forward")


def measure(repeats: int) -> dict[str, Any]:
    setup, requests = workload()
    specs = Specs.from_setup(setup, None, default_channel="direct")
    learner: Any = specs.make_trainer(specs.trainer)
    runs: dict[str, list[dict[str, float]]] = {"engine": [], "trainer": []}
    groups: list[Group] = []
    for _ in range(repeats + 1):  # the first is for warming up
        engine = specs.make_engine(specs.engine)
        timers = Timers()
        time_engine(timers)
        with timers.label("Python and the rest"):
            written = write(engine, requests)
        timers.release()
        runs["engine"].append(dict(timers.seconds))
        groups = groups or grouped(setup, written)
        timers = Timers()
        time_trainer(timers, learner)
        with timers.label("data and the rest"):
            learner.step(groups)
        timers.release()
        runs["trainer"].append(dict(timers.seconds))
    rows = [len(e.rows[0]) for g in groups for e in g.episodes]
    kept = prepare(groups, learner.options).filtered.kept_E.tolist()
    tokens = {
        "engine": sum(len(w.turn) for w in written),
        "trainer": sum(n for n, stays in zip(rows, kept, strict=True) if stays),
    }
    return {name: summary(parts[1:], tokens[name]) for name, parts in runs.items()}


def summary(runs: list[dict[str, float]], tokens: int) -> dict[str, Any]:
    """Of the run with the least time: other load comes and goes."""
    totals = [sum(r.values()) for r in runs]
    best = runs[totals.index(min(totals))]
    return {
        "tokens": tokens,
        "seconds": {"best": min(totals), "median": statistics.median(totals)},
        "tokens_per_second": tokens / min(totals),
        "ms": {k: 1e3 * v for k, v in sorted(best.items(), key=lambda item: -item[1])},
    }


def show(result: dict[str, Any]) -> None:
    for part in ("engine", "trainer"):
        print(f"\n{part:<26} {'before ms':>10} {'after ms':>10}")
        found = {s: result[s][part] if s in result else None for s in ("before", "after")}
        labels = dict.fromkeys(k for f in found.values() if f for k in f["ms"])
        for label in labels:
            cells = [f["ms"].get(label, 0.0) if f else float("nan") for f in found.values()]
            print(f"  {label:<24} {cells[0]:>10.1f} {cells[1]:>10.1f}")
        cells = [1e3 * f["seconds"]["best"] if f else float("nan") for f in found.values()]
        print(f"  {'all':<24} {cells[0]:>10.1f} {cells[1]:>10.1f}   {cells[0] / cells[1]:.1f}x")
        speeds = [f["tokens_per_second"] if f else float("nan") for f in found.values()]
        print(f"  {'tokens/s':<24} {speeds[0]:>10.0f} {speeds[1]:>10.0f}")


def turn(sources: Path, repeats: int) -> dict[str, Any]:
    """Measure the sources of a checkout in a process of their own."""
    done = subprocess.run(
        [sys.executable, __file__, "--raw", "--repeats", str(repeats)],
        env=os.environ | {"PYTHONPATH": str(sources / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def better(a: dict[str, Any] | None, b: dict[str, Any]) -> dict[str, Any]:
    """Part by part, the faster of two measurements."""
    if a is None:
        return b
    best = {p: min(a[p], b[p], key=lambda x: x["seconds"]["best"]) for p in ("engine", "trainer")}
    return b | best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit")
    parser.add_argument("--raw", action="store_true", help="print this process's numbers only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sources = Path(scalerl.__file__).parent
    if arguments.raw:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=sources, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        print(json.dumps({"commit": commit.stdout.strip(), **measure(arguments.repeats)}))
        return
    path = RESULTS / "profile_step.json"
    result: dict[str, Any] = {}
    if path.exists() and arguments.before is None:
        old = json.loads(path.read_text())
        result = {k: old[k] for k in ("before",) if k in old}
    here = Path(__file__).parent.parent
    for _ in range(arguments.rounds):
        if arguments.before is not None:
            result["before"] = better(
                result.get("before"), turn(arguments.before, arguments.repeats)
            )
        result["after"] = better(result.get("after"), turn(here, arguments.repeats))
    show(result)
    save("profile_step", result)


if __name__ == "__main__":
    main()
