"""Messages between the loop and its workers: plain data, none of it from outside.

Imports no torch, so that checkers, which need none, start quickly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from scalerl.algorithm.episode import Group
    from scalerl.engine.interface import Lane, Request, TurnResult
    from scalerl.environments.interface import Action, Observation, Outcome
    from scalerl.pipeline.ledger import Work
    from scalerl.tasks.task import Answer, AnswerScore, Prompt
    from scalerl.trainer.interface import StepReport, TokenStats

# Messages with arrays in them have eq=False: comparing arrays gives no truth value.

# -- generators -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class SubmitRequests:
    """To a generator: write these rollouts. Requests of the lane `validate` are written with the
    weights of `version`, and the others wait meanwhile."""

    requests: tuple[Request, ...]
    lane: Lane = "train"
    version: int = 0
    #: Sequence number of messages to one generator, from 1; after a gap it accepts no more. 0: not
    #: counted.
    number: int = 0


@dataclass(frozen=True, slots=True)
class AdvanceAndHold:
    """To a generator of a deterministic run: load the weights of this version, finish `rollouts`
    rollouts (or all there are), then hold."""

    version: int
    rollouts: int
    #: As in `SubmitRequests`.
    number: int = 0


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """To a generator that is to leave: drop these training requests, which others will write, and
    send a last report."""

    requests: tuple[str, ...]
    #: As in `SubmitRequests`.
    number: int = 0


def decode_terms(rows: float, seconds: float, admitted: float = 0.0) -> tuple[float, ...]:
    """What one decode step adds to `GeneratorReport.decoded`, in the order of `DecodeWork`."""
    return (
        1.0, rows, rows * rows, seconds, rows * seconds,
        admitted, admitted * admitted, rows * admitted, admitted * seconds,
    )  # fmt: skip


def no_decode_steps() -> list[float]:
    """The sums over no decode step."""
    return [0.0] * len(decode_terms(0, 0))


@dataclass(frozen=True, slots=True, eq=False)
class GeneratorReport:
    """From a generator: finished rollouts and time spent. Sent whenever a group is complete, and
    as a heartbeat."""

    #: Sequence number of its reports, from 1: a gap means that one was lost.
    number: int
    #: Messages it has accepted so far.
    taken: int
    #: Version of its weights.
    version: int
    #: Rollouts finished since the last report, all of one lane.
    written: tuple[TurnResult, ...] = ()
    lane: Lane = "train"
    #: Seconds since the last report, by the kind of work.
    seconds: dict[Work, float] = field(default_factory=dict)
    #: Training tokens written since the last report.
    tokens: int = 0
    #: Tokens read since the last report before later turns of training episodes.
    read_tokens: int = 0
    #: Sums over the decode steps of training turns since the last report, as in
    #: `scalerl.runs.compute.DecodeWork`.
    decoded: tuple[float, ...] = ()
    #: CPU seconds of its process since the last report.
    cpu_seconds: float = 0.0
    #: Whether it has finished its share and holds (deterministic runs).
    held: bool = False
    #: Whether this is its last report before it leaves.
    left: bool = False
    #: In a last report: (rollouts, tokens) begun for training and dropped.
    dropped: tuple[int, int] = (0, 0)
    #: Proofs since the last report that it has the trainer's adapter, in words.
    proofs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SwitchTrainer:
    """To a generator, from its placement: another trainer takes over. Drop all requests, take
    weights from this channel, and send `WorkerReady` when the first have arrived."""

    channel: Any
    #: Number of the session that starts.
    session: int


# -- trainer --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class TrainStep:
    """To the trainer: take one optimiser step on these groups."""

    groups: tuple[Group, ...]
    #: Whether to publish the weights after it.
    publish: bool
    #: Episodes whose tokens' statistics are asked for, as the numbers of group and episode.
    recorded: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StepDone:
    """From the trainer: the step is taken."""

    report: StepReport
    #: Seconds the trainer spent, publishing included.
    seconds: float
    #: Seconds of publishing.
    publish_seconds: float = 0.0
    #: CPU seconds of its process.
    cpu_seconds: float = 0.0
    #: Of the recorded episodes, in their order; empty where the trainer keeps none.
    token_stats: tuple[TokenStats | None, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRefused:
    """From the trainer: it did not learn from the batch, and its weights are unchanged."""

    reason: str
    #: Seconds the trainer spent.
    seconds: float


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """To the trainer: write its files of a checkpoint into this directory."""

    path: str


@dataclass(frozen=True, slots=True)
class PublishWeights:
    """To the trainer: publish the present weights now, whatever the schedule."""


@dataclass(frozen=True, slots=True, eq=False)
class CompareLogprobs:
    """To the trainer: compare its log-probs of these tokens with the generator's."""

    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class TrainerDone:
    """From the trainer: the answer to `SaveCheckpoint`, `PublishWeights` or `CompareLogprobs`."""

    #: |difference of log-probs| of each token, in nats.
    gaps: tuple[float, ...] = ()
    #: Why the checkpoint could not be written.
    problem: str | None = None


# -- environment workers (checkers) ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ScoreAnswers:
    """To an environment worker: score these answers to one prompt."""

    job: int
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EnvironmentCall:
    """One call of the environment of an episode. A worker that holds the environment makes the
    call; one that does not makes a new environment, resets it and replays `history` in it first."""

    #: Name of the episode: one environment each, unique in a run.
    episode: str
    prompt: Prompt
    #: Seed of the environment: the same for all episodes of a group.
    seed: int
    kind: Literal["reset", "step", "cut_off"]
    #: The turn to reply to, for `step`.
    action: Action | None = None
    #: All turns before it, also when the worker holds the environment: the pool sends them only
    #: where they are needed.
    history: tuple[Action, ...] = ()
    #: Fingerprint of what each earlier call returned, `reset` first: a replay must return the same.
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CallEnvironment:
    """To an environment worker: make this call."""

    job: int
    call: EnvironmentCall
    #: Number of turns that the environment has had, if this worker is believed to hold it:
    #: `history` and `shown` are left out then. None: make a new environment and replay.
    held: int | None = None


@dataclass(frozen=True, slots=True)
class CloseEpisodes:
    """To an environment worker: close the environments of these episodes, and cancel their calls.
    Episodes that it does not know are ignored."""

    episodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EnvironmentReply:
    """What a call of an environment returned. The environment is closed and gone after an
    `Outcome`, after `cut_off` and after a problem."""

    episode: str
    kind: Literal["reset", "step", "cut_off"]
    #: None where the environment failed, and for `cut_off` where it has nothing to say.
    reply: Observation | Outcome | None
    #: Fingerprint of the reply.
    fingerprint: str = ""
    #: Why the environment failed, in one line; empty if it did not.
    problem: str = ""
    #: Whether it failed because it did not answer in time, or ended its worker.
    gave_up: bool = False
    #: Seconds that the call took, replay included.
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class WorkDone:
    """From an environment worker: a job is done. A heartbeat has no job."""

    job: int | None
    #: Scores of a `ScoreAnswers`, in the order of its answers.
    scores: tuple[AnswerScore, ...] = ()
    #: Reply to a `CallEnvironment`; None if the worker does not hold the environment that it was
    #: believed to hold: the call has to be repeated with its history.
    reply: EnvironmentReply | None = None
    #: Seconds spent in calls of the verifier or of the environment.
    seconds: float = 0.0
    #: Calls that it has given up on and that still run in it.
    hung: int = 0
    #: Environments that it holds.
    live: int = 0


# -- any worker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """From any worker: it has started and accepts messages."""

    #: Version of its weights.
    version: int = 0
    #: Kind of its device: `cpu`, or the name of a GPU.
    device: str = "cpu"
    #: Number of the session that has started (`SwitchTrainer`).
    session: int = 0
    #: Proofs that it has the trainer's adapter, in words.
    proofs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """From any worker: it cannot continue."""

    #: Why, in one line.
    reason: str
    #: Whether the user can repair it: a damaged model file, say.
    bad_input: bool = False
    #: Whether it is a rank that has lost another rank.
    lost: bool = False
    #: Whether it ran out of memory.
    no_memory: bool = False


@dataclass(frozen=True, slots=True)
class StopWorker:
    """To any worker: end."""
