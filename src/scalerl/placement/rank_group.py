"""Many ranks that are one trainer: told everything together, heard through the first, and gone
together when one of them is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Gone, Handle, Said

#: When one rank has lost another, seconds until the others have said so as well: who has not, and
#: still is there, hangs.
GRACE = 5.0


class RankHandle(Handle, Protocol):
    def gone(self) -> Gone | Said:
        """What to say of a part that has ended."""
        ...


R = TypeVar("R", bound=RankHandle)


class RankGroup(Generic[R]):
    """The handle of a trainer of many ranks."""

    name = "trainer"

    def __init__(self, ranks: Sequence[R]) -> None:
        self.ranks = list(ranks)
        self._ready = 0
        #: What ranks said of losing another, and when the first did.
        self._lost: dict[str, str] = {}
        self._since = 0.0

    @property
    def silence(self) -> float:
        return self.ranks[0].silence

    def send(self, message: Any) -> None:
        for rank in self.ranks:
            rank.send(message)

    def heard(self, who: R, message: Any) -> Said | Gone | None:
        """What it means for the trainer that a rank said this, or (None) is gone."""
        if message is None:
            found = who.gone()
            return Said(self, found.message) if isinstance(found, Said) else self._gone(who, found)
        if isinstance(message, m.Failed):
            return self._failed(who, message)
        if isinstance(message, m.Ready):
            self._ready += 1
            return Said(self, message) if self._ready == len(self.ranks) else None
        return Said(self, message) if who is self.ranks[0] else None

    def overdue(self) -> Gone | None:
        """A rank has lost another that did not die: after a while, who it must be."""
        if not self._lost or time.monotonic() - self._since < GRACE:
            return None
        silent = [r.name for r in self.ranks if r.name not in self._lost]
        why = next(iter(self._lost.values()))
        if not silent:
            return Gone(self, f"ranks have lost each other ({why})")
        return Gone(self, f"waited in vain for {' and '.join(silent)} ({why})")

    def _failed(self, who: R, message: m.Failed) -> Said | Gone | None:
        if not message.lost:
            named = len(self.ranks) > 1 and not message.bad_input
            reason = f"{who.name}: {message.reason}" if named else message.reason
            return Said(self, replace(message, reason=reason))
        self._since = self._since or time.monotonic()
        self._lost[who.name] = message.reason
        return None

    def _gone(self, who: R, found: Gone) -> Gone | None:
        if who.name in self._lost:  # it ended because another did
            return None
        named = f"{who.name} " if len(self.ranks) > 1 else ""
        return Gone(self, f"{named.removeprefix('trainer ')}{found.why}")
