"""Advantages (paper sections 3.1 and 3.5): rewards centred in their group, then normalised.

    A_i = r_i - mean of the rewards of the same prompt

    batch   A_i / (std of all A_i in the batch + epsilon)         ScaleRL
    prompt  A_i / (std of the prompt's rewards + epsilon)         GRPO
    none    A_i                                                   Dr. GRPO

The paper does not say whether prompts without variance count in the batch's std, with which ddof,
nor epsilon: `population`, `ddof` and `epsilon` are options. A group of one, or of equal rewards,
has advantage 0. With credit by turns (credit.py) a reward is the return of a turn, and the same
turn of a prompt's episodes takes the place of the prompt.

To add a normalisation, write a function like those below and register it, or name it in the recipe
by its import path. It is given the returns themselves, so that it may have another baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from scalerl.errors import InputError
from scalerl.recipe.sections_algorithm import NORMALISATION_NAMES
from scalerl.registry import Registry

Population = Literal["kept", "all"]

#: (returns, cell of each, which of them enter statistics of the batch, ddof, epsilon) -> advantages
Normalisation = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]

NORMALISATIONS: Registry[Normalisation] = Registry(
    "normalisation", announce=NORMALISATION_NAMES.add
)

#: Rewards that differ by less than this count as equal: a tolerance for rounding, far below any
#: difference that a task means.
SAME_REWARD = 1e-9


def has_variance(values_K: Tensor, cell_K: Tensor) -> Tensor:
    """For every unit, whether the returns of its cell differ (0 < n_correct < G)."""
    # By the largest and smallest, not by distances from the mean: that rounds, and in float32
    # sixteen rewards of 0.1 would vary.
    cells, index_K = torch.unique(cell_K, return_inverse=True)
    low_C, high_C = (
        torch.zeros(len(cells), dtype=values_K.dtype, device=values_K.device).scatter_reduce_(
            0, index_K, values_K, kind, include_self=False
        )
        for kind in ("amin", "amax")
    )
    return (high_C - low_C > SAME_REWARD)[index_K]


def centred(values_K: Tensor, cell_K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(returns minus the mean of their cell, index of each one's cell, units per cell)."""
    cells, index_K = torch.unique(cell_K, return_inverse=True)
    count_C = torch.zeros(len(cells), dtype=values_K.dtype, device=values_K.device)
    count_C.index_add_(0, index_K, torch.ones_like(values_K))
    mean_C = torch.zeros_like(count_C).index_add_(0, index_K, values_K) / count_C.clamp(min=1)
    # Equal returns are exactly 0 from a mean that rounds, which a std near 0 would blow up.
    a_K = torch.where(has_variance(values_K, cell_K), values_K - mean_C[index_K], 0)
    return a_K, index_K, count_C


@NORMALISATIONS.register("batch")
def by_batch(
    values_K: Tensor, cell_K: Tensor, counted_K: Tensor, ddof: int, epsilon: float
) -> Tensor:
    """Divided by the std of the batch."""
    a_K, *_ = centred(values_K, cell_K)
    chosen = a_K[counted_K]
    if len(chosen) <= ddof:  # the std would be NaN
        return torch.zeros_like(a_K)
    return a_K / (chosen.std(correction=ddof) + epsilon)


@NORMALISATIONS.register("prompt")
def by_prompt(
    values_K: Tensor, cell_K: Tensor, counted_K: Tensor, ddof: int, epsilon: float
) -> Tensor:
    """Divided by the std of the prompt."""
    a_K, index_K, count_C = centred(values_K, cell_K)
    square_C = torch.zeros_like(count_C).index_add_(0, index_K, a_K * a_K)
    # A group of one has count - ddof = 0 with ddof 1; its square is 0, so any divisor gives 0.
    std_C = (square_C / (count_C - ddof).clamp(min=1)).sqrt()
    return a_K / (std_C[index_K] + epsilon)


@NORMALISATIONS.register("none")
def only_centred(
    values_K: Tensor, cell_K: Tensor, counted_K: Tensor, ddof: int, epsilon: float
) -> Tensor:
    """Not divided."""
    return centred(values_K, cell_K)[0]


def advantages(
    values_K: Tensor,
    cell_K: Tensor,
    *,
    normalisation: str | Normalisation,
    population: Population,
    ddof: int,
    epsilon: float,
    kept_K: Tensor | None = None,
) -> Tensor:
    """Normalised advantage of every unit. `kept_K` marks those that survive the filters: with
    population "kept" only they enter the batch's std."""
    if not torch.isfinite(values_K).all():
        raise InputError("rewards must be finite: leave out episodes that could not be scored")
    if len(values_K) == 0:
        return values_K.clone()
    everyone_K = torch.ones(len(values_K), dtype=torch.bool, device=values_K.device)
    counted_K = everyone_K if kept_K is None or population == "all" else kept_K
    normalise = NORMALISATIONS.resolve(normalisation)
    return normalise(values_K, cell_K, counted_K, ddof, epsilon)
