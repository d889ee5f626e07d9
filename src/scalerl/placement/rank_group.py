"""Many ranks that are one trainer: told everything together, heard through the first, and gone
together when one of them is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Handle, MessageReceived, WorkerLost

#: When one rank has lost another, seconds until the others have said so as well: who has not, and
#: still is there, hangs.
GRACE = 5.0


class RankHandle(Handle, Protocol):
    def gone(self) -> WorkerLost | MessageReceived:
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

    def heard(self, worker: R, message: Any) -> MessageReceived | WorkerLost | None:
        """What it means for the trainer that a rank said this, or (None) is gone."""
        if message is None:
            found = worker.gone()
            return (
                MessageReceived(self, found.message)
                if isinstance(found, MessageReceived)
                else self._gone(worker, found)
            )
        if isinstance(message, m.WorkerFailed):
            return self._failed(worker, message)
        if isinstance(message, m.WorkerReady):
            self._ready += 1
            return MessageReceived(self, message) if self._ready == len(self.ranks) else None
        return MessageReceived(self, message) if worker is self.ranks[0] else None

    def overdue(self) -> WorkerLost | None:
        """A rank has lost another that did not die: after a while, who it must be."""
        if not self._lost or time.monotonic() - self._since < GRACE:
            return None
        silent = [r.name for r in self.ranks if r.name not in self._lost]
        why = next(iter(self._lost.values()))
        if not silent:
            return WorkerLost(self, f"ranks have lost each other ({why})")
        return WorkerLost(self, f"waited in vain for {' and '.join(silent)} ({why})")

    def _failed(self, worker: R, message: m.WorkerFailed) -> MessageReceived | WorkerLost | None:
        if not message.lost:
            named = len(self.ranks) > 1 and not message.bad_input
            reason = f"{worker.name}: {message.reason}" if named else message.reason
            return MessageReceived(self, replace(message, reason=reason))
        self._since = self._since or time.monotonic()
        self._lost[worker.name] = message.reason
        return None

    def _gone(self, worker: R, found: WorkerLost) -> WorkerLost | None:
        if worker.name in self._lost:  # it ended because another did
            return None
        named = f"{worker.name} " if len(self.ranks) > 1 else ""
        return WorkerLost(self, f"{named.removeprefix('trainer ')}{found.why}")
