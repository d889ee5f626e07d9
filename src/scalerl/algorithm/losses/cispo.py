"""CISPO (paper section 3.2 and Eq. 4; first in MiniMax-M1), the loss of ScaleRL.

    rho_t  = pi_train(y_t) / pi_gen(y_t)
    loss_t = - sg( min(rho_t, ratio_cap) ) * A * log pi_train(y_t)

sg stops the gradient: every token keeps its gradient, only its weight is truncated. One-sided:
small ratios are left alone. `ratio_cap` is the *absolute* cap on rho, not an epsilon added to 1:
other frameworks' cap of 1 + 4 is 5 here. The paper tried 4, 5 and 8 and saw no difference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalerl.algorithm.batch import TokenBatch, TokenLoss, log_ratio
from scalerl.algorithm.losses.registry import LOSSES
from scalerl.recipe.losses import CispoConstants

DEFAULTS = CispoConstants()


@LOSSES.register("cispo")
def cispo(
    logprobs_N: Tensor, batch: TokenBatch, *, ratio_cap: float = DEFAULTS.ratio_cap
) -> TokenLoss:
    """CISPO with an absolute one-sided cap on the ratio."""
    log_rho_N, safe_N, usable_N = log_ratio(logprobs_N, batch)
    # Detached before the cap, as sg() above says. With the graph kept, tokens beyond the cap would
    # lose their gradient, as under PPO's clip, and the others would be weighted twice.
    rho_N = log_rho_N.detach().exp()
    weight_N = rho_N.clamp(max=ratio_cap)
    loss_N = -weight_N * batch.advantages_N * safe_N
    truncated_N = usable_N & (rho_N > ratio_cap)
    return TokenLoss(torch.where(usable_N, loss_N, 0.0), rho_N, truncated_N, usable_N)
