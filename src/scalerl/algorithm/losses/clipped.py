"""The clipped surrogate that GRPO, DAPO and Dr. GRPO share.

    loss = - min( rho A, clip(rho, 1 - clip_low, 1 + clip_high) A )

The gradient vanishes where the clipped branch is the smaller one: rho above the upper end with
A > 0, or below the lower end with A < 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalerl.algorithm.batch import TokenBatch, TokenLoss, log_ratio


def clipped_surrogate(
    logprobs_N: Tensor, batch: TokenBatch, clip_low: float, clip_high: float
) -> TokenLoss:
    """The clipped loss of every token, by the token's own ratio."""
    log_rho_N, _, usable_N = log_ratio(logprobs_N, batch)
    loss_N, rho_N, clipped_N = surrogate(log_rho_N, batch.advantages_N, clip_low, clip_high)
    return TokenLoss(
        torch.where(usable_N, loss_N, 0.0), rho_N.detach(), usable_N & clipped_N, usable_N
    )


def surrogate(
    log_rho: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, rho, mask of where the clip removes the gradient)."""
    rho = log_rho.exp()
    plain = rho * advantages
    clipped = rho.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return -torch.minimum(plain, clipped), rho, clipped < plain
