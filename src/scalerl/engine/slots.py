"""The key-value cache of the local engine: one row per running request, all ending at one column.

Every row's tokens end at the same column, so that a decode step writes one column for all rows; a
row of n tokens fills the n columns before it, and what lies further left is masked. Requests join
by having their prompt's keys and values copied in front of the current column, and leave by being
overwritten. The cache belongs to the requests, not to the weights: it stays when weights change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer: (slots, heads, columns, size), allocated once."""

    is_sliding = False

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self.slots = slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def room(like: Tensor) -> Tensor:
            rows, columns = self.slots.rows_max, self.slots.columns_max
            return like.new_zeros(rows, like.shape[1], columns, like.shape[3])

        self.keys, self.values = room(key_states), room(value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        column, end = self.slots.column, self.slots.column + key_states.shape[2]
        live = slice(self.slots.first, self.slots.first + key_states.shape[0])
        self.keys[live, :, column:end] = key_states
        self.values[live, :, column:end] = value_states
        return self.keys[live, :, :end], self.values[live, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots.column + query_length, 0

    def get_seq_length(self) -> int:
        return self.slots.column

    def get_max_length(self) -> int:
        return self.slots.columns_max


class Slots:
    """The rows in use are first .. first + rows - 1; `lengths` are their cached tokens. Rows below
    `first` stand still, with a column of their own."""

    def __init__(self, layers: int, rows_max: int, columns_max: int, device: torch.device) -> None:
        self.rows_max = rows_max
        self.columns_max = columns_max
        self.column = 0
        self.first = 0
        self._held: tuple[int, Tensor] | None = None
        self.lengths_B = torch.zeros(0, dtype=torch.long, device=device)
        self.layers = [SlotLayer(self) for _ in range(layers)]
        self.cache = Cache(layers=self.layers)

    @property
    def rows(self) -> int:
        return len(self.lengths_B)

    def mask(self) -> Tensor:
        """(rows, column + 1): the cached tokens of each row, and the one about to be written."""
        columns = torch.arange(self.column + 1, device=self.lengths_B.device)
        return columns[None, :] >= (self.column - self.lengths_B)[:, None]

    def wrote_one(self) -> None:
        """A decode step has written one token in every row."""
        self.column += 1
        self.lengths_B = self.lengths_B + 1

    def append_rows(self, prefilled: DynamicCache, lengths_B: Tensor, which_B: Tensor) -> None:
        """Append rows from a cache of left-padded prompts; row i takes prompt which_B[i] of it."""
        longest = int(lengths_B.max())
        needed = max(longest, int(self.lengths_B.max()) if self.rows else 0)
        if self.column < longest or self.column + 1 >= self.columns_max:
            self.move_to(needed)
        new = slice(self.first + self.rows, self.first + self.rows + len(lengths_B))
        self.lengths_B = torch.cat([self.lengths_B, lengths_B])
        for ours, theirs in zip(self.layers, prefilled.layers, strict=True):
            if not ours.is_initialized:
                ours.lazy_initialization(theirs.keys, theirs.values)
            columns = slice(self.column - longest, self.column)
            ours.keys[new, :, columns] = theirs.keys[which_B, :, -longest:]
            ours.values[new, :, columns] = theirs.values[which_B, :, -longest:]

    def drop_rows(self, into: Tensor, out_of: Tensor, rows: int) -> None:
        """Some rows move into the places of others, and only the first `rows` stay. Only columns
        with something in them are copied."""
        if len(into):
            first = self.column - int(self.lengths_B.max())
            for layer in self.layers:
                for tensor in (layer.keys, layer.values):
                    live = tensor[self.first :, :, first : self.column]
                    live[into] = live[out_of]
            self.lengths_B[into] = self.lengths_B[out_of]
        self.lengths_B = self.lengths_B[:rows]
        if not rows:
            self.column = 0

    def pause_rows(self) -> None:
        """Set the present rows aside."""
        self._held = (self.column, self.lengths_B)
        self.first, self.column, self.lengths_B = self.rows, 0, self.lengths_B[:0]

    def resume_rows(self) -> None:
        """Go on with the rows that were set aside."""
        assert self._held is not None
        assert not self.rows
        self.column, self.lengths_B = self._held
        self.first, self._held = 0, None

    def make_room(self) -> None:
        """Before a decode step: if the columns are used up, or a third of those that attention
        reads are empty, move all rows left. Moving costs about one step's reading."""
        longest = int(self.lengths_B.max())
        if self.column + 1 > self.columns_max or self.column > 1.5 * longest + 16:
            self.move_to(longest)

    def move_to(self, column: int) -> None:
        """Shift all rows so that they end at another column."""
        span = int(self.lengths_B.max()) if self.rows else 0
        if span and column != self.column:
            live = slice(self.first, self.first + self.rows)
            for layer in self.layers:
                for tensor in (layer.keys, layer.values):
                    moved = tensor[live, :, self.column - span : self.column].clone()
                    tensor[live, :, column - span : column] = moved
        self.column = column
