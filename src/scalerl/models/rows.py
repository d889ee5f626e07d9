"""Rows of a batch: the flat layout that training passes compute on, compaction when rows leave, and
the places of parked rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scalerl.models.routing import Experts

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class FlatRows:
    """F tokens to feed to a model in one sequence, without padding, and M tokens to score.

    Rows are laid out one after the other, prompts first. A token sees the tokens of its row's
    parent and the earlier ones of its own row. Two prompts, `a` of three tokens with the rows `x`
    (three tokens) and `y` (two), and `b` of one token with the row `z` (two):

        token F          0  1  2  3  4  5  6  7
        is               a0 a1 a2 b0 x0 x1 y0 z0     x2, y1 and z1 predict nothing: not fed

        scored           x0 x1 x2 y0 y1 z0 z1
        by hidden state  2  4  5  2  6  3  7         the last of a prompt predicts every first token

    >>> numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    >>> row_N, parent_R = np.repeat(range(5), [3, 1, 3, 2, 2]), np.array([-1, -1, 0, 0, 1])
    >>> position_N = np.array([0, 1, 2, 0, 3, 4, 5, 3, 4, 1, 2])
    >>> rows = FlatRows.from_tokens(np.array(numbers), position_N, row_N, parent_R, row_N > 1)
    >>> rows.ids_F.tolist(), rows.source_M.tolist(), rows.target_M.tolist()
    ([1, 2, 3, 4, 5, 6, 8, 10], [2, 4, 5, 2, 6, 3, 7], [5, 6, 7, 8, 9, 10, 11])
    >>> rows.spans.tolist()
    [[0, 3, 0, 0], [3, 1, 0, 0], [4, 2, 0, 3], [6, 1, 0, 3], [7, 1, 3, 1]]
    """

    ids_F: Tensor
    position_F: Tensor
    #: Scored token -> hidden state that predicts it.
    source_M: Tensor
    #: Scored token -> its id.
    target_M: Tensor
    #: (first token, tokens, first token of the parent, tokens of the parent) of each row with
    #: tokens to feed.
    spans: Ints
    #: Number of prompts: they are the first spans.
    prompts: int
    #: Tokens of the longest row, with its parent and the token that is not fed.
    longest: int
    #: Recorded experts of the tokens (models/routing.py).
    experts: Experts | None = None

    @staticmethod
    def from_tokens(
        ids_N: Ints,
        position_N: Ints,
        row_N: Ints,
        parent_R: Ints,
        scored_N: npt.NDArray[np.bool_],
        experts_N: Experts | None = None,
    ) -> FlatRows:
        """The layout of rows that lie one after the other. Prompts have parent -1, come first and
        have tokens."""
        sizes_R = np.bincount(row_N, minlength=len(parent_R))
        ends_R = np.cumsum(sizes_R)
        is_prompt_R = parent_R < 0
        fed_R = np.where(is_prompt_R, sizes_R, np.maximum(sizes_R - 1, 0))
        fed_N = np.ones(len(ids_N), np.bool_)
        fed_N[ends_R[~is_prompt_R & (sizes_R > 0)] - 1] = False
        before_N = np.arange(len(ids_N)) - 1
        begins_R = np.flatnonzero(~is_prompt_R & (sizes_R > 0))
        before_N[ends_R[begins_R] - sizes_R[begins_R]] = ends_R[parent_R[begins_R]] - 1
        place_N = np.cumsum(fed_N) - 1
        first_R = np.cumsum(fed_R) - fed_R
        of_parent = [np.where(is_prompt_R, 0, each[parent_R]) for each in (first_R, fed_R)]
        spans = np.stack([first_R, fed_R, *of_parent], axis=1)
        to = torch.from_numpy
        return FlatRows(
            ids_F=to(ids_N[fed_N]),
            position_F=to(position_N[fed_N]),
            source_M=to(place_N[before_N[scored_N]]),
            target_M=to(ids_N[scored_N]),
            spans=spans[fed_R > 0],
            prompts=int(is_prompt_R.sum()),
            longest=int(position_N.max(initial=-1)) + 1,
            experts=None if experts_N is None else experts_N[fed_N],
        )

    def within(self, words: int) -> FlatRows:
        """The same rows with ids below `words`."""
        return replace(self, ids_F=self.ids_F % words, target_M=self.target_M % words)

    def to(self, device: torch.device) -> FlatRows:
        """The same rows with their tensors on another device."""
        names = ("ids_F", "position_F", "source_M", "target_M")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


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


class ParkedPlaces:
    """Which places of a cache with `rows` places hold parked rows: the last ones, without gaps, so
    that all others are free for rows that are appended.

    >>> places = ParkedPlaces(8)
    >>> [places.add() for _ in range(3)]
    [(1, 7), (2, 6), (3, 5)]
    >>> places.remove(1)  # the place of row 1, and that of the row that moves there
    (7, 5)
    >>> places.place_of(3)
    7
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        #: Place of each parked row by its number.
        self._place: dict[int, int] = {}
        #: Number of the parked row in each place, from the last place on.
        self._number: list[int] = []
        self._so_far = 0

    def add(self) -> tuple[int, int]:
        """Number and place of one more parked row."""
        self._so_far += 1
        self._number.append(self._so_far)
        self._place[self._so_far] = self.rows - len(self._number)
        return self._so_far, self._place[self._so_far]

    def place_of(self, number: int) -> int:
        return self._place[number]

    def remove(self, number: int) -> tuple[int, int]:
        """Free the place of a parked row: the place, and that of the row which must be copied into
        it (the same place, if none must)."""
        into, last = self._place.pop(number), self._number.pop()
        out_of = self.rows - len(self._number) - 1
        if last != number:
            self._place[last] = into
            self._number[self.rows - 1 - into] = last
        return into, out_of
