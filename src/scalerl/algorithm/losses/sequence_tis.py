"""Sequence-level truncated importance sampling: REINFORCE with one capped ratio per episode.

    s      = exp( sum_t log rho_t )                  ratio = "product"
    s      = exp( 1/|y| * sum_t log rho_t )          ratio = "mean", the geometric mean
    loss_t = - sg( min(s, ratio_cap) ) * A * log pi_train(y_t)       for every token of y

sg stops the gradient, as in CISPO: every token keeps its gradient, and truncation takes no episode
out, unlike GSPO's clip. The product is the unbiased weight of an episode before it is capped; its
variance grows with length and staleness. The mean varies little and corrects little.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scalerl.algorithm.batch import MAX_LOG_RATIO, TokenBatch, TokenLoss, log_ratio
from scalerl.algorithm.losses.registry import LOSSES
from scalerl.recipe.losses import SequenceTisConstants

DEFAULTS = SequenceTisConstants()


@LOSSES.register("sequence-tis")
def sequence_tis(
    logprobs_N: Tensor,
    batch: TokenBatch,
    *,
    ratio_cap: float = DEFAULTS.ratio_cap,
    ratio: str = DEFAULTS.ratio,
) -> TokenLoss:
    """REINFORCE with a capped ratio of the whole episode."""
    log_rho_N, safe_N, usable_N = log_ratio(logprobs_N, batch)
    log_s_E = batch.per_episode(log_rho_N.detach())
    if ratio == "mean":
        log_s_E = log_s_E / batch.per_episode(usable_N.to(log_s_E.dtype)).clamp(min=1)
    s_N = batch.per_token(log_s_E.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)).exp()
    loss_N = -s_N.clamp(max=ratio_cap) * batch.advantages_N * safe_N
    return TokenLoss(
        torch.where(usable_N, loss_N, 0.0),
        torch.where(usable_N, s_N, 1.0),
        usable_N & (s_N > ratio_cap),
        usable_N,
    )
