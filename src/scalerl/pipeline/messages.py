"""What the loop and its parts say to each other: plain data, none of it from outside.

Importing it imports no torch: a checker needs none, and starts the sooner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalerl.algorithm.rollout import Group
    from scalerl.engine.interface import Lane, Request, RolloutResult
    from scalerl.pipeline.ledger import Work
    from scalerl.tasks.task import Answer, AnswerScore
    from scalerl.trainer.interface import StepReport

# -- generators -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class SubmitRequests:
    """To a generator: write these. Those of the lane `validate` are written with the weights of
    `version`, and all others wait meanwhile."""

    requests: tuple[Request, ...]
    lane: Lane = "train"
    version: int = 0
    #: Counts what a generator is sent: after a gap it takes in nothing more. 0: not counted.
    number: int = 0


@dataclass(frozen=True, slots=True)
class AdvanceAndHold:
    """To a generator of a deterministic run: take the weights of this version, finish so many
    rollouts (or all there are), then hold."""

    version: int
    rollouts: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """To a generator that is to go: drop these training requests and say what was written of them.
    Others will write them."""

    requests: tuple[str, ...]
    number: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorReport:
    """From a generator, whenever it has finished something, and now and then to show it lives."""

    #: Counts its reports: a gap means that one was lost.
    number: int
    #: How many messages it has taken in.
    taken: int
    version: int
    written: tuple[RolloutResult, ...] = ()
    lane: Lane = "train"
    #: Seconds of its time since the last report, by what they went to.
    seconds: dict[Work, float] = field(default_factory=dict)
    #: Training tokens written since the last report.
    tokens: int = 0
    #: A deterministic run: it has done its share and holds.
    held: bool = False
    #: Its last word: it leaves; (rollouts, tokens) that it had begun for training and dropped.
    left: bool = False
    dropped: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class SwitchTrainer:
    """To a generator, from its placement: another trainer takes over. Forget all that was asked,
    take weights from this channel, and say `WorkerReady` when the first are there."""

    channel: Any
    session: int


# -- trainer --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class TrainStep:
    """To the trainer: one optimiser step on these groups; publish the weights after it, or not."""

    groups: tuple[Group, ...]
    publish: bool


@dataclass(frozen=True, slots=True, eq=False)
class StepDone:
    """From the trainer."""

    report: StepReport
    #: Of its time, publishing included.
    seconds: float


@dataclass(frozen=True, slots=True)
class StepRefused:
    """From the trainer: it did not learn from this batch, and why; its weights are as before."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """To the trainer: write a checkpoint there."""

    path: str


@dataclass(frozen=True, slots=True)
class PublishWeights:
    """To the trainer: hand over the present weights, though the schedule would not yet."""


@dataclass(frozen=True, slots=True, eq=False)
class CompareLogprobs:
    """To the trainer: compare its log-probs of these tokens with the generator's."""

    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class TrainerDone:
    """From the trainer: saved, published, or scored (the gaps of the log-probs, per token)."""

    gaps: tuple[float, ...] = ()
    #: Why it could not be saved.
    problem: str | None = None


# -- checkers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ScoreAnswers:
    """To a checker: judge these answers."""

    job: int
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """From a checker: all verdicts of a job, in order. Without a job, it only shows it lives."""

    job: int | None
    scores: tuple[AnswerScore, ...] = ()
    #: DeviceSeconds in the checks themselves.
    seconds: float = 0.0
    #: Checks that it has given up on and that still run in it: it should be replaced.
    hung: int = 0


# -- any part -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """From any part: it is up."""

    version: int = 0
    #: The kind of device it is on: cpu, or the name of a GPU.
    device: str = "cpu"
    #: Which of its lives has begun (`SwitchTrainer`).
    session: int = 0


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """From any part: it cannot go on, and why, in one line."""

    reason: str
    #: Whether it is something that the user can put right: a damaged model, say.
    bad_input: bool = False
    #: Whether it is because another part of its group is gone or does not answer.
    lost: bool = False
    #: Whether it is because its memory has run out.
    no_memory: bool = False


@dataclass(frozen=True, slots=True)
class StopWorker:
    """To any part: end."""
