"""The decoder of any Hugging Face causal LM: its own forward pass, over a cache of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from scalerl.engine.slots import Slots
from scalerl.models.rows import Compaction


class ModelDecoder:
    """Any Hugging Face causal LM, through its own forward pass."""

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
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0).to(self.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
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
