"""Advantages (paper sections 3.1 and 3.5): rewards centred in their group, then normalised.

    A_i = r_i - mean of the rewards of the same prompt

    batch   A_i / (std of all A_i in the batch + epsilon)         ScaleRL
    prompt  A_i / (std of the prompt's rewards + epsilon)         GRPO
    none    A_i                                                   Dr. GRPO

The paper does not say whether prompts without variance count in the batch's std, with which ddof,
nor epsilon: `population`, `ddof` and `epsilon` are options. A group of one, or of equal rewards,
has advantage 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from scalerl.errors import InputError

Normalisation = Literal["batch", "prompt", "none"]
Population = Literal["kept", "all"]


def centred(rewards_B: Tensor, prompt_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(rewards minus the mean of their prompt, index of each row's prompt, rollouts per prompt)."""
    prompts, index_B = torch.unique(prompt_B, return_inverse=True)
    count_P = torch.zeros(len(prompts), dtype=rewards_B.dtype, device=rewards_B.device)
    count_P.index_add_(0, index_B, torch.ones_like(rewards_B))
    mean_P = torch.zeros_like(count_P).index_add_(0, index_B, rewards_B) / count_P.clamp(min=1)
    return rewards_B - mean_P[index_B], index_B, count_P


def advantages(
    rewards_B: Tensor,
    prompt_B: Tensor,
    *,
    normalisation: Normalisation,
    population: Population,
    ddof: int,
    epsilon: float,
    kept_B: Tensor | None = None,
) -> Tensor:
    """Normalised advantage of every rollout. `kept_B` marks the rollouts that survive the filters:
    with population "kept" only they enter the batch's std."""
    if not torch.isfinite(rewards_B).all():
        raise InputError("rewards must be finite: leave out rollouts that could not be scored")
    if len(rewards_B) == 0:
        return rewards_B.clone()
    a_B, index_B, count_P = centred(rewards_B, prompt_B)
    if normalisation == "none":
        return a_B
    if normalisation == "prompt":
        square_P = torch.zeros_like(count_P).index_add_(0, index_B, a_B * a_B)
        # A group of one has count - ddof = 0 with ddof 1; its square is 0, so any divisor gives 0.
        std_P = (square_P / (count_P - ddof).clamp(min=1)).sqrt()
        return a_B / (std_P[index_B] + epsilon)
    if normalisation == "batch":
        chosen = a_B if kept_B is None or population == "all" else a_B[kept_B]
        if len(chosen) <= ddof:  # the std would be NaN
            return torch.zeros_like(a_B)
        return a_B / (chosen.std(correction=ddof) + epsilon)
    raise InputError(f"no normalisation {normalisation!r}: choose batch, prompt or none")
