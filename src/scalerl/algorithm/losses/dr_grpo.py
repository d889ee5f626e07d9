"""Dr. GRPO: GRPO's clipped loss without its two biases.

The loss of a token is GRPO's. What makes it Dr. GRPO is around it: advantages are centred and
*not* divided by a std (`normalisation = none`), and the sum over tokens is divided by a constant
instead of each answer's length (`aggregation = constant`). To compare with; the paper has no recipe
with it.
"""

from __future__ import annotations

from torch import Tensor

from scalerl.algorithm.batch import TokenBatch, TokenLoss
from scalerl.algorithm.losses.clipped import clipped_surrogate
from scalerl.algorithm.losses.registry import LOSSES
from scalerl.recipe.losses import DrGrpoConstants

DEFAULTS = DrGrpoConstants()


@LOSSES.register("dr-grpo")
def dr_grpo(
    logprobs_N: Tensor,
    batch: TokenBatch,
    *,
    clip_low: float = DEFAULTS.clip_low,
    clip_high: float = DEFAULTS.clip_high,
) -> TokenLoss:
    """The clipped loss; see the module for what goes with it."""
    return clipped_surrogate(logprobs_N, batch, clip_low, clip_high)
