"""The key-value cache of `ModelDecoder`, with one row per running rollout.

The tokens of all rows end at the same column, so that a decode step writes one column for all rows;
a row of n tokens fills the n columns before it, and the columns further left are masked. A rollout
is added by copying the keys and values of its prompt in front of the current column, and removed by
overwriting its row. Parked rows lie in the last rows of the cache, from column 0 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from scalerl.models.rows import ParkedPlaces


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer: (slots, heads, columns, head size), allocated once."""

    is_sliding = False

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self.slots = slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def zeros(like: Tensor) -> Tensor:
            rows, columns = self.slots.rows_max, self.slots.columns_max
            return like.new_zeros(rows, like.shape[1], columns, like.shape[3])

        self.keys, self.values = zeros(key_states), zeros(value_states)
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
    """The rows of the cache. Rows first … first + rows - 1 are active, with `lengths_B` cached
    tokens each; rows below `first` are paused and have a column of their own."""

    def __init__(self, layers: int, rows_max: int, columns_max: int, device: torch.device) -> None:
        self.rows_max = rows_max
        self.columns_max = columns_max
        self.column = 0
        self.first = 0
        #: Column and lengths of the paused rows.
        self._paused: tuple[int, Tensor] | None = None
        self.lengths_B = torch.zeros(0, dtype=torch.long, device=device)
        self.parked = ParkedPlaces(rows_max)
        #: Number of cached tokens of the parked row in each place.
        self._parked_length = [0] * rows_max
        self.layers = [SlotLayer(self) for _ in range(layers)]
        self.cache = Cache(layers=self.layers)

    @property
    def rows(self) -> int:
        return len(self.lengths_B)

    def mask(self) -> Tensor:
        """The attention mask (rows, column + 1): cached tokens, and the one about to be written."""
        columns = torch.arange(self.column + 1, device=self.lengths_B.device)
        return columns[None, :] >= (self.column - self.lengths_B)[:, None]

    def wrote_one(self) -> None:
        """Count the token that a decode step has written in every row."""
        self.column += 1
        self.lengths_B = self.lengths_B + 1

    def append_rows(self, prefilled: DynamicCache, lengths_B: Tensor, which_B: Tensor) -> None:
        """Append rows from a cache of left-padded prompts; row i takes prompt which_B[i]."""
        longest = int(lengths_B.max())
        new = self._new_rows(lengths_B)
        columns = slice(self.column - longest, self.column)
        for ours, theirs in zip(self.layers, prefilled.layers, strict=True):
            if not ours.is_initialized:
                ours.lazy_initialization(theirs.keys, theirs.values)
            ours.keys[new, :, columns] = theirs.keys[which_B, :, -longest:]
            ours.values[new, :, columns] = theirs.values[which_B, :, -longest:]

    def _new_rows(self, lengths_B: Tensor) -> slice:
        """Count rows of these lengths as active; the rows, which the caller fills."""
        longest = int(lengths_B.max())
        needed = max(longest, int(self.lengths_B.max()) if self.rows else 0)
        if self.column < longest or self.column + 1 >= self.columns_max:
            self.move_to(needed)
        first = self.first + self.rows
        self.lengths_B = torch.cat([self.lengths_B, lengths_B])
        return slice(first, first + len(lengths_B))

    def park(self, row: int) -> int:
        """Copy an active row to a place for parked rows; its number."""
        number, place = self.parked.add()
        length = self._parked_length[place] = int(self.lengths_B[row])
        for tensor in self._tensors():
            cached = tensor[self.first + row, :, self.column - length : self.column]
            tensor[place, :, :length] = cached
        return number

    def drop_parked(self, number: int) -> None:
        """Free the place of a parked row."""
        into, out_of = self.parked.remove(number)
        if into != out_of:
            length = self._parked_length[into] = self._parked_length[out_of]
            for tensor in self._tensors():
                tensor[into, :, :length] = tensor[out_of, :, :length]

    def take_parked(self, numbers: Sequence[int]) -> tuple[DynamicCache, Tensor]:
        """A cache with these parked rows, padded on the left, and their lengths; they are parked no
        longer."""
        places = [self.parked.place_of(number) for number in numbers]
        lengths = [self._parked_length[place] for place in places]
        cache, width = DynamicCache(), max(lengths)
        for i, layer in enumerate(self.layers):
            copies = []
            for tensor in (layer.keys, layer.values):
                copy = tensor.new_zeros(len(places), tensor.shape[1], width, tensor.shape[3])
                for row, place, n in zip(copy, places, lengths, strict=True):
                    row[:, width - n :] = tensor[place, :, :n]
                copies.append(copy)
            cache.update(*copies, i)
        for number in numbers:
            self.drop_parked(number)
        return cache, torch.tensor(lengths, device=self.lengths_B.device)

    def append_extended(self, extended: DynamicCache, begin_B: Tensor, lengths_B: Tensor) -> None:
        """Append the rows of a cache that begin at these columns and have these lengths."""
        new = self._new_rows(lengths_B)
        spans = list(zip(begin_B.tolist(), lengths_B.tolist(), strict=True))
        for ours, theirs in zip(self.layers, extended.layers, strict=True):
            for into, out_of in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
                for row, cached, (begin, n) in zip(into[new], out_of, spans, strict=True):
                    row[:, self.column - n : self.column] = cached[:, begin : begin + n]

    def _tensors(self) -> Iterator[Tensor]:
        for layer in self.layers:
            yield from (layer.keys, layer.values)

    def drop_rows(self, into: Tensor, out_of: Tensor, rows: int) -> None:
        """Move some rows into the places of others and keep the first `rows`. Only columns in use
        are copied."""
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
        """Pause the current rows; new ones are appended behind them."""
        self._paused = (self.column, self.lengths_B)
        self.first, self.column, self.lengths_B = self.rows, 0, self.lengths_B[:0]

    def resume_rows(self) -> None:
        """Continue with the paused rows."""
        assert self._paused is not None
        assert not self.rows
        self.column, self.lengths_B = self._paused
        self.first, self._paused = 0, None

    def make_room(self) -> None:
        """Move all rows left, before a decode step, if no column is left or if a third of the
        columns that attention reads are empty."""
        # Moving costs about as much as the reading of one step, hence not earlier. The 16 columns
        # keep short rows from being moved every few steps.
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
                    # A copy: source and destination overlap.
                    moved = tensor[live, :, self.column - span : self.column].clone()
                    tensor[live, :, column - span : column] = moved
        self.column = column
