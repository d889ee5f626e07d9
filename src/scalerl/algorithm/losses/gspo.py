"""GSPO: one ratio per episode, the geometric mean of its tokens' ratios.

    s      = exp( 1/|y| * sum_t log rho_t )
    loss_t = - min( s A, clip(s, 1 - clip_low, 1 + clip_high) A )        for every token of y

The paper's text omits the 1/|y|, but clip sizes of 1e-3 only make sense with it (they are the GSPO
paper's). The paper finds upper/lower 5e-3/3e-3 best, robust in scale, and unstable at times.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalerl.algorithm.batch import TokenBatch, TokenLoss, log_ratio
from scalerl.algorithm.losses.clipped import surrogate
from scalerl.algorithm.losses.registry import LOSSES
from scalerl.recipe.losses import GspoConstants

DEFAULTS = GspoConstants()


@LOSSES.register("gspo")
def gspo(
    logprobs_N: Tensor,
    batch: TokenBatch,
    *,
    clip_low: float = DEFAULTS.clip_low,
    clip_high: float = DEFAULTS.clip_high,
) -> TokenLoss:
    """Sequence-level ratio, length-normalised, spread over the sequence's tokens."""
    log_rho_N, _, usable_N = log_ratio(logprobs_N, batch)
    # Forced and unusable tokens are not part of |y|: their log rho is 0. An episode without any
    # gets log s = 0, not 0 / 0.
    length_E = batch.per_episode(usable_N.to(log_rho_N.dtype)).clamp(min=1)
    log_s_N = batch.per_token(batch.per_episode(log_rho_N) / length_E)
    loss_N, s_N, clipped_N = surrogate(log_s_N, batch.advantages_N, clip_low, clip_high)
    return TokenLoss(
        torch.where(usable_N, loss_N, 0.0),
        torch.where(usable_N, s_N.detach(), 1.0),
        usable_N & clipped_N,
        usable_N,
    )
