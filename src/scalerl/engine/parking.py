"""Parked turns: the key-value cache of finished turns, kept for the next turn of their episode.

    a turn ends        its row is parked in a place of the cache that no rollout uses
    the next turn      claims it when it is submitted, and takes it when it starts: only the tokens
                       that are new are read
    a place is needed  for a rollout that starts: the turn that was parked first is dropped

Parked turns only use free places, so that as many rollouts run at once as without them. A turn that
is lost costs time and nothing else, because a request has all its tokens. Tokens are compared one
by one before a parked turn is used. Weights may have changed since a turn was parked: its keys and
values stay as they are, as those of running rollouts do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from scalerl.engine.interface import Lane, Request

#: Request and row of a turn.
TurnKey = tuple[str, int]


class ParkingDecoder(Protocol):
    """The part of a decoder that parks rows."""

    def park(self, row: int) -> int:
        """Keep the cache of a row of the active lane in a free place; returns a number for it. The
        row itself must be removed before the next pass."""
        ...

    def drop_parked(self, number: int) -> None:
        """Free the place of a parked row."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ParkedTurn:
    """A parked turn."""

    #: Number that the decoder has given it.
    number: int
    #: Tokens in the cache: all of its episode so far but the last, which the model has not read.
    token_ids: npt.NDArray[np.int64]
    lane: Lane


class Parking:
    """The parked turns of an engine.

    rows   places of the decoder's cache
    """

    def __init__(self, decoder: ParkingDecoder, rows: int) -> None:
        self.decoder = decoder
        self.rows = rows
        #: Turns that no request has asked for, the first parked first.
        self.idle: dict[TurnKey, ParkedTurn] = {}
        #: Turns that a waiting request continues, in the order of the requests. They are not
        #: dropped for another turn: with more episodes than places, each turn would otherwise be
        #: dropped just before it is needed.
        self.claimed: dict[TurnKey, ParkedTurn] = {}

    def __len__(self) -> int:
        return len(self.idle) + len(self.claimed)

    def park(
        self, key: TurnKey, row: int, token_ids: npt.NDArray[np.int64], lane: Lane, running: int
    ) -> None:
        """Park the turn of a row while `running` rows, itself among them, are in the cache; does
        nothing if there is no room."""
        # A request that is written again, after a restart, has the id of its first time.
        self._drop(self.idle.pop(key, None))
        self._drop_idle(running + 1)
        if running + len(self) < self.rows:
            self.idle[key] = ParkedTurn(self.decoder.park(row), token_ids, lane)

    def claim(self, request: Request) -> None:
        """Keep what a request continues until it starts."""
        for row in request.seeds:
            key = (request.continues or "", row)
            if key in self.idle:
                self._drop(self.claimed.pop(key, None))
                self.claimed[key] = self.idle.pop(key)

    def take(self, request: Request, row: int) -> ParkedTurn | None:
        """The parked turn that a rollout continues, which is no longer parked here; None if there
        is none with its tokens."""
        found = self.claimed.pop((request.continues or "", row), None)
        if found is None:
            return None
        n = len(found.token_ids)
        # At least one token is left to be read: its logits give the next one.
        prompt = request.prompt_token_ids
        if n < len(prompt) and np.array_equal(found.token_ids, prompt[:n]):
            return found
        self._drop(found)
        return None

    def release(self, request: Request, row: int) -> None:
        """Drop what a request continues that will not start."""
        self._drop(self.claimed.pop((request.continues or "", row), None))

    def make_room(self, rows: int) -> None:
        """Drop turns until so many rows fit into the cache besides the parked ones."""
        self._drop_idle(rows)
        while self.claimed and rows + len(self) > self.rows:
            # The one that is needed last.
            self._drop(self.claimed.popitem()[1])

    def _drop_idle(self, rows: int) -> None:
        while self.idle and rows + len(self) > self.rows:
            self._drop(self.idle.pop(next(iter(self.idle))))

    def _drop(self, turn: ParkedTurn | None) -> None:
        if turn is not None:
            self.decoder.drop_parked(turn.number)

    def on_load(self, before: int, version: int) -> None:
        """Drop the turns that must not be continued with the weights of another version."""
        if version == before:
            return
        # Answers of a validation depend on the weights that are validated alone. After a return to
        # a checkpoint, later versions have never been.
        lanes: set[Lane] = {"validate"} if version > before else {"train", "validate"}
        for turns in (self.idle, self.claimed):
            for key in [key for key, turn in turns.items() if turn.lane in lanes]:
                self._drop(turns.pop(key))
