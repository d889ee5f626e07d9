"""REINFORCE, optionally with truncated importance weights: the plainest loss to compare with.

    loss_t = - w_t * A * log pi_train(y_t),      w_t = 1, or sg( min(rho_t, ratio_cap) )

With weights it is CISPO; without, it ignores that older weights sampled the tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalerl.algorithm.batch import TokenBatch, TokenLoss, log_ratio
from scalerl.algorithm.losses.cispo import cispo
from scalerl.algorithm.losses.registry import LOSSES
from scalerl.recipe.losses import ReinforceConstants

DEFAULTS = ReinforceConstants()


@LOSSES.register("reinforce")
def reinforce(
    logprobs_N: Tensor, batch: TokenBatch, *, ratio_cap: float | None = DEFAULTS.ratio_cap
) -> TokenLoss:
    """REINFORCE; a `ratio_cap` turns importance weights on."""
    if ratio_cap is not None:
        return cispo(logprobs_N, batch, ratio_cap=ratio_cap)
    log_rho_N, safe_N, usable_N = log_ratio(logprobs_N, batch)
    loss_N = -batch.advantages_N * safe_N
    nowhere_N = torch.zeros_like(usable_N)
    return TokenLoss(
        torch.where(usable_N, loss_N, 0.0), log_rho_N.detach().exp(), nowhere_N, usable_N
    )
