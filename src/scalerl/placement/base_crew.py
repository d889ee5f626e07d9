"""What crews are made of: how workers are replaced, added and removed in every placement, and the
ranks of a trainer as one handle."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Handle, MessageReceived, WorkerLost, free_generator_name
from scalerl.pipeline.setup import RunSetup

#: Seconds that ranks get to report the loss of another rank, once the first has: a rank that still
#: runs and has not reported by then is the one that hangs.
GRACE_SECONDS = 5.0


#: Environment workers ("checkers") where the recipe does not say how many. Each makes many calls at
#: once; they are processes so that a verifier or an environment cannot harm the run, and more of
#: them would compete for the cores of a laptop.
DEFAULT_CHECKERS = 4


def checker_names(setup: RunSetup, cores: int) -> tuple[list[str], int]:
    """The names of a run's environment workers, and the number of blocking calls that each makes at
    once."""
    where = setup.recipe.placement
    count = where.environment_processes or min(where.checkers, cores, DEFAULT_CHECKERS)
    return [f"checker {i}" for i in range(count)], -(-where.checkers // count)


class BaseCrew(ABC):
    """Generators and checkers by their handles, each with a method `kill`."""

    generators: list[Any]
    checkers: list[Any]

    @abstractmethod
    def _restarted(self, worker: Any) -> Any:
        """End a generator or checker and start another one like it."""

    @abstractmethod
    def _start_generator(self, name: str) -> Any:
        """Start a generator."""

    def replace(self, worker: Handle) -> Handle:
        for workers in (self.generators, self.checkers):
            for i, one in enumerate(workers):
                if one is worker:
                    new: Handle = self._restarted(one)
                    workers[i] = new
                    return new
        raise PipelineError(f"{worker.name} cannot be replaced")

    def add_generator(self) -> Handle:
        new: Handle = self._start_generator(free_generator_name(self.generators))
        self.generators.append(new)
        return new

    def remove_generator(self, worker: Handle) -> None:
        gone: list[Any] = [g for g in self.generators if g is worker]
        for generator in gone:
            generator.kill()
        self.generators = [g for g in self.generators if g is not worker]


class RankHandle(Handle, Protocol):
    """The handle of one rank."""

    def loss(self) -> WorkerLost:
        """The event of its end; raises InputError where the user can repair the cause."""
        ...


R = TypeVar("R", bound=RankHandle)


class RankGroup(Generic[R]):
    """The handle of a trainer with one or many ranks. Messages go to all ranks, answers come from
    the first one, and the loss of one rank is the loss of the trainer."""

    name = "trainer"

    def __init__(self, ranks: Sequence[R]) -> None:
        self.ranks = list(ranks)
        self._ready = 0
        #: Reasons of the ranks that have reported the loss of another, by name.
        self._lost: dict[str, str] = {}
        #: Time of the first such report.
        self._since = 0.0

    @property
    def silence(self) -> float:
        return self.ranks[0].silence

    def send(self, message: Any) -> None:
        for rank in self.ranks:
            rank.send(message)

    def events(self, worker: R, message: Any) -> list[MessageReceived | WorkerLost]:
        """The events of a message, or (None) of the end, of any worker: those of a rank are about
        the trainer as a whole."""
        if any(worker is rank for rank in self.ranks):
            found = self.on_message(worker, message)
            return [] if found is None else [found]
        return [worker.loss() if message is None else MessageReceived(worker, message)]

    def on_message(self, worker: R, message: Any) -> MessageReceived | WorkerLost | None:
        """The event for the trainer of a rank's message, or (None) of its end; None if there is
        none."""
        if message is None:
            return self._loss(worker, worker.loss())
        if isinstance(message, m.WorkerFailed):
            return self._failed(worker, message)
        if isinstance(message, m.WorkerReady):
            self._ready += 1
            return MessageReceived(self, message) if self._ready == len(self.ranks) else None
        return MessageReceived(self, message) if worker is self.ranks[0] else None

    def overdue(self) -> WorkerLost | None:
        """The loss of the trainer to a rank that hangs, once the others have had time to report."""
        if not self._lost or time.monotonic() - self._since < GRACE_SECONDS:
            return None
        silent = [r.name for r in self.ranks if r.name not in self._lost]
        why = next(iter(self._lost.values()))
        if not silent:
            return WorkerLost(self, f"ranks have lost each other ({why})")
        return WorkerLost(
            self, f"is stuck: {' and '.join(silent)} did not answer the other ranks ({why})"
        )

    def _failed(self, worker: R, message: m.WorkerFailed) -> MessageReceived | WorkerLost | None:
        if not message.lost:
            named = len(self.ranks) > 1 and not message.bad_input
            reason = f"{worker.name}: {message.reason}" if named else message.reason
            return MessageReceived(self, replace(message, reason=reason))
        self._since = self._since or time.monotonic()
        self._lost[worker.name] = message.reason
        return None

    def _loss(self, worker: R, found: WorkerLost) -> WorkerLost | None:
        if worker.name in self._lost:  # it ended because it lost another rank
            return None
        named = f"{worker.name} " if len(self.ranks) > 1 else ""
        return WorkerLost(self, f"{named.removeprefix('trainer ')}{found.why}")
