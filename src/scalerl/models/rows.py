"""Rows of a batch: completions that share a prompt, and compaction when rows leave."""

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
    """A prompt and its completions, one row each."""

    prompt: TokenIds
    completions: tuple[TokenIds, ...]
    #: Experts of each row, where a mixture's routing is replayed (models/routing.py).
    experts: tuple[Experts | None, ...] = ()

    def only(self, rows: Sequence[int]) -> PromptRows:
        """The same prompt with some of the completions."""
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
    """How rows close up after some have left: the last rows move into the free places, so that few
    are copied."""

    #: Free places that are filled.
    into: npt.NDArray[np.int64]
    #: Rows that move there.
    out_of: npt.NDArray[np.int64]
    #: Number of rows that remain.
    rows: int

    @staticmethod
    def from_mask(gone_B: npt.NDArray[np.bool_]) -> Compaction:
        """
        >>> found = Compaction.from_mask(np.array([False, True, False, True, False]))
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
