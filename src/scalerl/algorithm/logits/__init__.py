"""From hidden states to log-probabilities: the FP32 head and what is computed from it (paper,
section 3.10).

Trainer and generator use the same two steps, so that their log-probs differ only by kernels:

    head = head_of(model)                                   # once; it follows the live weights
    hidden = final_hidden(model, input_ids)                 # BTD, in the model's dtype
    logprobs, entropy = chunked_logprobs(hidden[mask], head, targets[mask], temperature)

and, where all logits of a few positions are wanted, as in sampling: `head.logits(hidden)`.
"""

from scalerl.algorithm.logits.chunked import chunked_logprobs, plain_logprobs
from scalerl.algorithm.logits.head import (
    Head,
    HeadLinear,
    Precision,
    final_hidden,
    head_of,
    project,
    use_head_precision,
)

__all__ = [
    "Head",
    "HeadLinear",
    "Precision",
    "chunked_logprobs",
    "final_hidden",
    "head_of",
    "plain_logprobs",
    "project",
    "use_head_precision",
]
