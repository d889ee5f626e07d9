"""Gaussian noise on the logits of the sampler: a known amount of the mismatch that other kernels,
dtypes and quantised weights cause at scale (`forces.sampler_noise`).

    logit of word v  +  size · quantiles[16 bits of SplitMix64(seed, position, v)]

The noise of a word follows from the seed of its rollout, its position and its number alone: a run
repeats bit for bit, and a rollout does not depend on the others of its batch. The log-prob that is
recorded is that of the noisy distribution, which is what an engine with that mismatch reports.

The quantiles are the middles of 65,536 equal parts of the standard normal distribution: no value is
beyond 4.3 standard deviations, and their variance is 1 after scaling.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from scalerl.engine.random_bits import GOLDEN, MIX_2, mixed, starts

#: Entries of the table of quantiles: one for each number of 16 bits.
QUANTILES = 1 << 16
#: Words that one number of 64 bits serves.
WORDS = 4


@cache
def quantiles() -> Tensor:
    """The table of quantiles in float32, 256 KB: it stays in a core's cache."""
    middle = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    found = torch.special.ndtri(middle)
    scaled: Tensor = (found / found.square().mean().sqrt()).float()
    return scaled


def with_noise(logits_BV: Tensor, size_B: Tensor, seed_B: Tensor, position_B: Tensor) -> Tensor:
    """The logits with noise of each row's size (nats, a standard deviation); in a new tensor.

    >>> zeros, one = torch.zeros(2, 3), torch.ones(2)
    >>> found = with_noise(zeros, one, torch.tensor([5, 6]), torch.tensor([0, 0]))
    >>> alone = with_noise(zeros[1:], one[1:], torch.tensor([6]), torch.tensor([0]))
    >>> bool((found[1] == alone[0]).all()), bool((found[0] != found[1]).any())
    (True, True)
    """
    words = logits_BV.shape[-1]
    key_B = mixed(mixed(starts(seed_B, position_B)) ^ MIX_2)
    part = torch.arange(-(-words // WORDS), device=logits_BV.device)
    bits_BP = mixed(key_B[:, None] + part * GOLDEN)
    shifts = torch.arange(WORDS, device=logits_BV.device) * 16
    place_BV = ((bits_BP[:, :, None] >> shifts) & (QUANTILES - 1)).flatten(1)[:, :words]
    drawn_BV = quantiles().to(logits_BV.device)[place_BV]
    return logits_BV.float() + size_B[:, None] * drawn_BV
