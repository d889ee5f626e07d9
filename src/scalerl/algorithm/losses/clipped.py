"""The clipped surrogate that GRPO, DAPO and Dr. GRPO share.

    loss = - min( rho A, clip(rho, 1 - clip_low, 1 + clip_high) A )

The gradient vanishes where the clipped branch is the smaller one: rho above the upper end with
A > 0, or below the lower end with A < 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalerl.algorithm.batch import LossBatch, TokenLoss, log_ratio


def clipped_surrogate(
    logprobs_BT: Tensor, batch: LossBatch, clip_low: float, clip_high: float
) -> TokenLoss:
    """The clipped loss of every token, by the token's own ratio."""
    log_rho_BT, _, usable_BT = log_ratio(logprobs_BT, batch)
    loss_BT, rho_BT, clipped_BT = surrogate(
        log_rho_BT, batch.advantages_B[:, None], clip_low, clip_high
    )
    zero = torch.zeros((), dtype=loss_BT.dtype, device=loss_BT.device)
    return TokenLoss(
        torch.where(usable_BT, loss_BT, zero), rho_BT.detach(), usable_BT & clipped_BT, usable_BT
    )


def surrogate(
    log_rho: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, rho, mask of where the clip removes the gradient)."""
    rho = log_rho.exp()
    plain = rho * advantages
    clipped = rho.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return -torch.minimum(plain, clipped), rho, clipped < plain
