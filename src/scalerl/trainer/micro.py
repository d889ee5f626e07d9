"""Micro-batches: which rows go through the model together, and which rank takes which rows."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from scalerl.algorithm.objective import Prepared
from scalerl.algorithm.rollout import Group, Rollout
from scalerl.models.rows import PromptRows, TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Some rows of a batch."""

    #: Indices of the rows in the batch.
    rows: list[int]
    #: The same rows, in order, as prompts with their completions.
    groups: list[PromptRows]


def kept_rows(groups: Sequence[Group], prepared: Prepared) -> list[PromptRows]:
    """The rows of a prepared batch, in order, grouped by prompt."""
    kept: dict[int, list[Rollout]] = {}
    for p, rollout in zip(prepared.batch.prompt_B.tolist(), prepared.rollouts, strict=True):
        kept.setdefault(p, []).append(rollout)
    return [prompt_rows(groups[p].prompt_token_ids, rollouts) for p, rollouts in kept.items()]


def prompt_rows(prompt: TokenIds, rollouts: Sequence[Rollout]) -> PromptRows:
    """A prompt with its rollouts, as the input of the model."""
    experts = tuple(r.experts for r in rollouts)
    recorded = any(e is not None for e in experts)
    return PromptRows(prompt, tuple(r.token_ids for r in rollouts), experts if recorded else ())


def micro_batches(
    groups: Sequence[PromptRows], token_budget: int, *, packed: bool
) -> list[MicroBatch]:
    """The rows cut into micro-batches. `packed` keeps rows of a prompt together, so that the prompt
    is computed once or few times; otherwise rows are sorted by length, which leaves little padding
    and works for every model."""
    flat = [(g, i) for g, group in enumerate(groups) for i in range(len(group))]
    sizes = [(g, len(groups[g].prompt), len(groups[g].completions[i])) for g, i in flat]
    if packed:
        cuts = _by_prompt(sizes, token_budget)
    else:
        cuts = _by_length([prompt + completion for _, prompt, completion in sizes], token_budget)
    out = []
    for rows in cuts:
        runs = groupby(rows, key=lambda i: flat[i][0])
        under = [groups[g].only([flat[i][1] for i in run]) for g, run in runs]
        out.append(MicroBatch(rows, under))
    return out


def _by_length(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Rows by descending length, cut so that rows x longest <= token_budget; one row may exceed it.

    >>> _by_length([3, 9, 4, 8], token_budget=18)
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    out: list[list[int]] = []
    for i in order:
        if out and (len(out[-1]) + 1) * lengths[out[-1][0]] <= token_budget:
            out[-1].append(i)
        else:
            out.append([i])
    return out


def _by_prompt(sizes: Sequence[tuple[int, int, int]], token_budget: int) -> list[list[int]]:
    """Rows (prompt index, prompt tokens, completion tokens) in order, cut so that tokens <=
    token_budget, where a prompt counts once per micro-batch; one row may exceed it.

    Two rows of 3 tokens after a prompt of 4 make 10; another prompt of 2 with a row would make 15:

    >>> _by_prompt([(0, 4, 3), (0, 4, 3), (1, 2, 3), (1, 2, 3)], token_budget=12)
    [[0, 1], [2, 3]]
    """
    out: list[list[int]] = []
    tokens, last = 0, -1
    for i, (which, prompt, completion) in enumerate(sizes):
        more = completion if which == last else prompt + completion
        if out and tokens + more <= token_budget:
            out[-1].append(i)
            tokens += more
        else:
            out.append([i])
            tokens = prompt + completion
        last = which
    return out


def pad(groups: Sequence[PromptRows]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(ids, attention mask, rows, columns): the sequences padded on the right, and the positions at
    which the model predicts each completion token, row by row."""
    flat = [(group.prompt, c) for group in groups for c in group.completions]
    width = max(group.longest for group in groups)
    ids = torch.zeros(len(flat), width, dtype=torch.long)
    mask = torch.zeros(len(flat), width, dtype=torch.long)
    rows, columns = [], []
    for i, (p, c) in enumerate(flat):
        n = len(p) + len(c)
        ids[i, :n] = torch.from_numpy(np.concatenate([p, c]))
        mask[i, :n] = 1
        rows.append(torch.full((len(c),), i))
        # The logits at position i predict token i + 1.
        columns.append(torch.arange(len(p) - 1, n - 1))
    return ids, mask, torch.cat(rows), torch.cat(columns)


def balanced_shares(work: Sequence[float], ranks: int) -> list[list[int]]:
    """Indices for each rank, so that the work per rank is nearly equal: the largest item first,
    always to the rank with the least work, which is at most a third above the best split. Every
    rank computes the same shares.

    >>> balanced_shares([5.0, 1.0, 4.0, 2.0], ranks=2)
    [[0, 1], [2, 3]]
    """
    out: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0.0, rank) for rank in range(ranks)]
    for i in sorted(range(len(work)), key=lambda i: -work[i]):
        least, rank = heapq.heappop(load)
        out[rank].append(i)
        heapq.heappush(load, (least + work[i], rank))
    return [sorted(mine) for mine in out]


def row_work(tokens: int, width: int) -> float:
    """The cost of a row for a model of hidden size `width`, in tokens of a short row: a block makes
    about 24 D² operations per token outside attention, and 4 n D in it.

    >>> row_work(600, 100), row_work(6, 100)
    (1200.0, 6.06)
    """
    return tokens + tokens**2 / (6 * width)
