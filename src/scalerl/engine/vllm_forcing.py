"""The logits processor of the vLLM engine: where a token is forced, no other is possible."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality


class ForcedTokenProcessor(LogitsProcessor):  # type: ignore[misc]
    """The engine sets `force[request] = token` between two steps; vLLM says which row of its batch
    a request is in."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.force: dict[str, int] = {}
        self._row_of: dict[str, int] = {}
        self._at: dict[int, str] = {}

    @classmethod
    def validate_params(cls, params: Any) -> None:
        """Nothing is asked of a request."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._take(row)
        for row, params, _, _ in batch_update.added:
            self._take(row)
            name = (params.extra_args or {}).get("id")
            if name is not None:
                self._put(row, name)
        for a, b, how in batch_update.moved:
            first, second = self._take(a), self._take(b)
            if first is not None:
                self._put(b, first)
            if how is MoveDirectionality.SWAP and second is not None:
                self._put(a, second)

    def row(self, name: str) -> int:
        """Of a request, in the last step's batch."""
        return self._row_of[name]

    def apply(self, logits: Tensor) -> Tensor:
        asked = [(self._row_of[n], t) for n, t in self.force.items() if n in self._row_of]
        if asked:
            rows, tokens = torch.tensor(asked, device=logits.device).unbind(1)
            logits[rows] = float("-inf")
            logits[rows, tokens] = 0.0
        return logits

    def _put(self, row: int, name: str) -> None:
        self._at[row], self._row_of[name] = name, row

    def _take(self, row: int) -> str | None:
        name = self._at.pop(row, None)
        if name is not None and self._row_of.get(name) == row:
            del self._row_of[name]
        return name
