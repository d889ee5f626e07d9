"""The decoder of any Hugging Face causal LM: its own forward pass, over a key-value cache of ours
(slots.py). The cache stays when weights change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from scalerl.engine.slots import Slots
from scalerl.models.cpu.decode import right_padded
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

    def park(self, row: int) -> int:
        return self.slots.park(row)

    @torch.inference_mode()
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
