"""What the loop is given: a crew of workers, and a clock. It knows no more of them than this.

A placement (processes, Ray, inline) makes both. The loop sends messages through handles and gets
events from `Crew.poll`, the only call here that waits, and that never longer than it is asked to.
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

#: What to change when a worker runs out of memory, by the first word of its name.
LESS_MEMORY = {
    "trainer": "set placement.activations=recompute, shorten answers (length), or take a smaller "
    "model",
    "generator": "lower placement.generators, batch.prompts or batch.generations, shorten answers "
    "(length), or take a smaller model",
    "checker": "lower placement.checkers, or let the task's verifier or environment use less",
    "main": "lower placement.checkers, batch.prompts or batch.generations",
}


class Clock(Protocol):
    """Seconds since some moment, on the machine's clock or a virtual one."""

    def now(self) -> float: ...


class Handle(Protocol):
    """The loop's reference to one worker."""

    @property
    def name(self) -> str:
        """Name in messages: "trainer", "generator 0", "checker 1". A replacement keeps it."""
        ...

    @property
    def silence(self) -> float:
        """Seconds since its last message, or since it was started."""
        ...

    def send(self, message: Any) -> None:
        """Send a message without waiting. That a worker is lost is reported by `Crew.poll`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MessageReceived:
    """Event: a worker has sent a message."""

    worker: Handle
    message: Any


@dataclass(frozen=True, slots=True, eq=False)
class WorkerLost:
    """Event: a worker has ended, or can no longer be reached; what it held is lost."""

    worker: Handle
    why: str


class Crew(Protocol):
    """The workers of a run: one trainer (of one or many ranks), some generators, some checkers."""

    @property
    def trainer(self) -> Handle: ...

    @property
    def generators(self) -> Sequence[Handle]:
        """The generators at present. One that joins sends `WorkerReady`."""
        ...

    @property
    def checkers(self) -> Sequence[Handle]: ...

    def poll(self, seconds: float) -> list[MessageReceived | WorkerLost]:
        """Events since the last call, after waiting at most `seconds` for the first of them. None
        is about a worker that has been replaced."""
        ...

    def replace(self, worker: Handle) -> Handle:
        """End this generator or checker and start another one of its name, which sends
        `WorkerReady`."""
        ...

    def add_generator(self) -> Handle:
        """Start one more generator, under a free name; it sends `WorkerReady`."""
        ...

    def remove_generator(self, worker: Handle) -> None:
        """End this generator for good; no further event is about it."""
        ...

    def stop(self, *, at_once: bool = False) -> None:
        """End all workers; unless `at_once`, they are asked to stop first."""
        ...

    def pids(self) -> dict[str, int]:
        """Process ids on this machine, by the worker's name."""
        ...


# The run asks by `isinstance` whether its crew can do this: most placements cannot.
@runtime_checkable
class RenewableCrew(Crew, Protocol):
    """A crew with generators that survive the loss of the trainer: starting them can take
    minutes."""

    def restart_trainer(self, setup: RunSetup, checkpoint: Path | None) -> bool:
        """Start another trainer, from a checkpoint. Generators drop all requests and send
        `WorkerReady` when they have its weights. False if that takes a new crew after all."""
        ...


def generator_number(generator: Handle) -> int:
    """The number in a generator's name: 2 for `generator 2`."""
    return int(generator.name.rpartition(" ")[2])


def free_generator_name(generators: Sequence[Handle]) -> str:
    """A name for a generator that joins, with the lowest number that is not taken."""
    taken = {generator_number(generator) for generator in generators}
    return f"generator {next(i for i in range(len(taken) + 1) if i not in taken)}"


def less_memory(name: str) -> str:
    """What to change so that the worker of this name needs less memory.

    >>> less_memory("checker 3")
    "lower placement.checkers, or let the task's verifier or environment use less"
    """
    return LESS_MEMORY[name.partition(" ")[0]]


class IrreplaceableWorkerLost(PipelineError):
    """The loss of a worker that cannot be replaced while the loop runs: the run goes back to its
    last checkpoint. It is the trainer, or, in a deterministic run, a generator."""

    def __init__(self, text: str, *, trainer: bool = False) -> None:
        super().__init__(text)
        #: Whether the trainer is lost, and the other workers are there.
        self.trainer = trainer


__getattr__ = renamed_names(__name__, {"Said": "MessageReceived"})
