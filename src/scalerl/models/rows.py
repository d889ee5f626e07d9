"""Rows of a batch: which of them share a prompt, and how they close up when some leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.models.routing import Experts

TokenIds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PromptRows:
    """A prompt and completions of it, one row each."""

    prompt: TokenIds
    completions: tuple[TokenIds, ...]
    #: Of each row, where a mixture's routing is replayed (models/routing.py).
    experts: tuple[Experts | None, ...] = ()

    def only(self, rows: Sequence[int]) -> PromptRows:
        """Some of the completions."""
        experts = tuple(self.experts[i] for i in rows) if self.experts else ()
        return PromptRows(self.prompt, tuple(self.completions[i] for i in rows), experts)

    def __len__(self) -> int:
        return len(self.completions)

    @property
    def longest(self) -> int:
        """Tokens of the longest row, its prompt included."""
        return len(self.prompt) + max((len(c) for c in self.completions), default=0)


@dataclass(frozen=True, slots=True, eq=False)
class Compaction:
    """How rows close up after some have left: the last ones move into the free places, so that few
    rows are copied. `rows` remain."""

    into: npt.NDArray[np.int64]
    out_of: npt.NDArray[np.int64]
    rows: int

    @staticmethod
    def of(gone_B: npt.NDArray[np.bool_]) -> Compaction:
        """
        >>> found = Compaction.of(np.array([False, True, False, True, False]))
        >>> found.into.tolist(), found.out_of.tolist(), found.rows
        ([1], [4], 3)
        """
        rows = len(gone_B) - int(gone_B.sum())
        into, out_of = np.flatnonzero(gone_B[:rows]), rows + np.flatnonzero(~gone_B[rows:])
        return Compaction(into, out_of, rows)

    def apply(self, array: npt.NDArray[Any]) -> None:
        """Move the rows of an array in place."""
        if len(self.into):
            array[self.into] = array[self.out_of]
