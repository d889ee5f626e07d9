"""What a loss sees: one row per rollout, padded to T tokens, with everything already decided.

Credit assignment ends here as numbers per token: the trainer multiplies, sums and steps, and knows
no algorithm. Aggregation weights are worked out for the *whole* batch, so that a batch may be cut
into micro-batches or spread over ranks by rows in any way: the sum of the parts is the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LossBatch:
    """Rows B are rollouts, columns T generated tokens."""

    #: Log-prob of each token by the sampler that wrote it.
    generator_logprobs_BT: Tensor
    #: Normalised advantage of each rollout.
    advantages_B: Tensor
    #: Tokens that are in the loss: written by the policy, not padding, of a kept rollout.
    mask_BT: Tensor
    #: What a token's loss counts in the batch's loss (aggregation.py).
    weights_BT: Tensor
    #: Which prompt of the batch a row answers.
    prompt_B: Tensor
    #: Weights version that wrote each token; -1 where unknown.
    versions_BT: Tensor
    #: Log-prob under a frozen reference policy, for an optional KL term.
    reference_logprobs_BT: Tensor | None = None

    def __len__(self) -> int:
        return int(self.advantages_B.shape[0])

    def rows(self, index: Tensor | slice) -> LossBatch:
        """Some of the rows, with their weights unchanged: a micro-batch."""
        return self._each(lambda v: v[index])

    def columns(self, width: int) -> LossBatch:
        """The first `width` tokens of every row: all that rows of at most that length have."""
        return self._each(lambda v: v[:, :width] if v.dim() == 2 else v)

    def to(self, device: torch.device) -> LossBatch:
        """The same batch on another device."""
        return self._each(lambda v: v.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> LossBatch:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {k: v if v is None else change(v) for k, v in values.items()}
        return LossBatch(**changed)


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """A loss before aggregation."""

    loss_BT: Tensor
    #: The ratio the loss used (per token, or the sequence's spread over its tokens), detached.
    ratio_BT: Tensor
    #: Where the ratio was truncated or clipped so that it changed the gradient.
    truncated_BT: Tensor
    #: mask_BT without tokens whose log-probs are not finite.
    usable_BT: Tensor
    #: What the loss has to say of itself, by name, of the rows that it was called with.
    metrics: Mapping[str, float] = field(default_factory=dict)


#: Log-ratios are clamped to +-this before exp: e^20 = 5e8 is far beyond any cap, and its square is
#: still finite in float32. Without it one bad token makes 0 * inf = NaN in the backward pass.
MAX_LOG_RATIO = 20.0


def log_ratio(logprobs_BT: Tensor, batch: LossBatch) -> tuple[Tensor, Tensor, Tensor]:
    """(log rho, log-probs made safe, usable mask): log rho = trainer's log-prob minus the
    generator's own stored one. Tokens out of the loss, and tokens for which either log-prob is not
    finite, get log rho = 0, log-prob 0 and no gradient."""
    generator_BT = batch.generator_logprobs_BT
    finite_BT = torch.isfinite(logprobs_BT.detach()) & torch.isfinite(generator_BT)
    usable_BT = batch.mask_BT & finite_BT
    zero = torch.zeros((), dtype=logprobs_BT.dtype, device=logprobs_BT.device)
    safe_BT = torch.where(usable_BT, logprobs_BT, zero)
    old_BT = torch.where(usable_BT, generator_BT.to(logprobs_BT.dtype), zero)
    return (safe_BT - old_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), safe_BT, usable_BT
