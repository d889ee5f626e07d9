"""Work of a known size for engine and trainer, and how many FLOP it is.

FLOP are counted as usual, with N the parameters without the input embedding:

generator  2 N per generated token, plus attention: 4 x layers x heads x size x (tokens before it).
           Reading the prompts is not counted.
trainer    6 N per token of prompt and completion, plus attention: 12 x layers x heads x size x
           (tokens before it). `computed` counts only the tokens that went through the model: a
           prompt that a group shares is computed once per micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from scalerl.algorithm.episode import Episode, Group
from scalerl.algorithm.length import Limit
from scalerl.algorithm.options import options_from_recipe
from scalerl.engine.interface import Engine, Request, TurnResult
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.local import LocalTrainer

#: The options of the default recipe, but for rollouts that are cut off: here all of them are.
SCALERL = replace(options_from_recipe(Recipe()), truncated="keep")
#: What a trainer is made with, where a test says nothing else.
TRAINER = {"head_precision": "fp32", "temperature": 1.0, "token_budget": 8192}


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """(seconds, CPU seconds)."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def sgemm(n: int = 1024) -> float:
    """FLOP per CPU second of a square product of this size: the peak of one core."""
    a, b = torch.randn(n, n), torch.randn(n, n)
    torch.mm(a, b)
    start = time.process_time()
    for _ in range(4):
        torch.mm(a, b)
    return 4 * 2 * n**3 / (time.process_time() - start)


def parameters(model: Any) -> int:
    """Those a token is multiplied with: all but the input embedding (a tied one is the head)."""
    embedding = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embedding
    return sum(p.numel() for p in model.parameters()) - (0 if tied else embedding.numel())


def attention_width(model: Any) -> int:
    """layers x heads x size."""
    c = model.config
    size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    return int(c.num_hidden_layers * c.num_attention_heads * size)


def before(prompt: int, completion: int) -> int:
    """Tokens before each generated one (itself included), summed."""
    return completion * prompt + completion * (completion + 1) // 2


def generator_flop(model: Any, lengths: Sequence[tuple[int, int]]) -> float:
    tokens = sum(c for _, c in lengths)
    seen = sum(before(p, c) for p, c in lengths)
    return 2.0 * parameters(model) * tokens + 4.0 * attention_width(model) * seen


def trainer_flop(
    model: Any, lengths: Sequence[tuple[int, int]], computed: int | None = None
) -> float:
    tokens = sum(p + c for p, c in lengths) if computed is None else computed
    seen = sum(before(0, p + c) if computed is None else before(p, c) for p, c in lengths)
    return 6.0 * parameters(model) * tokens + 12.0 * attention_width(model) * seen


def requests(
    prompts: int, generations: int, prompt: int, completion: int, words: int, seed: int = 0,
    control: Any = None,
) -> list[Request]:  # fmt: skip
    """Groups of rollouts of exactly `completion` tokens each, unless `control` says otherwise."""
    rng = np.random.default_rng(seed)
    out = []
    for p in range(prompts):
        ids = tuple(rng.integers(4, words, prompt).tolist())
        seeds = {row: seed + 1000 * p + row for row in range(generations)}
        out.append(Request(str(p), ids, control or Limit(completion), seeds))
    return out


def write(engine: Engine, asked: Sequence[Request]) -> list[TurnResult]:
    engine.submit(asked)
    out: list[TurnResult] = []
    while engine.health().busy:
        out += engine.step().written
    return out


def groups(asked: Sequence[Request], written: Sequence[TurnResult], seed: int = 0) -> list[Group]:
    """With rewards by chance, so that no group is dropped for lack of variance."""
    rng = np.random.default_rng(seed)
    prompts = {r.id: r.prompt_token_ids for r in asked}
    rows: dict[str, list[Episode]] = {r.id: [] for r in asked}
    for w in sorted(written, key=lambda w: (w.request, w.row)):
        episode = Episode.from_turn(prompts[w.request], w.turn)
        rows[w.request].append(episode.with_reward(float(rng.standard_normal()), None))
    return [Group(r.id, tuple(rows[r.id])) for r in asked]


def learner(model: Any, lr: float = 1e-4) -> LocalTrainer:
    return LocalTrainer(
        model,
        SCALERL,
        OptimiserSection(lr=lr, warmup_steps=1),
        **TRAINER,  # type: ignore[arg-type]
    )


def learn(trainer: LocalTrainer, batch: Sequence[Group]) -> Any:
    return trainer.step(batch)
