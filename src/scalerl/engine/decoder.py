"""What stands between the engine and a model: rows that are read in, continued and dropped.

Two decoders are here behind one interface: `ModelDecoder` runs any Hugging Face causal LM as it is;
`LlamaDecoder` (llama.py) runs the Llama-shaped ones, several times faster on a CPU. The engine
takes the fast one wherever that proves that it computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from scalerl.engine.slots import Slots

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """How rows close up after some have left: the last ones move into the free places, so that few
    rows are copied. `rows` remain."""

    into: Ints
    out_of: Ints
    rows: int

    @staticmethod
    def of(gone_B: npt.NDArray[np.bool_]) -> Moves:
        """
        >>> moves = Moves.of(np.array([False, True, False, True, False]))
        >>> moves.into.tolist(), moves.out_of.tolist(), moves.rows
        ([1], [4], 3)
        """
        rows = len(gone_B) - int(gone_B.sum())
        return Moves(
            np.flatnonzero(gone_B[:rows]), rows + np.flatnonzero(~gone_B[rows:]), rows
        )  # fmt: skip

    def apply(self, array: npt.NDArray[Any]) -> None:
        """Move the rows of an array in place."""
        if len(self.into):
            array[self.into] = array[self.out_of]


class Decoder(Protocol):
    """The rows in use are 0 .. rows - 1."""

    def join(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Read prompts into new rows at the end; the logits (rows, words) of what follows each."""
        ...

    def decode(self, token_B: Tensor) -> Tensor:
        """Append a token to every row; the logits of what follows."""
        ...

    def leave(self, moves: Moves) -> None: ...


def distinct(prompts: Sequence[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], Tensor]:
    """Each prompt once, and which of them every row has: the rollouts of a group share one, which
    need be read only once."""
    place = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
    return list(place), torch.tensor([place[p] for p in prompts])


class ModelDecoder:
    """Any Hugging Face causal LM, through its own forward pass."""

    def __init__(self, model: nn.Module, rows_max: int, columns: int) -> None:
        self.model: Any = model
        config: Any = model.config
        self.device = next(model.parameters()).device
        self.slots = Slots(config.num_hidden_layers, rows_max, columns + 1, self.device)

    def join(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        once, which_B = distinct(prompts)
        which_B = which_B.to(self.device)
        ids, mask = _left_padded(once)
        cache = DynamicCache()
        output = self.model(
            input_ids=ids.to(self.device),
            attention_mask=mask.to(self.device),
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0).to(self.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        lengths = torch.tensor([len(p) for p in once], device=self.device)
        self.slots.join(cache, lengths[which_B], which_B)
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

    def leave(self, moves: Moves) -> None:
        self.slots.leave(torch.from_numpy(moves.into), torch.from_numpy(moves.out_of), moves.rows)


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    width = max(len(p) for p in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.long)
    for i, prompt in enumerate(prompts):
        ids[i, width - len(prompt) :] = torch.tensor(prompt)
        mask[i, width - len(prompt) :] = 1
    return ids, mask
