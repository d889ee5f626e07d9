"""Decoding of Llama-shaped models in C, a whole step in one call (decode.c): the numbers of
`LlamaDecoder`, to rounding, several times faster for small models.

A prompt's keys and values are stored once for all rows that share it. Each row has a slot of its
own for the tokens it generates, and nothing moves when other rows leave, or when it is parked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalerl.models.cpu.decode import (
    FusedWeights,
    body,
    by_head,
    causal_attention,
    right_padded,
)
from scalerl.models.cpu.fuse import FusedLayer, rotation
from scalerl.models.cpu.library import library
from scalerl.models.cpu.shape import LlamaShape, agrees
from scalerl.models.head import final_hidden
from scalerl.models.rows import Compaction

POINTER = ctypes.c_void_p
LONG = ctypes.c_int64

#: Rows that a thread takes at a time: small enough that threads end a step together.
ROWS_PER_TASK = 60
#: Threads besides the main one, started when they are first needed.
HELPERS = ThreadPoolExecutor(thread_name_prefix="decode")


class _CLayer(ctypes.Structure):
    _fields_: ClassVar[Any] = [
        (name, POINTER)
        for name in ("qkv", "qkv_bias", "qk_norm", "out", "out_bias", "gate_up", "down", "keys",
                     "values")
    ]  # fmt: skip


class _CModel(ctypes.Structure):
    _fields_: ClassVar[Any] = [
        *((n, LONG) for n in ("layers", "width", "heads", "kv_heads", "size", "inner", "columns")),
        ("eps", ctypes.c_float),
        *((n, POINTER) for n in ("layer", "embedding", "last_norm", "rotation")),
    ]


class _CRows(ctypes.Structure):
    _fields_: ClassVar[Any] = [
        (name, POINTER)
        for name in ("token", "slot", "prompt_length", "own_length", "prompt_keys",
                     "prompt_values", "prompt_room")
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _ParkedRow:
    """Slot and prompt of a parked row."""

    #: Its values in the arrays of `CDecoder._by_row`.
    values: tuple[int, ...]
    holding: tuple[Tensor, Tensor]


class CDecoder:
    """A Decoder over a Llama-shaped model, computed by decode.c."""

    @staticmethod
    def from_model(model: nn.Module, rows_max: int, columns: int) -> CDecoder | None:
        """A decoder, or None for a model or a machine that does not qualify."""
        shape, found = LlamaShape.from_model(model), library()
        if shape is None or found is None or next(model.parameters()).device.type != "cpu":
            return None
        made = CDecoder(model, shape, rows_max, columns, found)
        return made if made._agrees() else None

    def __init__(
        self, model: nn.Module, shape: LlamaShape, rows_max: int, columns: int, lib: ctypes.CDLL
    ) -> None:
        self.model: Any = model
        self.shape, self.lib = shape, lib
        lib.decode_room.restype = lib.vector_length.restype = LONG
        self.vlen = int(lib.vector_length())
        self.weights = FusedWeights.for_model(model, shape)
        self.rows_max, self.columns = rows_max, columns
        #: Rows first .. rows - 1 are decoding; those below `first` are paused.
        self.first = self.rows = 0
        self.padded_size = -(-shape.size // self.vlen) * self.vlen
        whole = -(-columns // self.vlen) * self.vlen
        self.rotation_C = rotation(model, shape, torch.arange(whole)).contiguous()
        # By row: its slot, its number of generated tokens, and the shared prompt's length and room.
        self.slot, self.own, self.prompt, self.room = np.zeros((4, rows_max), dtype=np.int64)
        self.shared_keys, self.shared_values = np.zeros((2, rows_max), dtype=np.uintp)
        # Keeps the prompts' keys and values alive, which C reads through pointers.
        self.holding: list[tuple[Tensor, Tensor]] = []
        self.free = list(range(rows_max))[::-1]
        #: Parked rows by their number.
        self.parked: dict[int, _ParkedRow] = {}
        self._parked_so_far = 0
        self.keys: list[npt.NDArray[np.float32]] = []
        self.values: list[npt.NDArray[np.float32]] = []
        lm: Any = model
        inner = lm.model.layers[0].mlp.down_proj.weight.shape[1]
        self.table = (_CLayer * len(lm.model.layers))()
        self.c_model = _CModel(
            len(self.table), lm.model.norm.weight.shape[0], shape.heads, shape.kv_heads,
            shape.size, inner, columns, shape.eps, ctypes.cast(self.table, POINTER),
            None, None, self.rotation_C.data_ptr(),
        )  # fmt: skip
        self.c_rows = _CRows()
        #: Working memory of each thread.
        self.work = [torch.empty(lib.decode_room(ctypes.byref(self.c_model)))]
        #: Threads of a step; may be changed between two steps.
        self.threads = 1
        self.table_layers: list[FusedLayer] | None = None

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[tuple[int, ...]], which: Sequence[int]) -> Tensor:
        self._allocate()
        shape, vlen = self.shape, self.vlen
        lengths = np.array([len(p) for p in prompts])
        width = -(-int(lengths.max()) // vlen) * vlen
        ids = right_padded(prompts, width)
        room = (len(prompts), len(self.table), shape.kv_heads, width * self.padded_size)
        keys, values = torch.zeros(room), torch.zeros(room)
        hidden = self._prefill_hidden(ids, keys, values)
        new = slice(self.rows, self.rows + len(which))
        each = np.array(which)
        self.slot[new] = [self.free.pop() for _ in which]
        self.own[new], self.prompt[new], self.room[new] = 0, lengths[each], width
        # Copies, because a parked row would otherwise keep the prompts of all its neighbours.
        held = [(k.clone(), v.clone()) for k, v in zip(keys, values, strict=True)]
        self.shared_keys[new] = [held[i][0].data_ptr() for i in which]
        self.shared_values[new] = [held[i][1].data_ptr() for i in which]
        self.holding += [held[i] for i in which]
        self.rows = new.stop
        last = torch.from_numpy(np.arange(len(prompts)) * width + lengths - 1)
        return self._logits(hidden[last])[torch.from_numpy(each)]

    @torch.inference_mode()
    def decode(self, token_B: Tensor) -> Tensor:
        return self._head(self._decode(token_B))

    def _decode(self, token_B: Tensor) -> Tensor:
        """The hidden states that the head takes."""
        self._update_pointers()
        self._check_tokens(token_B)
        live, rows = slice(self.first, self.rows), len(token_B)
        size = ROWS_PER_TASK if self.threads > 1 else max(rows, 1)
        parts = [(at, min(at + size, rows)) for at in range(0, rows, size)]
        hidden = self._run(token_B, *(array[live] for array in self._by_row), parts=parts)
        self.own[live] += 1
        return hidden

    @property
    def _by_row(self) -> tuple[npt.NDArray[Any], ...]:
        """The arrays with a value per row, in the order of `_CRows`."""
        return (self.slot, self.prompt, self.own, self.shared_keys, self.shared_values, self.room)

    def _run(
        self, token_N: Tensor, *by_row: npt.NDArray[Any], parts: Sequence[tuple[int, int]]
    ) -> Tensor:
        """The hidden states of tokens, each with the values of its row. A thread computes one part
        (from, to) after the other. Rows are independent, so the result does not depend on which
        thread computes them."""
        arrays = (token_N.numpy(), *by_row)
        for (name, _), array in zip(_CRows._fields_, arrays, strict=True):
            setattr(self.c_rows, name, array.ctypes.data)
        hidden = torch.empty(len(token_N), self.c_model.width)
        step = self.c_model.width * hidden.element_size()
        left = iter(parts)

        def work(memory: Tensor) -> None:
            for first, last in left:
                self.lib.decode(
                    ctypes.byref(self.c_model), ctypes.byref(self.c_rows), LONG(first), LONG(last),
                    POINTER(hidden.data_ptr() + first * step), POINTER(memory.data_ptr()),
                )  # fmt: skip

        while len(self.work) < self.threads:
            self.work.append(torch.empty_like(self.work[0]))
        others = min(self.threads, len(parts)) - 1
        helping = [HELPERS.submit(work, memory) for memory in self.work[1 : 1 + others]]
        work(self.work[0])
        for helper in helping:
            helper.result()
        return hidden

    def park(self, row: int) -> int:
        at = self.first + row
        self._parked_so_far += 1
        values = tuple(int(array[at]) for array in self._by_row)
        self.parked[self._parked_so_far] = _ParkedRow(values, self.holding[at])
        return self._parked_so_far

    def drop_parked(self, number: int) -> None:
        slot, *_ = self.parked.pop(number).values
        if slot not in self.slot[: self.rows]:  # else `drop_rows` will free it
            self.free.append(slot)

    @torch.inference_mode()
    def extend(self, parked: Sequence[int], tokens: Sequence[tuple[int, ...]]) -> Tensor:
        """As `Decoder.extend`. The tokens of a row are rows of decode.c with one slot, in order: it
        computes a part of rows layer by layer, and in a layer the keys and values of a row are
        stored before the next row attends. Each bit is that of as many decode steps."""
        self._update_pointers()
        new = slice(self.rows, self.rows + len(parked))
        for at, number in enumerate(parked, self.rows):
            row = self.parked.pop(number)
            for array, value in zip(self._by_row, row.values, strict=True):
                array[at] = value
            self.holding.append(row.holding)
        self.rows = new.stop
        sizes = np.array([len(each) for each in tokens])
        by_row = [np.repeat(array[new], sizes) for array in self._by_row]
        ends = np.cumsum(sizes)
        by_row[2] += np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
        token_N = torch.tensor([token for each in tokens for token in each])
        self._check_tokens(token_N)
        hidden = self._run(token_N, *by_row, parts=self._parts(ends.tolist()))
        self.own[new] += sizes
        return self._head(hidden[torch.from_numpy(ends - 1)])

    def _parts(self, ends: Sequence[int]) -> list[tuple[int, int]]:
        """Tokens of whole rows for each thread, given where each row ends."""
        if self.threads == 1:
            return [(0, ends[-1])]
        parts, first = [], 0
        for end in ends:
            if end - first >= ROWS_PER_TASK or end == ends[-1]:
                parts.append((first, end))
                first = end
        return parts

    def drop_rows(self, compaction: Compaction) -> None:
        live = slice(self.first, self.rows)
        before = self.slot[live].copy()
        for array in self._by_row:
            compaction.apply(array[live])
        for into, out_of in zip(compaction.into.tolist(), compaction.out_of.tolist(), strict=True):
            self.holding[self.first + into] = self.holding[self.first + out_of]
        self.rows = self.first + compaction.rows
        del self.holding[self.rows :]
        kept = [row.values[0] for row in self.parked.values()]
        gone = np.setdiff1d(before, [*self.slot[self.first : self.rows].tolist(), *kept])
        self.free += gone.tolist()[::-1]

    def pause_rows(self) -> None:
        self.first = self.rows

    def resume_rows(self) -> None:
        self.first = 0

    def _allocate(self) -> None:
        """Allocate the cache with numpy, which asks for huge pages: a step reads a little of every
        row, and would miss the TLB on each."""
        if not self.keys:
            columns = -(-self.columns // self.vlen) * self.vlen
            size = self.rows_max * self.shape.kv_heads * columns * self.padded_size
            for row in self.table:
                for own, name in ((self.keys, "keys"), (self.values, "values")):
                    own.append(np.empty(size, dtype=np.float32))
                    setattr(row, name, own[-1].ctypes.data)

    def _check_tokens(self, token_N: Tensor) -> None:
        words = self.model.model.embed_tokens.weight.shape[0]
        if len(token_N) and not 0 <= int(token_N.min()) <= int(token_N.max()) < words:
            # Torch raises the same; C would read beyond the table.
            raise IndexError(f"a token is none of the model's {words} words")

    def _update_pointers(self) -> None:
        """Point the C structures at the current weights."""
        layers = self.weights.packed(self._packed)
        if layers is self.table_layers:
            return
        for row, w in zip(self.table, layers, strict=True):
            for name in w.__dataclass_fields__:
                tensor = getattr(w, name)
                setattr(row, name, None if tensor is None else tensor.data_ptr())
        self.c_model.embedding = self.model.model.embed_tokens.weight.data_ptr()
        self.c_model.last_norm = self.model.model.norm.weight.data_ptr()
        self.table_layers = layers

    def _packed(self, w: FusedLayer) -> FusedLayer:
        """A layer with its weights in the panels that product.h reads."""
        halves = [_filled(half, self.vlen) for half in w.gate_up.chunk(2)]
        pairs = torch.stack([h.view(-1, self.vlen, h.shape[1]) for h in halves], dim=1)
        return FusedLayer(
            qkv=self._panels(w.qkv),
            qkv_bias=self._padded(w.qkv_bias),
            qk_norm=None if w.qk_norm is None else w.qk_norm.contiguous(),
            out=self._panels(w.out),
            out_bias=self._padded(w.out_bias),
            gate_up=self._panels(pairs.flatten(0, 2)),
            down=self._panels(w.down),
        )

    def _panels(self, weight: Tensor) -> Tensor:
        """(columns, K) -> (panels, K, columns of a panel)."""
        panel = 2 * self.vlen
        filled = _filled(weight, panel)
        return filled.view(-1, panel, weight.shape[1]).transpose(1, 2).contiguous()

    def _padded(self, bias: Tensor | None) -> Tensor | None:
        return None if bias is None else _filled(bias, 2 * self.vlen).contiguous()

    def _prefill_hidden(self, ids_PT: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Prefill prompts, padded on the right, where no real token attends. Returns hidden states
        before the last norm; writes keys and values in the layout of decode.c."""
        shape, vlen = self.shape, self.vlen
        P, width = ids_PT.shape
        pad = (0, self.padded_size - shape.size)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = by_head(ids_PT, shape, q, k, v)
            blocks = F.pad(k, pad).view(*k.shape[:2], -1, vlen, self.padded_size).transpose(3, 4)
            keys[:, layer] = blocks.flatten(2)
            values[:, layer] = F.pad(v, pad).flatten(2)
            return causal_attention(q, k, v, shape)

        embedding = self.model.model.embed_tokens.weight
        turn_N = self.rotation_C[:width].repeat(P, 1, 1)
        fused = self.weights.fresh()
        return body(ids_PT.flatten(), embedding, fused, shape, turn_N, attend)

    def _logits(self, hidden_BD: Tensor) -> Tensor:
        weight: Tensor = self.model.model.norm.weight
        return self._head(F.rms_norm(hidden_BD, hidden_BD.shape[-1:], weight, self.shape.eps))

    def _head(self, hidden_BD: Tensor) -> Tensor:
        logits: Tensor = self.model.get_output_embeddings()(hidden_BD)
        return logits

    @torch.inference_mode()
    def _agrees(self) -> bool:
        """Whether hidden states equal the model's own, for two prompts and two decode steps."""
        words = self.model.get_input_embeddings().weight.shape[0]
        ids = (torch.arange(1, 13) * 7 % words).view(2, 6)
        trial = CDecoder(self.model, self.shape, 2, 6, self.lib)
        trial.prefill([tuple(row[:4].tolist()) for row in ids], range(2))
        trial._decode(ids[:, 4].contiguous())
        ours = trial._decode(ids[:, 5].contiguous())
        return agrees(ours, final_hidden(self.model, ids)[:, -1])


def _filled(weight: Tensor, to: int) -> Tensor:
    """The weight with zero rows appended up to a multiple of `to`."""
    missing = -len(weight) % to
    return F.pad(weight, (0, 0) * (weight.ndim - 1) + (0, missing)) if missing else weight
