"""Layout of a micro-batch in which prompts are computed once and completions are not padded.

Tokens N: the G prompts, padded to P, then the completions of all R rows one after the other,
without the last token of each, which predicts nothing. Attention alone works on padded rows, in two
blocks: prompts attend to themselves (G x P queries, P keys); completions, padded to T, attend to
their prompt and themselves (R x T queries, P + T keys).

Two prompts, `a` of three tokens with the completions `x` (three tokens) and `y` (two), and `b` of
one token with the completion `z` (two):

    token N          0  1  2  3  4  5  6  7  8  9
    is               a0 a1 a2 b0 -  -  x0 x1 y0 z0       x2, y1 and z1 predict nothing

    block      row   queries    keys
    prompts    a     0 1 2      0 1 2             causal
               b     3 4 5      3 4 5             4 and 5 are padding: no query attends to them
    completions x    6 7        0 1 2 | 6 7
               y     8 -        0 1 2 | 8 -       - is padding: token 0, and weighs nothing
               z     9 -        3 4 5 | 9 -       4 and 5 are masked

    predicted        x0 x1 x2 y0 y1 z0 z1
    by hidden state  2  6  7  2  8  3  9          the last of a prompt predicts every first token

The same in numbers, for a model with one head (a token's heads are then its query and its key, so
that the index of a head among both, halved, is the token):

>>> a, b, x, y, z = (np.array(t) for t in ([1, 2, 3], [4], [5, 6, 7], [8, 9], [10, 11]))
>>> groups = [PromptRows(a, (x, y)), PromptRows(b, (z,))]
>>> rows = PackedRows.from_groups(groups, LlamaShape(heads=1, kv_heads=1, size=2, eps=1e-6))
>>> rows.ids_N.tolist()
[1, 2, 3, 4, 0, 0, 5, 6, 8, 10]
>>> prompts, completions = rows.blocks
>>> (completions.q_index // 2).view(3, 2).tolist()
[[6, 7], [8, 0], [9, 0]]
>>> (completions.k_index // 2).view(3, 5).tolist()
[[0, 1, 2, 6, 7], [0, 1, 2, 8, 0], [3, 4, 5, 9, 0]]
>>> rows.source_M.tolist()
[2, 6, 7, 2, 8, 3, 9]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scalerl.models.cpu.shape import MASKED, LlamaShape
from scalerl.models.rows import PromptRows

Ints = npt.NDArray[np.int64]

#: Rows of probabilities are padded to a multiple of this: a panel on any processor (product.h).
WHOLE = 32


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBlock:
    """Indices of the queries, keys and values of one block of attention. Everything is indexed by
    head, in rows of `size` numbers: one gather makes the operands of the products."""

    #: (row, kv head, query of it, column) -> head among all queries and keys.
    q_index: Tensor
    #: (row, kv head, query of it, column) -> head among all outputs.
    out_index: Tensor
    #: (row, kv head, key) -> head among all queries and keys.
    k_index: Tensor
    #: (row, kv head, key) -> head among all queries, keys and values.
    v_index: Tensor
    #: (token, head) -> position of its output.
    back_index: Tensor
    #: 0 for padding, in the order of q_index.
    real: Tensor
    mask: Tensor
    #: Rows, columns, keys.
    shape: tuple[int, int, int]

    @staticmethod
    def from_tokens(
        query_RT: Ints,
        real_RT: npt.NDArray[np.bool_],
        key_RS: Ints,
        mask: Tensor,
        shape: LlamaShape,
    ) -> AttentionBlock:
        """The block for query tokens, key tokens and the mask that is added to their scores."""
        R, T = query_RT.shape
        S = key_RS.shape[1]
        kv, group = shape.kv_heads, shape.heads // shape.kv_heads
        head = np.arange(shape.heads).reshape(1, kv, group, 1)
        key_head = shape.heads + np.arange(kv)[:, None]
        token, key = query_RT[:, None, None, :], key_RS[:, None, :]
        flat = np.arange(R * shape.heads * T).reshape(R, kv, group, T)
        back = flat.transpose(0, 3, 1, 2).reshape(R, T, shape.heads)[real_RT]
        to = torch.from_numpy
        return AttentionBlock(
            q_index=to((token * (shape.heads + kv) + head).ravel()),
            out_index=to((token * shape.heads + head).ravel()),
            k_index=to((key * (shape.heads + kv) + key_head).ravel()),
            v_index=to((key * (shape.heads + 2 * kv) + key_head + kv).ravel()),
            back_index=to(back.ravel()),
            real=to(real_RT).float()[:, None].expand(R, shape.heads, T).reshape(-1, 1),
            mask=mask,
            shape=(R, T, S),
        )

    def gathered(self, heads: Tensor, index: Tensor, shape: LlamaShape) -> Tensor:
        """The queries, keys or values of an index, ready for batched products."""
        return heads.index_select(0, index).view(self.shape[0] * shape.kv_heads, -1, shape.size)

    def probabilities(self, q: Tensor, k: Tensor) -> Tensor:
        R, T, S = self.shape
        scores = torch.bmm(q, k.transpose(1, 2))
        scores.view(R, -1, T, S).add_(self.mask)
        return scores.softmax(dim=-1)


@dataclass(frozen=True, eq=False)
class PackedRows:
    """The tokens of a micro-batch, as the module's docstring lays them out."""

    shape: LlamaShape
    ids_N: Tensor
    position_N: Tensor
    #: Completion token -> hidden state that predicts it.
    source_M: Tensor
    #: Completion token -> its id.
    target_M: Tensor
    #: Completion token -> its row and column.
    place_M: tuple[Tensor, Tensor]
    #: Prompt -> its number of tokens.
    sizes_G: Ints
    #: Tokens of a prompt with padding.
    width: int
    #: Row -> its prompt.
    which_R: Ints
    #: Row -> its number of completion tokens without the last, which predicts nothing.
    inner_R: Ints

    @staticmethod
    def from_groups(groups: Sequence[PromptRows], shape: LlamaShape) -> PackedRows:
        """The rows of the groups, in their order."""
        completions = [c for group in groups for c in group.completions]
        sizes = np.array([len(group.prompt) for group in groups])
        lengths = np.array([len(c) for c in completions])
        inner = np.maximum(lengths - 1, 0)
        G, P = len(groups), int(sizes.max())
        which = np.repeat(np.arange(G), [len(group) for group in groups])
        prompt_ids = np.zeros((G, P), dtype=np.int64)
        for i, group in enumerate(groups):
            prompt_ids[i, : len(group.prompt)] = group.prompt
        targets = np.concatenate(completions)
        (row_M, column_M), (row_C, column_C) = _places(lengths), _places(inner)
        first = G * P + np.cumsum(inner) - inner
        before = sizes[which]
        # The first token of a completion is predicted by the last one of its prompt.
        source = np.where(
            column_M == 0, which[row_M] * P + before[row_M] - 1, first[row_M] + column_M - 1
        )
        position = [np.tile(np.arange(P), G), before[row_C] + column_C]
        to = torch.from_numpy
        return PackedRows(
            shape=shape,
            ids_N=to(np.concatenate([prompt_ids.ravel(), targets[column_M < inner[row_M]]])),
            position_N=to(np.concatenate(position)),
            source_M=to(source),
            target_M=to(targets),
            place_M=(to(row_M), to(column_M)),
            sizes_G=sizes,
            width=P,
            which_R=which,
            inner_R=inner,
        )

    # Both layouts are made on first use: torch needs only this one, C only the next.
    @cached_property
    def blocks(self) -> tuple[AttentionBlock, ...]:
        """The blocks of attention for torch_kernels.py, on padded rows."""
        shape, which, inner = self.shape, self.which_R, self.inner_R
        G, P, R, T = len(self.sizes_G), self.width, len(which), int(inner.max())
        before = self.sizes_G[which]
        prompt_GP = np.arange(G * P).reshape(G, P)
        own_RT = np.zeros((R, T), dtype=np.int64)
        row_C, column_C = _places(inner)
        own_RT[row_C, column_C] = np.arange(G * P, G * P + len(row_C))
        causal = torch.ones(max(P, T), max(P, T), dtype=torch.bool).triu(1).float().mul_(MASKED)
        whole = np.ones((G, P), dtype=bool)
        blocks = [AttentionBlock.from_tokens(prompt_GP, whole, prompt_GP, causal[:P, :P], shape)]
        # Without it, every completion is a single token, which attends to nothing.
        if T:
            to_prompt = np.where(np.arange(P) >= before[:, None], np.float32(MASKED), 0)
            mask = np.empty((R, 1, T, P + T), dtype=np.float32)
            mask[..., :P], mask[..., P:] = to_prompt[:, None, None], causal[:T, :T].numpy()
            real_RT = np.arange(T) < inner[:, None]
            keys = np.concatenate([prompt_GP[which], own_RT], axis=1)
            blocks.append(
                AttentionBlock.from_tokens(own_RT, real_RT, keys, torch.from_numpy(mask), shape)
            )
        return tuple(blocks)

    @cached_property
    def spans(self) -> tuple[Tensor, int]:
        """The spans of attention for learn.c, without padding: (first token, tokens, first token of
        the prompt, tokens of the prompt, offset of its probabilities) of each prompt and non-empty
        row, and the total number of probabilities."""
        G, P, inner = len(self.sizes_G), self.width, self.inner_R
        first = G * P + np.cumsum(inner) - inner
        none, starts = np.zeros(G, dtype=np.int64), np.arange(G) * P
        prompts = np.stack([starts, self.sizes_G, none, none], axis=1)
        rows = np.stack([first, inner, starts[self.which_R], self.sizes_G[self.which_R]], axis=1)
        spans = np.concatenate([prompts, rows[inner > 0]])
        columns = -(-(spans[:, 1] + spans[:, 3]) // WHOLE) * WHOLE
        ends = np.cumsum(self.shape.heads * spans[:, 1] * columns)
        kept = np.concatenate([[0], ends[:-1]])
        return torch.from_numpy(np.column_stack([spans, kept])), int(ends[-1])


def _places(lengths: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """(row, column) of every token of rows of these lengths."""
    row = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths
    return row, np.arange(len(row)) - starts[row]
