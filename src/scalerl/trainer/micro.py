"""Micro-batches: rows of about the same length together, up to a budget of tokens.

Sorting by length leaves little padding, needs no attention mask tricks and works for every model;
each micro-batch is padded to its own longest row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

TokenIds = npt.NDArray[np.int64]


def micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Rows by descending length, cut so that rows x longest <= token_budget; one row may exceed it.

    >>> micro_batches([3, 9, 4, 8], token_budget=18)
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


def pad(
    prompts: Sequence[TokenIds], completions: Sequence[TokenIds]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(ids, attention mask, rows, columns): the sequences padded on the right, and where in them
    the model predicts each completion token, row by row."""
    width = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.long)
    rows, columns = [], []
    for i, (p, c) in enumerate(zip(prompts, completions, strict=True)):
        n = len(p) + len(c)
        ids[i, :n] = torch.from_numpy(np.concatenate([p, c]))
        mask[i, :n] = 1
        rows.append(torch.full((len(c),), i))
        columns.append(torch.arange(len(p) - 1, n - 1))
    return ids, mask, torch.cat(rows), torch.cat(columns)
