"""Loss aggregation (paper section 3.4): how much each token's loss counts.

For a batch of P prompts, S rollouts and N tokens in the loss, with |y| tokens in a rollout:

    sample    mean over rollouts of the mean over their tokens        1 / (S |y|)
    prompt    mean over prompts of the mean over their tokens         1 / (P tokens of the prompt)
    token     mean over all tokens                                    1 / N
    constant  sum over tokens divided by S times a constant length    1 / (S L)          (Dr. GRPO)

`prompt` is ScaleRL's choice. The weights are computed once for the whole batch; the loss of any
part of it is the weighted sum of its tokens, so that micro-batches, gradient accumulation and data
parallel ranks (their gradients *summed*) add up to the same gradient. A rollout without tokens in
the loss counts as a rollout with mean 0; a prompt likewise.

To add an aggregation, write a function like those below and register it, or name it in the recipe
by its import path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scalerl.errors import InputError
from scalerl.recipe.losses import AGGREGATION_NAMES
from scalerl.registry import Registry

#: (tokens per row, prompt of each row, constant length) -> weight of each token of the row.
RowWeight = Callable[[Tensor, Tensor, float], Tensor]

AGGREGATIONS: Registry[RowWeight] = Registry("aggregation", announce=AGGREGATION_NAMES.add)


@AGGREGATIONS.register("sample")
def _sample(tokens_B: Tensor, prompt_B: Tensor, length: float) -> Tensor:
    return 1.0 / (len(tokens_B) * tokens_B.clamp(min=1))


@AGGREGATIONS.register("prompt")
def _prompt(tokens_B: Tensor, prompt_B: Tensor, length: float) -> Tensor:
    prompts, index_B = torch.unique(prompt_B, return_inverse=True)
    per_prompt_P = torch.zeros(len(prompts), dtype=tokens_B.dtype, device=tokens_B.device)
    per_prompt_P.index_add_(0, index_B, tokens_B)
    return 1.0 / (len(prompts) * per_prompt_P.clamp(min=1)[index_B])


@AGGREGATIONS.register("token")
def _token(tokens_B: Tensor, prompt_B: Tensor, length: float) -> Tensor:
    return torch.ones_like(tokens_B) / tokens_B.sum().clamp(min=1)


@AGGREGATIONS.register("constant")
def _constant(tokens_B: Tensor, prompt_B: Tensor, length: float) -> Tensor:
    if not length > 0:
        raise InputError("aggregation 'constant' divides by a length: set it above 0")
    return torch.full_like(tokens_B, 1.0 / (len(tokens_B) * length))


def aggregation_weights(
    kind: str | RowWeight,
    mask_BT: Tensor,
    prompt_B: Tensor,
    *,
    counted_BT: Tensor | None = None,
    constant_length: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The weight of every token, 0 outside the mask. `counted_BT` marks the tokens that count in an
    answer's length, where they are not those of the mask (a recipe may count forced tokens)."""
    if len(mask_BT) == 0:
        return torch.zeros(mask_BT.shape, dtype=dtype, device=mask_BT.device)
    counted = mask_BT if counted_BT is None else counted_BT
    tokens_B = counted.sum(dim=1).to(dtype)
    per_row_B = AGGREGATIONS.resolve(kind)(tokens_B, prompt_B, constant_length)
    return mask_BT.to(dtype) * per_row_B[:, None]
