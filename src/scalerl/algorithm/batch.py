"""The token batch: what one optimiser step learns from, as flat tensors over N packed tokens.

Advantages and aggregation weights are numbers per token here: the trainer multiplies, sums and
steps, and does not depend on the algorithm. The weights are computed for the *whole* batch, so that
a batch may be cut into micro-batches, or spread over ranks, by episodes in any way: the losses of
the parts sum to the loss of the batch.

Nothing is padded. Tokens lie in *rows*: first the prompts, each once, however many episodes share
it, then what followed them, episode by episode. The tokens of a row see those of its parent and
the earlier ones of its own. Two episodes of one prompt `a b`, the second with an observation `o`
and a second turn (packing.py makes such a batch):

    token N     0  1  2  3  4  5  6  7
    is          a  b  x  y  u  o  v  w      x y | u o v w are what followed the prompt
    row         0  0  1  1  2  2  2  2      parent of rows -1 0 0, episode of rows -1 0 1
    position    0  1  2  3  2  3  4  5
    turn       -1 -1  0  0  0 -1  1  1
    in loss     .  .  *  *  *  .  *  *
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """Tensors of N tokens in R rows of E episodes."""

    ids_N: Tensor
    #: Tokens before it in what the model saw.
    position_N: Tensor
    row_N: Tensor
    #: Tokens that the engine wrote: sampled by the policy, or forced.
    written_N: Tensor
    #: Tokens in the loss: sampled by the policy.
    in_loss_N: Tensor
    #: Log-prob of each token under the distribution that it was sampled from; 0 for others.
    logprobs_N: Tensor
    #: Version of the weights that sampled each token; -1 for context.
    versions_N: Tensor
    #: Number of the token's turn in its episode, from 0; -1 for context.
    turn_N: Tensor
    #: Normalised advantage of each token.
    advantages_N: Tensor
    #: Weight of each token's loss in the batch's loss (aggregation.py).
    weights_N: Tensor
    #: Row that holds the tokens before those of a row; -1 for prompts.
    parent_R: Tensor
    #: Episode of each row; -1 for prompts, which episodes share.
    episode_R: Tensor
    #: Prompt of each episode, as its index among the groups of the step.
    prompt_E: Tensor
    #: Log-prob under a frozen reference policy, for an optional KL term.
    reference_logprobs_N: Tensor | None = None
    #: Recorded experts of each token (tokens, layers, experts), where routing is replayed; -1 where
    #: none are recorded.
    experts_N: Tensor | None = None

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.prompt_E)

    @property
    def episode_N(self) -> Tensor:
        """Episode of each token; -1 for the tokens of shared prompts."""
        return self.episode_R.index_select(0, self.row_N)

    def per_episode(self, values_N: Tensor) -> Tensor:
        """Sums over the tokens of each episode; tokens of prompts must be 0."""
        zeros_E = torch.zeros(len(self), dtype=values_N.dtype, device=values_N.device)
        return zeros_E.index_add(0, self.episode_N.clamp(min=0), values_N) if len(self) else zeros_E

    def per_token(self, values_E: Tensor) -> Tensor:
        """The value of each token's episode; 0 for tokens of prompts."""
        episode_N = self.episode_N
        if not len(self):
            return torch.zeros(len(episode_N), dtype=values_E.dtype, device=values_E.device)
        return torch.where(episode_N >= 0, values_E.index_select(0, episode_N.clamp(min=0)), 0)

    def take(self, episodes: npt.NDArray[np.int64]) -> tuple[TokenBatch, Tensor]:
        """(some of the episodes, in their order, with the prompts they need; the place of each of
        their tokens in this batch). Weights are unchanged: a micro-batch."""
        row_N, parent_R = self.row_N.numpy(), self.parent_R.numpy()
        episode_R = self.episode_R.numpy()
        number_E = np.full(len(self) + 1, -1)  # one more, for the prompts' episode -1
        number_E[episodes] = np.arange(len(episodes))
        chosen_R = number_E[episode_R] >= 0
        needed = parent_R[chosen_R]
        chosen_R[needed[needed >= 0]] = True
        number_R = np.cumsum(chosen_R) - 1
        at_N = torch.from_numpy(np.flatnonzero(chosen_R[row_N]))
        parents = parent_R[chosen_R]
        rows = {
            "row_N": number_R[row_N[at_N.numpy()]],
            "parent_R": np.where(parents < 0, -1, number_R[parents]),
            "episode_R": number_E[episode_R[chosen_R]],
            "prompt_E": self.prompt_E.numpy()[episodes],
        }
        part = self._map(
            lambda name, v: (
                torch.from_numpy(rows[name]) if name in rows else v.index_select(0, at_N)
            )
        )
        return part, at_N

    def to(self, device: torch.device) -> TokenBatch:
        """The same batch on another device."""
        return self._map(lambda _, v: v.to(device))

    def _map(self, change: Callable[[str, Tensor], Tensor]) -> TokenBatch:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {k: v if v is None else change(k, v) for k, v in values.items()}
        return TokenBatch(**changed)


@dataclass(frozen=True, slots=True, eq=False)
class TokenLoss:
    """The loss of every token, before aggregation."""

    loss_N: Tensor
    #: The ratio the loss used (per token, or the episode's for each of its tokens), detached.
    ratio_N: Tensor
    #: Where the ratio was truncated or clipped so that it changed the gradient.
    truncated_N: Tensor
    #: in_loss_N without the tokens that have a log-prob which is not finite.
    usable_N: Tensor
    #: Further numbers that the loss reports, by name, for the tokens that it was called with.
    metrics: Mapping[str, float] = field(default_factory=dict)


#: Log-ratios are clamped to +-this before exp: e^20 = 5e8 is far beyond any cap, and its square is
#: still finite in float32. Without it one bad token makes 0 * inf = NaN in the backward pass.
MAX_LOG_RATIO = 20.0


def log_ratio(logprobs_N: Tensor, batch: TokenBatch) -> tuple[Tensor, Tensor, Tensor]:
    """(log rho, safe log-probs, usable mask), where log rho is the trainer's log-prob minus the one
    that the generator stored. Tokens out of the loss, and tokens with a log-prob that is not finite
    on either side, get log rho = 0, log-prob 0 and no gradient."""
    finite_N = torch.isfinite(logprobs_N.detach()) & torch.isfinite(batch.logprobs_N)
    usable_N = batch.in_loss_N & finite_N
    zero = torch.zeros((), dtype=logprobs_N.dtype, device=logprobs_N.device)
    # Masked before the subtraction and the exp, not after: behind them the gradient of a masked
    # token with an infinite log-prob would be 0 * inf = NaN.
    safe_N = torch.where(usable_N, logprobs_N, zero)
    old_N = torch.where(usable_N, batch.logprobs_N.to(logprobs_N.dtype), zero)
    return (safe_N - old_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), safe_N, usable_N
