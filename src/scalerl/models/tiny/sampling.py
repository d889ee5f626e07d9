"""Sampling from a tiny model without an engine.

Not the engine of a run, and a hundred times slower: it keeps no state, which makes it the reference
by which the start of a run is stated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from scalerl.environments.interface import Action, Environment, Outcome
from scalerl.environments.parsers import hermes
from scalerl.tasks.running_sums import END_THINK, PHRASE
from scalerl.tasks.task import Prompt

#: Thinking tokens of the preset `tiny`, smallest and largest.
BUDGET = (56, 64)
#: Most tokens of the answer after a thought.
ANSWER_TOKENS = 6
#: Most tokens of a turn of a game.
TURN_TOKENS = 8


def next_tokens(model: Any, rows: Sequence[list[int]], source: Any, greedy: bool) -> list[int]:
    """The next token of every row, at temperature 1 or the likeliest one."""
    import torch

    # Padding is on the right, where causal attention never looks: any token will do.
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = torch.tensor(row)
    with torch.inference_mode():
        logits = model(input_ids=ids).logits
    last = torch.tensor([len(row) - 1 for row in rows])
    ends = logits[torch.arange(len(rows)), last].float()
    if greedy:
        return list(ends.argmax(dim=-1).tolist())
    odds = torch.softmax(ends, dim=-1)
    return list(torch.multinomial(odds, 1, generator=source)[:, 0].tolist())


def sample(
    model: Any,
    tokenizer: Any,
    prompts: list[str],
    seed: int = 0,
    budget: tuple[int, int] = BUDGET,
    greedy: bool = False,
) -> list[str]:
    """One completion of running sums a prompt, at temperature 1 or always the likeliest token. A
    thought that has not ended when its budget (tokens, drawn uniformly) is used up gets PHRASE
    appended, and then an answer."""
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
        tokens = next_tokens(model, [rows[i] for i in going], source, greedy)
        still = []
        for i, token in zip(going, tokens, strict=True):
            rows[i].append(token)
            if answer_from[i] is None and token == end:
                answer_from[i] = len(rows[i])
            elif answer_from[i] is None and len(rows[i]) - starts[i] >= budgets[i]:
                rows[i].extend(phrase)
                answer_from[i] = len(rows[i])
            begun = answer_from[i]
            full = begun is not None and len(rows[i]) - begun >= ANSWER_TOKENS
            if token != tokenizer.eos_token_id and not full:
                still.append(i)
        going = still
    return [tokenizer.decode(row[start:]) for row, start in zip(rows, starts, strict=True)]


def play(
    model: Any,
    tokenizer: Any,
    make_environment: Callable[[], Environment],
    prompts: Sequence[Prompt],
    turns: int,
    seed: int = 0,
    greedy: bool = False,
) -> list[bool]:
    """Whether an episode of each prompt was correct, at temperature 1 or always the likeliest
    token, with a limit of turns."""
    return asyncio.run(_play(model, tokenizer, make_environment, prompts, turns, seed, greedy))


async def _play(
    model: Any,
    tokenizer: Any,
    make_environment: Callable[[], Environment],
    prompts: Sequence[Prompt],
    turns: int,
    seed: int,
    greedy: bool,
) -> list[bool]:
    import torch

    source = torch.Generator().manual_seed(seed)
    environments = [make_environment() for _ in prompts]
    rows = [list[int](tokenizer(str(p.question))["input_ids"]) for p in prompts]
    for environment, prompt in zip(environments, prompts, strict=True):
        await environment.reset(prompt, seed)
    correct = [False] * len(prompts)
    going = list(range(len(prompts)))
    for _ in range(turns):
        starts = {i: len(rows[i]) for i in going}
        _write_turns(model, [rows[i] for i in going], tokenizer.eos_token_id, source, greedy)
        still = []
        for i in going:
            text = tokenizer.decode(rows[i][starts[i] :], skip_special_tokens=True)
            reply = await environments[i].step(Action(*hermes(text)))
            if isinstance(reply, Outcome):
                correct[i] = bool(reply.score.correct)
                continue
            for message in reply.messages:
                rows[i] += tokenizer(message["content"])["input_ids"]
            still.append(i)
        going = still
    return correct


def _write_turns(
    model: Any, rows: Sequence[list[int]], end: int, source: Any, greedy: bool
) -> None:
    """Append a turn to every row, in place; one that is cut off is ended."""
    writing = list(rows)
    for _ in range(TURN_TOKENS):
        if not writing:
            return
        tokens = next_tokens(model, writing, source, greedy)
        for row, token in zip(writing, tokens, strict=True):
            row.append(token)
        writing = [row for row in writing if row[-1] != end]
    for row in writing:
        row.append(end)
