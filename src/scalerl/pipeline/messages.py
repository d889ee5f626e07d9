"""What the processes say to each other: plain data, none of it from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalerl.algorithm.logits import Precision
from scalerl.algorithm.objective import Options
from scalerl.algorithm.rollout import Group
from scalerl.engine.interface import Request, Written
from scalerl.trainer.local import Optimiser


@dataclass(frozen=True, slots=True)
class GeneratorSpec:
    """How to make a generator."""

    model: str
    dtype: str
    head: Precision
    slots: int
    columns: int
    threads: int = 1
    device: str = "cpu"
    #: Only works when told to (Advance), so that a run repeats bit for bit.
    in_step: bool = False


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """How to make the trainer."""

    model: str
    dtype: str
    head: Precision
    options: Options
    optimiser: Optimiser
    temperature: float
    token_budget: int
    threads: int = 1
    device: str = "cpu"
    #: A checkpoint to go on from.
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Submit:
    """To a generator: write these. `validation` requests are written apart, and all training ones
    wait meanwhile, so that the weights stay what they are."""

    requests: tuple[Request, ...]
    validation: bool = False
    #: The version the requests are meant for: the generator loads it first.
    version: int = 0


@dataclass(frozen=True, slots=True)
class Advance:
    """To a generator that is kept in step: take these weights, finish so many rollouts (or all
    there are), then hold."""

    version: int
    rollouts: int


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """From a generator."""

    written: tuple[Written, ...]
    validation: bool
    version: int
    #: Seconds of its time since the last report, by what they went to.
    seconds: dict[str, float]
    tokens: int
    running: int
    #: It was kept in step, has done its share and holds.
    held: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """To the trainer: one optimiser step on these groups; publish the weights after it, or not."""

    groups: tuple[Group, ...]
    publish: bool


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """From the trainer."""

    version: int
    report: dict[str, Any]
    filtered: dict[str, int]
    forward_tokens: int
    #: Tokens of the rollouts that the filters kept.
    kept_tokens: int
    seconds: float
    #: What is worth a warning.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """From the trainer: it did not learn from this batch, and why; its weights are as before."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Save:
    """To the trainer: write a checkpoint there."""

    path: str


@dataclass(frozen=True, slots=True)
class Publish:
    """To the trainer: hand over the present weights, though the schedule would not yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """To the trainer: log-probs of these tokens, for the mismatch gate."""

    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """From the trainer: saved, or scored (the gaps to the generator's log-probs, per token)."""

    gaps: tuple[float, ...] = ()
    #: Why it could not be saved.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """From either side: it is up."""

    version: int


@dataclass(frozen=True, slots=True)
class Failed:
    """From either side: it cannot go on, and why, in one line."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """To either side: end."""
