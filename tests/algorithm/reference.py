"""The paper's equations as slow, obvious loops over Python floats: nothing shared with the code.

A batch is a list of prompts; a prompt is a list of rollouts; a rollout is a dict with `reward`
and, per token, `train` and `gen` log-probs and `forced`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Rollout = dict[str, Any]


def token_losses(
    loss: str, rollout: Rollout, advantage: float, constants: dict[str, float]
) -> list[Tensor]:
    """Loss of each token that is in the loss; `train` are scalar tensors with a graph."""
    tokens = [t for t, forced in enumerate(rollout["forced"]) if not forced]
    out = []
    if loss == "gspo":
        if not tokens:
            return []
        total = sum(rollout["train"][t] - rollout["gen"][t] for t in tokens)
        s = torch.exp(total / len(tokens))
        return [clipped(s, advantage, constants["clip_low"], constants["clip_high"])] * len(tokens)
    if loss == "sequence-tis":
        total = sum(float(rollout["train"][t]) - rollout["gen"][t] for t in tokens)
        power = 1 if constants["ratio"] == "product" else 1 / max(len(tokens), 1)
        weight = min(math.exp(total * power), constants["ratio_cap"])
        return [-weight * advantage * rollout["train"][t] for t in tokens]
    for t in tokens:
        train, gen = rollout["train"][t], rollout["gen"][t]
        ratio = torch.exp(train - gen)
        if loss == "cispo":
            out.append(-min(ratio.item(), constants["ratio_cap"]) * advantage * train)
        elif loss == "reinforce":
            out.append(-advantage * train)
        else:
            out.append(clipped(ratio, advantage, constants["clip_low"], constants["clip_high"]))
    return out


def clipped(ratio: Tensor, advantage: float, low: float, high: float) -> Tensor:
    inside = torch.clamp(ratio, 1 - low, 1 + high)
    return -torch.min(ratio * advantage, inside * advantage)


def std(values: list[float], ddof: int) -> float:
    if len(values) <= ddof:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - ddof))


def advantages(
    batch: list[list[Rollout]], normalisation: str, population: str, ddof: int, epsilon: float,
    drop: bool,
) -> list[list[float]]:  # fmt: skip
    centred = []
    for prompt in batch:
        mean = sum(r["reward"] for r in prompt) / len(prompt)
        centred.append([r["reward"] - mean for r in prompt])
    if normalisation == "none":
        return centred
    if normalisation == "prompt":
        out = []
        for prompt, row in zip(batch, centred, strict=True):
            spread = std([r["reward"] for r in prompt], ddof) if len(prompt) > ddof else 0.0
            out.append([a / (spread + epsilon) for a in row])
        return out
    chosen = [
        a
        for prompt, row in zip(batch, centred, strict=True)
        for a in row
        if population == "all" or not drop or len({r["reward"] for r in prompt}) > 1
    ]
    spread = std(chosen, ddof)
    return [[a / (spread + epsilon) for a in row] for row in centred]


def objective(
    batch: list[list[Rollout]],
    *,
    loss: str,
    constants: dict[str, float],
    aggregation: str,
    normalisation: str,
    population: str = "kept",
    ddof: int = 0,
    epsilon: float = 1e-6,
    drop: bool = True,
    length: float = 7.0,
) -> Tensor:
    """The scalar, by loops."""
    adv = advantages(batch, normalisation, population, ddof, epsilon, drop)
    kept = [
        (prompt, row)
        for prompt, row in zip(batch, adv, strict=True)
        if not drop or len({r["reward"] for r in prompt}) > 1
    ]
    total = torch.zeros((), dtype=torch.float64)
    if not kept:
        return total
    samples = sum(len(prompt) for prompt, _ in kept)
    all_tokens = sum(sum(not f for f in r["forced"]) for prompt, _ in kept for r in prompt)
    for prompt, row in kept:
        prompt_tokens = sum(sum(not f for f in r["forced"]) for r in prompt)
        for r, a in zip(prompt, row, strict=True):
            losses = token_losses(loss, r, a, constants)
            for value in losses:
                if aggregation == "sample":
                    total = total + value / (samples * len(losses))
                elif aggregation == "prompt":
                    total = total + value / (len(kept) * prompt_tokens)
                elif aggregation == "token":
                    total = total + value / all_tokens
                else:
                    total = total + value / (samples * length)
    return total
