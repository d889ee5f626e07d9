"""GRPO (paper Eq. 7): token ratios, symmetric clip.

    loss_t = - min( rho_t A, clip(rho_t, 1 - clip, 1 + clip) A )

With sample averaging and prompt-level normalisation it is DeepSeek's recipe as the paper runs it.
"""

from __future__ import annotations

from torch import Tensor

from scalerl.algorithm.batch import TokenBatch, TokenLoss
from scalerl.algorithm.losses.clipped import clipped_surrogate
from scalerl.algorithm.losses.registry import LOSSES
from scalerl.errors import InputError
from scalerl.recipe.losses import GrpoConstants

DEFAULTS = GrpoConstants()


@LOSSES.register("grpo")
def grpo(
    logprobs_N: Tensor,
    batch: TokenBatch,
    *,
    clip_low: float = DEFAULTS.clip_low,
    clip_high: float = DEFAULTS.clip_high,
) -> TokenLoss:
    """GRPO; its clip is symmetric by definition."""
    if clip_low != clip_high:
        raise InputError("GRPO clips symmetrically: use equal clip_low and clip_high, or loss dapo")
    return clipped_surrogate(logprobs_N, batch, clip_low, clip_high)
