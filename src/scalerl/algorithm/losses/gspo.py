"""GSPO: one ratio per sequence, the geometric mean of its tokens' ratios.

    s      = exp( 1/|y| * sum_t log rho_t )
    loss_t = - min( s A, clip(s, 1 - clip_low, 1 + clip_high) A )        for every token of y

The paper's text omits the 1/|y|, but clip sizes of 1e-3 only make sense with it (they are the GSPO
paper's). The paper finds upper/lower 5e-3/3e-3 best, robust in scale, and unstable at times.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalerl.algorithm.batch import LossBatch, TokenLoss, log_ratio
from scalerl.algorithm.losses.clipped import surrogate
from scalerl.algorithm.losses.registry import LOSSES
from scalerl.recipe.losses import GspoConstants

DEFAULTS = GspoConstants()


@LOSSES.register("gspo")
def gspo(
    logprobs_BT: Tensor,
    batch: LossBatch,
    *,
    clip_low: float = DEFAULTS.clip_low,
    clip_high: float = DEFAULTS.clip_high,
) -> TokenLoss:
    """Sequence-level ratio, length-normalised, spread over the sequence's tokens."""
    log_rho_BT, _, usable_BT = log_ratio(logprobs_BT, batch)
    # Forced and unusable tokens are not part of |y|. A row without any gets log s = 0, not 0 / 0.
    length_B = usable_BT.sum(dim=1).clamp(min=1)
    log_s_B1 = ((log_rho_BT * usable_BT).sum(dim=1) / length_B)[:, None]
    loss_B1, s_B1, clipped_B1 = surrogate(
        log_s_B1, batch.advantages_B[:, None], clip_low, clip_high
    )
    zero = torch.zeros((), dtype=loss_B1.dtype, device=loss_B1.device)
    return TokenLoss(
        torch.where(usable_BT, loss_B1, zero),
        torch.where(usable_BT, s_B1.detach(), 1.0),
        usable_BT & clipped_B1,
        usable_BT,
    )
