"""Token batches made by hand: one row per episode, without prompts."""

import numpy as np
import torch

from scalerl.algorithm.batch import TokenBatch


def token_batch(lengths, logprobs, advantages, *, in_loss=None, weights=None, prompts=None,
                versions=None, reference=None, dtype=torch.float64):  # fmt: skip
    """Of episodes of these lengths. What is given per token is flat; advantages are per episode."""
    n, lengths = sum(lengths), torch.tensor(lengths, dtype=torch.long)
    row_N = torch.repeat_interleave(lengths)
    mask_N = torch.tensor([True] * n if in_loss is None else in_loss, dtype=torch.bool)

    def floats(values):
        return torch.as_tensor(np.asarray(values), dtype=dtype).reshape(n)

    return TokenBatch(
        ids_N=torch.zeros(n, dtype=torch.long),
        position_N=torch.zeros(n, dtype=torch.long),
        row_N=row_N,
        written_N=torch.ones(n, dtype=torch.bool),
        in_loss_N=mask_N,
        logprobs_N=floats(logprobs),
        versions_N=torch.tensor(versions or [0] * n, dtype=torch.long),
        turn_N=torch.zeros(n, dtype=torch.long),
        advantages_N=torch.tensor(advantages, dtype=dtype)[row_N],
        weights_N=mask_N.to(dtype) / max(n, 1) if weights is None else floats(weights),
        parent_R=torch.full_like(lengths, -1),
        episode_R=torch.arange(len(lengths)),
        prompt_E=torch.arange(len(lengths)) if prompts is None else torch.tensor(prompts),
        reference_logprobs_N=None if reference is None else floats(reference),
    )
