"""Loss aggregation (paper section 3.4): how much each token's loss counts.

For a batch of P prompts, S episodes and N tokens in the loss, with |y| tokens in an episode:

    sample    mean over episodes of the mean over their tokens        1 / (S |y|)
    prompt    mean over prompts of the mean over their tokens         1 / (P tokens of the prompt)
    token     mean over all tokens                                    1 / N
    constant  sum over tokens divided by S times a constant length    1 / (S L)          (Dr. GRPO)

`prompt` is ScaleRL's choice. The weights are computed once for the whole batch; the loss of any
part of it is the weighted sum of its tokens, so that micro-batches, gradient accumulation and data
parallel ranks (their gradients *summed*) add up to the same gradient. An episode without tokens in
the loss counts as an episode with mean 0; a prompt likewise. Context is never counted.

To add an aggregation, write a function like those below and register it, or name it in the recipe
by its import path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scalerl.algorithm.batch import TokenBatch
from scalerl.errors import InputError
from scalerl.recipe.losses import AGGREGATION_NAMES
from scalerl.registry import Registry

#: (batch, 1 for each token that counts in a length and else 0, constant length) -> weight of each
#: token's loss. Weights of tokens out of the loss are ignored.
Aggregation = Callable[[TokenBatch, Tensor, float], Tensor]

AGGREGATIONS: Registry[Aggregation] = Registry("aggregation", announce=AGGREGATION_NAMES.add)


@AGGREGATIONS.register("sample")
def _sample(batch: TokenBatch, counted_N: Tensor, length: float) -> Tensor:
    tokens_E = batch.per_episode(counted_N)
    return batch.per_token(1.0 / (len(batch) * tokens_E.clamp(min=1)))


@AGGREGATIONS.register("prompt")
def _prompt(batch: TokenBatch, counted_N: Tensor, length: float) -> Tensor:
    tokens_E = batch.per_episode(counted_N)
    prompts, index_E = torch.unique(batch.prompt_E, return_inverse=True)
    tokens_P = torch.zeros(len(prompts), dtype=tokens_E.dtype, device=tokens_E.device)
    tokens_P.index_add_(0, index_E, tokens_E)
    return batch.per_token(1.0 / (len(prompts) * tokens_P.clamp(min=1)[index_E]))


@AGGREGATIONS.register("token")
def _token(batch: TokenBatch, counted_N: Tensor, length: float) -> Tensor:
    return torch.ones_like(counted_N) / counted_N.sum().clamp(min=1)


@AGGREGATIONS.register("constant")
def _constant(batch: TokenBatch, counted_N: Tensor, length: float) -> Tensor:
    if not length > 0:
        raise InputError("aggregation 'constant' divides by a length: set it above 0")
    return torch.full_like(counted_N, 1.0 / (len(batch) * length))


def aggregation_weights(
    kind: str | Aggregation,
    batch: TokenBatch,
    *,
    count_forced: bool = False,
    constant_length: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The weight of every token, 0 for those out of the loss. `count_forced` counts forced tokens
    in the length of an episode."""
    if len(batch) == 0:
        return torch.zeros(len(batch.ids_N), dtype=dtype, device=batch.ids_N.device)
    counted_N = (batch.written_N if count_forced else batch.in_loss_N).to(dtype)
    weights_N = AGGREGATIONS.resolve(kind)(batch, counted_N, constant_length)
    return torch.where(batch.in_loss_N, weights_N, 0)
