"""The language model that engine and trainer share.

Both sides go from hidden states to log-probs by the same two steps, so that their log-probs differ
only by kernels (paper, section 3.2):

    head = head_of(model, "fp32")                           # once; it follows the live weights
    hidden = final_hidden(model, input_ids)                 # BTD, in the model's dtype
    logprobs, entropy = chunked_logprobs(hidden[mask], head, targets[mask], temperature)

and, where all logits of a few positions are wanted, as in sampling: `head.logits(hidden)`.
"""
