"""Decoding of Llama-shaped models (Llama, Qwen2, Qwen3, Mistral, SmolLM) in torch: the numbers of
the model's own forward pass, to rounding, several times faster on a CPU.

A decode step of a small model is dozens of tiny operations, and its time is set by their number:

- weights are fused (fuse.py), which leaves fewer operations;
- each row starts at column 0 of the cache: nothing moves when requests join, attention reads no
  further than the longest row, and one query per row is two batched products without a copy.

Weights change in flight: the fused copies are made again when a parameter has changed.
`LlamaDecoder.from_model` refuses unknown models, and compares hidden states with the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalerl.models.cpu.fuse import FusedLayer, fuse, rotation, turned
from scalerl.models.cpu.shape import MASKED, LlamaShape, agrees
from scalerl.models.head import final_hidden
from scalerl.models.rows import Compaction, ParkedPlaces

#: Queries of a row that attend at once when tokens are appended to it: few enough that they compute
#: little for keys behind them, which they do not see.
QUERIES = 256
#: (layer, queries, keys, values) -> attention output, all (tokens, heads x size).
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class FusedWeights:
    """The fused copies of a model's weights, shared by all decoders of that model: made again when
    a parameter has changed (weights change in flight)."""

    _of_model: ClassVar[WeakKeyDictionary[nn.Module, FusedWeights]] = WeakKeyDictionary()

    @classmethod
    def for_model(cls, model: nn.Module, shape: LlamaShape) -> FusedWeights:
        found = cls._of_model.get(model)
        if found is None:
            found = cls._of_model[model] = cls(model, shape)
        return found

    def __init__(self, model: nn.Module, shape: LlamaShape) -> None:
        lm: Any = model
        self.blocks: list[Any] = list(lm.model.layers)
        self.shape = shape
        self.parameters = list(model.parameters())
        self.seen: list[tuple[int, int]] = []
        self.layers: list[FusedLayer] = []
        self._packed_of: list[FusedLayer] = []
        self._packed: list[FusedLayer] = []

    def fresh(self) -> list[FusedLayer]:
        """The fused layers of the current weights."""
        # torch counts in-place changes in _version; the pointer changes when a tensor is replaced.
        now = [(p.data_ptr(), p._version) for p in self.parameters]
        if now != self.seen:
            self.layers = [fuse(block, self.shape) for block in self.blocks]
            self.seen = now
        return self.layers

    def packed(self, pack: Callable[[FusedLayer], FusedLayer]) -> list[FusedLayer]:
        """The fused layers of the current weights, in the layout that `pack` gives them."""
        fused = self.fresh()
        if fused is not self._packed_of:
            self._packed = [pack(layer) for layer in fused]
            self._packed_of = fused
        return self._packed


class LlamaDecoder:
    """A Decoder over a Llama-shaped model."""

    @staticmethod
    def from_model(model: nn.Module, rows_max: int, columns: int) -> LlamaDecoder | None:
        """A decoder, or None for a model that must use its own forward pass."""
        shape = LlamaShape.from_model(model)
        if shape is None:
            return None
        found = LlamaDecoder(model, shape, rows_max, columns)
        return found if found._agrees() else None

    def __init__(self, model: nn.Module, shape: LlamaShape, rows_max: int, columns: int) -> None:
        self.model: Any = model
        self.shape = shape
        self.weights = FusedWeights.for_model(model, shape)
        self.device = next(model.parameters()).device
        self.rows_max = rows_max
        self.columns = columns
        #: Rows first .. rows - 1 are decoding; those below `first` are paused.
        self.first = self.rows = 0
        self.longest = 0
        self.lengths_R = torch.zeros(rows_max, dtype=torch.long, device=self.device)
        self.parked = ParkedPlaces(rows_max)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.column_C = torch.arange(columns, device=self.device)
        self.place_RH = torch.arange(rows_max * shape.kv_heads, device=self.device) * columns
        self.place_RH = self.place_RH.view(rows_max, shape.kv_heads)
        self.rotation_C = rotation(model, shape, self.column_C)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[tuple[int, ...]], which: Sequence[int]) -> Tensor:
        self._allocate()
        lengths = torch.tensor([len(p) for p in prompts])
        width = int(lengths.max())
        ids = right_padded(prompts, width)
        which_B = torch.tensor(which)
        lengths_B, which_B = lengths[which_B].to(self.device), which_B.to(self.device)
        new = slice(self.rows, self.rows + len(which))
        shape = self.shape

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = by_head(ids, shape, q, k, v)
            self.keys[layer][new, :, :width] = k[which_B]
            self.values[layer][new, :, :width] = v[which_B]
            return causal_attention(q, k, v, shape)

        turn = self.rotation_C[:width].repeat(len(prompts), 1, 1)
        hidden = self._body(ids.flatten().to(self.device), turn, attend)
        last = torch.arange(len(prompts)) * width + lengths - 1
        self.lengths_R[new] = lengths_B
        self.rows = new.stop
        self.longest = max(self.longest, width)
        return self._logits(hidden[last.to(self.device)])[which_B]

    @torch.inference_mode()
    def decode(self, token_B: Tensor) -> Tensor:
        return self._logits(self._decode(token_B))

    def _decode(self, token_B: Tensor) -> Tensor:
        shape, columns = self.shape, self.longest + 1
        live = slice(self.first, self.rows)
        lengths_B = self.lengths_R[live]
        place = (self.place_RH[live] + lengths_B[:, None]).flatten()
        mask_BC = (self.column_C[:columns] > lengths_B[:, None]).float().mul_(MASKED)
        mask = mask_BC[:, None].expand(-1, shape.kv_heads, -1).reshape(-1, 1, columns)
        group = shape.heads // shape.kv_heads
        mask = mask.expand(-1, group, -1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys.view(-1, shape.size).index_copy_(0, place, k.view(-1, shape.size))
            values.view(-1, shape.size).index_copy_(0, place, v.reshape(-1, shape.size))
            k = keys[live, :, :columns].flatten(0, 1)
            v = values[live, :, :columns].flatten(0, 1)
            scores = torch.baddbmm(mask, q.view(-1, group, shape.size), k.transpose(1, 2))
            return torch.bmm(scores.softmax(dim=-1), v).view(len(token_B), -1)

        hidden = self._body(token_B, self.rotation_C[lengths_B], attend)
        # A view: this counts the new token in `lengths_R`.
        lengths_B += 1
        self.longest += 1
        return hidden

    @torch.inference_mode()
    def park(self, row: int) -> int:
        number, place = self.parked.add()
        self._copy_row(self.first + row, place)
        return number

    @torch.inference_mode()
    def drop_parked(self, number: int) -> None:
        into, out_of = self.parked.remove(number)
        if into != out_of:
            self._copy_row(out_of, into)

    def _copy_row(self, out_of: int, into: int) -> None:
        length = int(self.lengths_R[out_of])
        for tensor in (*self.keys, *self.values):
            tensor[into, :, :length] = tensor[out_of, :, :length]
        self.lengths_R[into] = length

    @torch.inference_mode()
    def extend(self, parked: Sequence[int], tokens: Sequence[tuple[int, ...]]) -> Tensor:
        first = self.rows
        before = [self._append_parked(number) for number in parked]
        sizes = torch.tensor([len(each) for each in tokens])
        ends = sizes.cumsum(0)
        lengths = [n + len(each) for n, each in zip(before, tokens, strict=True)]
        #: (first token, row, number of its tokens, cached ones included) of each row.
        spans = list(zip((ends - sizes).tolist(), range(first, self.rows), lengths, strict=True))
        row_N = torch.repeat_interleave(torch.arange(first, self.rows), sizes).to(self.device)
        position_N = torch.cat([torch.arange(n, m) for n, m in zip(before, lengths, strict=True)])
        position_N = position_N.to(self.device)
        place = (self.place_RH[row_N] + position_N[:, None]).flatten()
        shape = self.shape

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys.view(-1, shape.size).index_copy_(0, place, k.view(-1, shape.size))
            values.view(-1, shape.size).index_copy_(0, place, v.reshape(-1, shape.size))
            q = q.view(len(q), -1, shape.size)
            # Row by row: no row is padded to the length of another, nor depends on it.
            seen = [
                extended_attention(
                    q[at : at + len(new)], keys[row, :, :n], values[row, :, :n], shape
                )
                for new, (at, row, n) in zip(tokens, spans, strict=True)
            ]
            return torch.cat(seen)

        ids = torch.tensor([token for each in tokens for token in each], device=self.device)
        hidden = self._body(ids, self.rotation_C[position_N], attend)
        self.lengths_R[first : self.rows] = torch.tensor(lengths, device=self.device)
        self._measure()
        return self._logits(hidden[(ends - 1).to(self.device)])

    def _append_parked(self, number: int) -> int:
        """Make a parked row the last one; the number of its tokens."""
        place = self.parked.place_of(number)
        length = int(self.lengths_R[place])
        # Copied out first: its new place may be the one that is freed.
        tensors = (*self.keys, *self.values)
        kept = [tensor[place, :, :length].clone() for tensor in tensors]
        self.drop_parked(number)
        for tensor, row in zip(tensors, kept, strict=True):
            tensor[self.rows, :, :length] = row
        self.lengths_R[self.rows] = length
        self.rows += 1
        return length

    @torch.inference_mode()
    def drop_rows(self, compaction: Compaction) -> None:
        if len(compaction.into):
            into = torch.from_numpy(compaction.into + self.first).to(self.device)
            out_of = torch.from_numpy(compaction.out_of + self.first).to(self.device)
            # Only columns in use are copied.
            width = int(self.lengths_R[out_of].max())
            for tensor in (*self.keys, *self.values):
                live = tensor[:, :, :width]
                live.index_copy_(0, into, live.index_select(0, out_of))
            self.lengths_R[into] = self.lengths_R[out_of]
        self.rows = self.first + compaction.rows
        self._measure()

    def pause_rows(self) -> None:
        self.first = self.rows
        self.longest = 0

    def resume_rows(self) -> None:
        self.first = 0
        self._measure()

    def _measure(self) -> None:
        in_use = self.lengths_R[self.first : self.rows]
        self.longest = int(in_use.max()) if len(in_use) else 0

    def _allocate(self) -> None:
        """Allocate the cache as zeros: a NaN in uninitialised memory would survive the mask."""
        if not self.keys:
            room = (self.rows_max, self.shape.kv_heads, self.columns, self.shape.size)
            for _ in self.weights.blocks:
                self.keys.append(torch.zeros(room, device=self.device))
                self.values.append(torch.zeros(room, device=self.device))

    def _body(self, token_N: Tensor, turn_N: Tensor, attend: Attend) -> Tensor:
        embedding = self.model.model.embed_tokens.weight
        return body(token_N, embedding, self.weights.fresh(), self.shape, turn_N, attend)

    def _logits(self, hidden_BD: Tensor) -> Tensor:
        logits: Tensor = self.model.get_output_embeddings()(self._last_norm(hidden_BD))
        return logits

    def _last_norm(self, hidden_BD: Tensor) -> Tensor:
        weight: Tensor = self.model.model.norm.weight
        return F.rms_norm(hidden_BD, hidden_BD.shape[-1:], weight, self.shape.eps)

    @torch.inference_mode()
    def _agrees(self) -> bool:
        """Whether hidden states equal the model's own, for two prompts and one decode step."""
        words = self.model.get_input_embeddings().weight.shape[0]
        ids = (torch.arange(1, 11, device=self.device) * 7 % words).view(2, 5)
        trial = LlamaDecoder(self.model, self.shape, 2, 5)
        trial.prefill([tuple(row[:4].tolist()) for row in ids], range(2))
        ours = trial._last_norm(trial._decode(ids[:, 4]))
        return agrees(ours, final_hidden(self.model, ids)[:, -1])


def body(
    token_N: Tensor,
    embedding: Tensor,
    layers: Sequence[FusedLayer],
    shape: LlamaShape,
    turn_N: Tensor,
    attend: Attend,
) -> Tensor:
    """Hidden states before the last norm. The weights of the other norms are fused into the
    projections."""
    x_ND = F.embedding(token_N, embedding)
    q_end, k_end = shape.heads * shape.size, (shape.heads + shape.kv_heads) * shape.size
    for i, w in enumerate(layers):
        qkv = F.linear(_norm(x_ND, shape), w.qkv, w.qkv_bias)
        qk = qkv[:, :k_end]
        if w.qk_norm is not None:
            qk = _norm(qk.view(len(qk), -1, shape.size), shape) * w.qk_norm
        qk = turned(qk, turn_N, shape)
        seen = attend(i, qk[:, :q_end].contiguous(), qk[:, q_end:].contiguous(), qkv[:, k_end:])
        x_ND = torch.addmm(x_ND, seen, w.out.t())
        if w.out_bias is not None:
            x_ND += w.out_bias
        gate, up = F.linear(_norm(x_ND, shape), w.gate_up).chunk(2, dim=1)
        x_ND = torch.addmm(x_ND, F.silu(gate).mul_(up), w.down.t())
    return x_ND


def _norm(x: Tensor, shape: LlamaShape) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], None, shape.eps)


def right_padded(prompts: Sequence[Sequence[int]], width: int) -> Tensor:
    """The tokens of prompts (prompts, width), padded on the right."""
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    for i, prompt in enumerate(prompts):
        ids[i, : len(prompt)] = torch.tensor(prompt)
    return ids


def by_head(ids_PT: Tensor, shape: LlamaShape, *tensors: Tensor) -> list[Tensor]:
    """Queries, keys or values (tokens, heads x size) of prompts as (prompts, heads, T, size)."""
    return [t.view(*ids_PT.shape, -1, shape.size).transpose(1, 2) for t in tensors]


def causal_attention(q: Tensor, k: Tensor, v: Tensor, shape: LlamaShape) -> Tensor:
    """Attention of prompts that are padded on the right, where no real token looks."""
    # The scale is 1, since it is fused into the queries' weights.
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=1.0, enable_gqa=shape.heads != shape.kv_heads
    )
    return out.transpose(1, 2).flatten(2).flatten(0, 1)


def extended_attention(q: Tensor, k: Tensor, v: Tensor, shape: LlamaShape) -> Tensor:
    """Attention of the last tokens of a row (tokens, heads, size) to all of its keys and values
    (heads, tokens, size)."""
    out: list[Tensor] = []
    before = k.shape[1] - len(q)
    for first in range(0, len(q), QUERIES):
        part = q[first : first + QUERIES]
        seen = before + first + len(part)
        mask = torch.ones(len(part), seen, dtype=torch.bool, device=q.device).tril(before + first)
        # With a dimension for the batch: without it torch takes a path that is four times slower.
        out += F.scaled_dot_product_attention(
            part.transpose(0, 1)[None], k[None, :, :seen], v[None, :, :seen], attn_mask=mask,
            scale=1.0, enable_gqa=shape.heads != shape.kv_heads,
        )  # fmt: skip
    return torch.cat(out, dim=1).transpose(0, 1).flatten(1)
