"""The input of a loss: one row per rollout, padded to T tokens, with credit assigned already.

Advantages and aggregation weights are numbers per token here: the trainer multiplies, sums and
steps, and does not depend on the algorithm. The weights are computed for the *whole* batch, so that
a batch may be cut into micro-batches, or spread over ranks, by rows in any way: the losses of the
parts sum to the loss of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LossBatch:
    """Tensors of a batch: rows B are rollouts, columns T are generated tokens."""

    #: Log-prob of each token under the distribution that it was sampled from.
    generator_logprobs_BT: Tensor
    #: Normalised advantage of each rollout.
    advantages_B: Tensor
    #: Tokens in the loss: sampled by the policy, not padding, of a kept rollout.
    mask_BT: Tensor
    #: Weight of each token's loss in the batch's loss (aggregation.py).
    weights_BT: Tensor
    #: Index of the prompt, within the batch, that each row answers.
    prompt_B: Tensor
    #: Version of the weights that sampled each token; -1 where unknown.
    versions_BT: Tensor
    #: Log-prob under a frozen reference policy, for an optional KL term.
    reference_logprobs_BT: Tensor | None = None

    def __len__(self) -> int:
        return int(self.advantages_B.shape[0])

    def rows(self, index: Tensor | slice) -> LossBatch:
        """Some of the rows, with their weights unchanged: a micro-batch."""
        return self._map(lambda v: v[index])

    def columns(self, width: int) -> LossBatch:
        """The first `width` tokens of every row."""
        return self._map(lambda v: v[:, :width] if v.dim() == 2 else v)

    def to(self, device: torch.device) -> LossBatch:
        """The same batch on another device."""
        return self._map(lambda v: v.to(device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> LossBatch:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {k: v if v is None else change(v) for k, v in values.items()}
        return LossBatch(**changed)


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """The loss of every token, before aggregation."""

    loss_BT: Tensor
    #: The ratio the loss used (per token, or the sequence's for each of its tokens), detached.
    ratio_BT: Tensor
    #: Where the ratio was truncated or clipped so that it changed the gradient.
    truncated_BT: Tensor
    #: mask_BT without the tokens that have a log-prob which is not finite.
    usable_BT: Tensor
    #: Further numbers that the loss reports, by name, for the rows that it was called with.
    metrics: Mapping[str, float] = field(default_factory=dict)


#: Log-ratios are clamped to +-this before exp: e^20 = 5e8 is far beyond any cap, and its square is
#: still finite in float32. Without it one bad token makes 0 * inf = NaN in the backward pass.
MAX_LOG_RATIO = 20.0


def log_ratio(logprobs_BT: Tensor, batch: LossBatch) -> tuple[Tensor, Tensor, Tensor]:
    """(log rho, safe log-probs, usable mask), where log rho is the trainer's log-prob minus the one
    that the generator stored. Tokens out of the loss, and tokens with a log-prob that is not finite
    on either side, get log rho = 0, log-prob 0 and no gradient."""
    generator_BT = batch.generator_logprobs_BT
    finite_BT = torch.isfinite(logprobs_BT.detach()) & torch.isfinite(generator_BT)
    usable_BT = batch.mask_BT & finite_BT
    zero = torch.zeros((), dtype=logprobs_BT.dtype, device=logprobs_BT.device)
    # Masked before the subtraction and the exp, not after: behind them the gradient of a masked
    # token with an infinite log-prob would be 0 * inf = NaN.
    safe_BT = torch.where(usable_BT, logprobs_BT, zero)
    old_BT = torch.where(usable_BT, generator_BT.to(logprobs_BT.dtype), zero)
    return (safe_BT - old_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), safe_BT, usable_BT
