"""The decoder of any Hugging Face causal LM: its own forward pass, over a key-value cache of ours.

The cache has one row per running rollout. The tokens of all rows end at the same column, so that a
decode step writes one column for all rows; a row of n tokens fills the n columns before it, and the
columns further left are masked. A rollout is added by copying the keys and values of its prompt in
front of the current column, and removed by overwriting its row. The cache stays when weights
change. Parked rows lie in the last rows of the cache, from column 0 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from scalerl.models.cpu.decode import right_padded
from scalerl.models.rows import Compaction, ParkedPlaces


class ModelDecoder:
    """A Decoder that calls the model's own forward pass."""

    def __init__(self, model: nn.Module, rows_max: int, columns: int) -> None:
        self.model: Any = model
        config: Any = model.config
        self.device = next(model.parameters()).device
        self.slots = Slots(config.num_hidden_layers, rows_max, columns + 1, self.device)

    def prefill(self, prompts: Sequence[tuple[int, ...]], which: Sequence[int]) -> Tensor:
        which_B = torch.tensor(which, device=self.device)
        ids, mask = _left_padded(prompts)
        cache = DynamicCache()
        output = self.model(
            input_ids=ids.to(self.device),
            attention_mask=mask.to(self.device),
            # Padding is masked, but a position of -1 would be outside learnt position tables.
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0).to(self.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,  # logits of all positions would need gigabytes
        )
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        self.slots.append_rows(cache, lengths[which_B], which_B)
        logits: Tensor = output.logits[:, -1]
        return logits[which_B]

    def decode(self, token_B: Tensor) -> Tensor:
        self.slots.make_room()
        output = self.model(
            input_ids=token_B[:, None],
            attention_mask=self.slots.mask(),
            position_ids=self.slots.lengths_B[:, None],
            past_key_values=self.slots.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.slots.wrote_one()
        logits: Tensor = output.logits[:, -1]
        return logits

    def park(self, row: int) -> int:
        return self.slots.park(row)

    def drop_parked(self, number: int) -> None:
        self.slots.drop_parked(number)

    def extend(self, parked: Sequence[int], tokens: Sequence[tuple[int, ...]]) -> Tensor:
        # Cached tokens are padded on the left and new ones on the right: those of a row are next to
        # each other, and no real token attends to padding.
        cache, before_B = self.slots.take_parked(parked)
        sizes_B = torch.tensor([len(each) for each in tokens], device=self.device)
        cached, width = int(before_B.max()), int(sizes_B.max())
        columns = torch.arange(cached + width, device=self.device)
        lengths_B = before_B + sizes_B
        position_BT = before_B[:, None] + columns[:width]
        keep, which_B = torch.unique(sizes_B - 1, return_inverse=True)
        output = self.model(
            input_ids=right_padded(tokens, width).to(self.device),
            attention_mask=(columns >= cached - before_B[:, None]).long(),
            # Positions of padding may be outside learnt position tables.
            position_ids=torch.minimum(position_BT, lengths_B[:, None] - 1),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        self.slots.append_extended(cache, cached - before_B, lengths_B)
        logits: Tensor = output.logits[torch.arange(len(tokens), device=self.device), which_B]
        return logits

    def drop_rows(self, compaction: Compaction) -> None:
        into, out_of = torch.from_numpy(compaction.into), torch.from_numpy(compaction.out_of)
        self.slots.drop_rows(into, out_of, compaction.rows)

    def pause_rows(self) -> None:
        self.slots.pause_rows()

    def resume_rows(self) -> None:
        self.slots.resume_rows()


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    width = max(len(p) for p in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.long)
    for i, prompt in enumerate(prompts):
        ids[i, width - len(prompt) :] = torch.tensor(prompt)
        mask[i, width - len(prompt) :] = 1
    return ids, mask


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
