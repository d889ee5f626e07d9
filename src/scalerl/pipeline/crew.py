"""What the loop is given: a crew of parts, and a clock. It knows no more of them than this.

A placement (processes, Ray, inline) makes both. Parts are spoken to through handles and answer in
events; nothing here blocks but `poll`, and that never longer than it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scalerl.errors import PipelineError
from scalerl.renamed import renamed_names

if TYPE_CHECKING:
    from scalerl.pipeline.setup import RunSetup


class Clock(Protocol):
    """Seconds since some moment; real, or those of a virtual world."""

    def now(self) -> float: ...


class Handle(Protocol):
    """One part of the crew."""

    @property
    def name(self) -> str:
        """As people read it: "trainer", "generator 0", "checker 1". Kept by a replacement."""
        ...

    @property
    def silence(self) -> float:
        """Seconds since it last said anything, or was started."""
        ...

    def send(self, message: Any) -> None:
        """Never waits. A part that is gone is told of by `Crew.poll`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MessageReceived:
    """A part said something."""

    worker: Handle
    message: Any


@dataclass(frozen=True, slots=True, eq=False)
class WorkerLost:
    """A part has ended, or takes no messages; what it held is lost."""

    worker: Handle
    why: str


class Crew(Protocol):
    """One trainer (of one or many ranks), some generators, some checkers."""

    @property
    def trainer(self) -> Handle: ...

    @property
    def generators(self) -> Sequence[Handle]:
        """They may come and go: one that joins says `Ready`."""
        ...

    @property
    def checkers(self) -> Sequence[Handle]: ...

    def poll(self, seconds: float) -> list[MessageReceived | WorkerLost]:
        """What has been said, waiting at most so long for the first of it. Never of a part that
        has been replaced."""
        ...

    def replace(self, worker: Handle) -> Handle:
        """End this generator or checker and start another in its place; it says `Ready`."""
        ...

    def add_generator(self) -> Handle:
        """Start one generator more, under a name that is free; it says `Ready`."""
        ...

    def remove_generator(self, worker: Handle) -> None:
        """End this generator for good; nothing more is heard of it."""
        ...

    def stop(self, *, at_once: bool = False) -> None:
        """End all: asked first, unless it is to be at once."""
        ...

    def pids(self) -> dict[str, int]:
        """Where the parts are, for people: process ids by name, say."""
        ...


@runtime_checkable
class RenewableCrew(Crew, Protocol):
    """A crew that can outlive its trainer; what it takes to start generators is not paid again."""

    def restart_trainer(self, setup: RunSetup, checkpoint: Path | None) -> bool:
        """Another trainer, from a checkpoint. Generators stay, forget what they were asked, and say
        `Ready` when they have its weights. False where it takes a new crew after all."""
        ...


def number(generator: Handle) -> int:
    """Of a generator: 2 of `generator 2`."""
    return int(generator.name.rpartition(" ")[2])


def free_generator_name(generators: Sequence[Handle]) -> str:
    """Of a generator that joins: the lowest number that nobody has."""
    taken = {number(generator) for generator in generators}
    return f"generator {next(i for i in range(len(taken) + 1) if i not in taken)}"


class IrreplaceableWorkerLost(PipelineError):
    """The trainer is gone, or as good as gone: the run goes back to its last checkpoint. In a
    deterministic run also a generator."""

    def __init__(self, text: str, *, trainer: bool = False) -> None:
        super().__init__(text)
        #: Whether it is the trainer, and all others are there.
        self.trainer = trainer


__getattr__ = renamed_names(__name__, {"Said": "MessageReceived"})
