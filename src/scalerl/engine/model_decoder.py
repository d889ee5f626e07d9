"""The decoder of any Hugging Face causal LM: its own forward pass, over a key-value cache of ours.

The cache has one row per running rollout. The tokens of all rows end at the same column, so that a
decode step writes one column for all rows; a row of n tokens fills the n columns before it, and the
columns further left are masked. A rollout is added by copying the keys and values of its prompt in
front of the current column, and removed by overwriting its row. The cache stays when weights
change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from scalerl.models.rows import Compaction


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
