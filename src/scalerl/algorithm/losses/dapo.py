"""DAPO (paper Eq. 8): token ratios, asymmetric clip ("clip higher").

    loss_t = - min( rho_t A, clip(rho_t, 1 - clip_low, 1 + clip_high) A )

The paper finds its ceiling sensitive to clip_high and uses 0.26 (the original: 0.28). Dynamic
refilling of the batch is a filter (filters.py), not part of the loss.
"""

from __future__ import annotations

from torch import Tensor

from scalerl.algorithm.batch import TokenBatch, TokenLoss
from scalerl.algorithm.losses.clipped import clipped_surrogate
from scalerl.algorithm.losses.registry import LOSSES
from scalerl.recipe.losses import DapoConstants

DEFAULTS = DapoConstants()


@LOSSES.register("dapo")
def dapo(
    logprobs_N: Tensor,
    batch: TokenBatch,
    *,
    clip_low: float = DEFAULTS.clip_low,
    clip_high: float = DEFAULTS.clip_high,
) -> TokenLoss:
    """DAPO's asymmetric clip."""
    return clipped_surrogate(logprobs_N, batch, clip_low, clip_high)
