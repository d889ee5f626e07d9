"""Attention over the rows of a micro-batch (`models/rows.py`): the spans that learn.c works on, and
the padded blocks that torch does.

For torch, attention alone works on padded rows, in two blocks: prompts attend to themselves (G x P
queries, P keys); rows, padded to T, attend to their prompt and themselves (R x T queries, P + T
keys). Two prompts, `a` of three tokens with the rows `x` (three tokens) and `y` (two), and `b` of
one token with the row `z` (two):

    token            0  1  2  3  4  5  6  7
    is               a0 a1 a2 b0 x0 x1 y0 z0       x2, y1 and z1 predict nothing

    block      row   queries    keys
    prompts    a     0 1 2      0 1 2             causal
               b     3 - -      3 - -             - is padding: token 0, and weighs nothing
    rows       x     4 5        0 1 2 | 4 5
               y     6 -        0 1 2 | 6 -
               z     7 -        3 - - | 7 -       padding of prompts is masked

The same in numbers, for a model with one head (a token's heads are then its query and its key, so
that the index of a head among both, halved, is the token):

>>> spans = np.array([[0, 3, 0, 0], [3, 1, 0, 0], [4, 2, 0, 3], [6, 1, 0, 3], [7, 1, 3, 1]])
>>> empty = torch.zeros(0)
>>> flat = FlatRows(empty, empty, empty, empty, spans, prompts=2, longest=6)
>>> prompts, rows = PackedRows(flat, LlamaShape(heads=1, kv_heads=1, size=2, eps=1e-6)).blocks
>>> (rows.q_index // 2).view(3, 2).tolist()
[[4, 5], [6, 0], [7, 0]]
>>> (rows.k_index // 2).view(3, 5).tolist()
[[0, 1, 2, 4, 5], [0, 1, 2, 6, 0], [3, 0, 0, 7, 0]]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scalerl.models.cpu.shape import MASKED, LlamaShape
from scalerl.models.rows import FlatRows, Ints

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
    """The attention of rows (`FlatRows`) for a model of some shape."""

    rows: FlatRows
    shape: LlamaShape

    # Both layouts are made on first use: torch needs only this one, C only the next.
    @cached_property
    def blocks(self) -> tuple[AttentionBlock, ...]:
        """The blocks of attention for torch_kernels.py, on padded rows."""
        spans, G = self.rows.spans, self.rows.prompts
        prompts, rows = spans[:G], spans[G:]
        prompt_GP, real_GP = _padded(prompts[:, 0], prompts[:, 1])
        own_RT, real_RT = _padded(rows[:, 0], rows[:, 1])
        P, T = prompt_GP.shape[1], own_RT.shape[1]
        causal = torch.ones(max(P, T), max(P, T), dtype=torch.bool).triu(1).float().mul_(MASKED)
        shape = self.shape
        blocks = [AttentionBlock.from_tokens(prompt_GP, real_GP, prompt_GP, causal[:P, :P], shape)]
        # Without it, every row is a single token, which attends to nothing.
        if T:
            seen_RP, real_RP = _padded(rows[:, 2], rows[:, 3], P)
            mask = np.empty((len(rows), 1, T, P + T), dtype=np.float32)
            mask[..., :P] = np.where(real_RP, 0, np.float32(MASKED))[:, None, None]
            mask[..., P:] = causal[:T, :T].numpy()
            keys = np.concatenate([seen_RP, own_RT], axis=1)
            blocks.append(
                AttentionBlock.from_tokens(own_RT, real_RT, keys, torch.from_numpy(mask), shape)
            )
        return tuple(blocks)

    @cached_property
    def spans(self) -> tuple[Tensor, int]:
        """The spans of attention for learn.c, without padding: (first token, tokens, first token of
        the prompt, tokens of the prompt, offset of its probabilities) of each prompt and non-empty
        row, and the total number of probabilities."""
        spans = self.rows.spans
        columns = -(-(spans[:, 1] + spans[:, 3]) // WHOLE) * WHOLE
        ends = np.cumsum(self.shape.heads * spans[:, 1] * columns)
        kept = np.concatenate([[0], ends[:-1]])
        return torch.from_numpy(np.column_stack([spans, kept])), int(ends[-1])


def _padded(
    first_R: Ints, tokens_R: Ints, width: int | None = None
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(token at each place of a padded row, whether it is one; token 0 as padding)."""
    columns = np.arange(int(tokens_R.max(initial=0)) if width is None else width)
    real = columns < tokens_R[:, None]
    return np.where(real, first_R[:, None] + columns, 0), real
