"""What an engine is asked and what it gives back: the same for the local engine and for others.

A new engine is one file with the five methods of `Engine`, and one registry line
(docs/how-to/add-an-engine.md). Who tells it what to do is placement/generator_worker.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from torch import Tensor

from scalerl.algorithm.length import LengthControl
from scalerl.algorithm.rollout import Rollout
from scalerl.renamed import renamed_names

#: While the lane `validate` has anything to write, the lane `train` stands still, its cache kept.
Lane = Literal["train", "validate"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    #: 0: no limit.
    top_k: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A prompt, and the rollouts to be written for it: the group stays together."""

    id: str
    prompt_token_ids: tuple[int, ...]
    control: LengthControl
    #: Number of each rollout within its group, and its seed: every random choice of the rollout
    #: follows from it, whoever shares the batch.
    seeds: Mapping[int, int]
    sampling: Sampling = Sampling()

    def only(self, rows: Iterable[int]) -> Request:
        """The same prompt, but only these of its rollouts."""
        return replace(self, seeds={row: self.seeds[row] for row in rows})


@dataclass(frozen=True, slots=True, eq=False)
class RolloutResult:
    """A rollout, and where it belongs."""

    request: str
    row: int
    rollout: Rollout


@dataclass(frozen=True, slots=True, eq=False)
class EngineStep:
    """What one step of an engine gave."""

    lane: Lane
    #: The rollouts that it finished.
    written: tuple[RolloutResult, ...] = ()
    #: Tokens that it wrote, of finished and unfinished rollouts.
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """What an engine is doing."""

    version: int
    #: Rollouts that wait for room, and that are being written, in both lanes.
    waiting: int
    running: int
    #: The lane that the next step works on.
    lane: Lane

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How to make an engine."""

    model: str
    dtype: str
    #: Precision of the head: "fp32", "model" or "bf16-emulated".
    head: Literal["model", "fp32", "bf16-emulated"]
    #: Rollouts that are written at once in each lane.
    slots: int
    validation_slots: int
    #: Longest prompt plus answer, in tokens.
    columns: int
    threads: int = 1
    #: While a validation is written, for which the trainer waits.
    validation_threads: int = 1
    device: str = "cpu"
    #: Whether code that the model brings along may run.
    trust_remote_code: bool = False
    #: Whether rollouts say which experts of a mixture their tokens were sent to.
    routing: bool = False


class Engine(Protocol):
    """Writes rollouts, many at a time, with weights that may change between two tokens."""

    def submit(self, requests: Iterable[Request], lane: Lane = "train") -> None:
        """Queue requests; their rollouts join as soon as there is room."""
        ...

    def step(self) -> EngineStep:
        """One more token for every running rollout of the lane whose turn it is."""
        ...

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """New weights, from the next token on. What was already read or written stays as it is."""
        ...

    def abort(self, ids: Sequence[str]) -> list[RolloutResult]:
        """Drop requests; returns what was written of them."""
        ...

    def health(self) -> Health: ...


__getattr__ = renamed_names(__name__, {"Written": "RolloutResult"})
