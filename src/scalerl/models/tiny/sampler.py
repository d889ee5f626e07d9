"""A plain sampler for measuring a checkpoint: one batch, whole context, interruption at a budget.

Not the engine of a run, and a hundred times slower: it has no state to get wrong, which makes it
the reference by which the start of the default run is stated.
"""

from __future__ import annotations

from typing import Any

from scalerl.tasks.running_sums import END_THINK, PHRASE

ANSWER_TOKENS = 6


def sample(
    model: Any,
    tokenizer: Any,
    prompts: list[str],
    seed: int = 0,
    budget: tuple[int, int] = (56, 64),
    answer_tokens: int = ANSWER_TOKENS,
    greedy: bool = False,
) -> list[str]:
    """One completion a prompt, at temperature 1 or always the likeliest token. A thought that has
    not ended when its budget (tokens, drawn uniformly) is used up gets PHRASE appended, and then
    an answer."""
    import torch

    source = torch.Generator().manual_seed(seed)
    end = tokenizer.convert_tokens_to_ids(END_THINK)
    phrase = tokenizer(PHRASE, add_special_tokens=False)["input_ids"]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in prompts]
    starts = [len(row) for row in rows]
    budgets = torch.randint(budget[0], budget[1] + 1, (len(rows),), generator=source).tolist()
    answer_from: list[int | None] = [None] * len(rows)
    going = list(range(len(rows)))
    while going:
        longest = max(len(rows[i]) for i in going)
        ids = torch.full((len(going), longest), tokenizer.pad_token_id)
        for at, i in enumerate(going):
            ids[at, : len(rows[i])] = torch.tensor(rows[i])
        with torch.inference_mode():
            logits = model(input_ids=ids).logits
        last = torch.tensor([len(rows[i]) - 1 for i in going])
        ends = logits[torch.arange(len(going)), last].float()
        if greedy:
            tokens = ends.argmax(dim=-1).tolist()
        else:
            odds = torch.softmax(ends, dim=-1)
            tokens = torch.multinomial(odds, 1, generator=source)[:, 0].tolist()
        still = []
        for i, token in zip(going, tokens, strict=True):
            rows[i].append(token)
            if answer_from[i] is None and token == end:
                answer_from[i] = len(rows[i])
            elif answer_from[i] is None and len(rows[i]) - starts[i] >= budgets[i]:
                rows[i].extend(phrase)
                answer_from[i] = len(rows[i])
            begun = answer_from[i]
            full = begun is not None and len(rows[i]) - begun >= answer_tokens
            if token != tokenizer.eos_token_id and not full:
                still.append(i)
        going = still
    return [tokenizer.decode(row[start:]) for row, start in zip(rows, starts, strict=True)]
