"""The learner: gives batches to the trainer, publishes weights, and writes checkpoints.

Methods that wait for the trainer are generators: they yield what the run waits for, and the loop
handles events until they can go on.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from scalerl.algorithm.episode import Group, Turn
from scalerl.errors import PipelineError
from scalerl.pipeline import checkpoints, logprob_check
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Clock, Crew, Handle
from scalerl.pipeline.groups import CheckSummary, PendingGroup, mean_stage_seconds
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.recorder import Recorder
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.state import RunState, Stopped
from scalerl.runs.lines import GroupSeconds

#: Batches in a row with a gradient that is not finite, after which the run fails. One may be bad
#: luck; in a row, the weights themselves are going wrong.
MAX_REFUSALS = 3
#: What a part of the run yields while it waits, and then returns.
Waiting = Generator[str, None, Any]


class Learner:
    """The trainer as the loop knows it: one batch, or one other message, at a time."""

    def __init__(
        self, setup: RunSetup, crew: Crew, clock: Clock, state: RunState, recorder: Recorder,
        ledger: Ledger,
    ) -> None:  # fmt: skip
        self.setup, self.crew, self.clock = setup, crew, clock
        self.state, self.recorder, self.ledger = state, recorder, ledger
        #: Whether weights are published right after each step that the schedule says so.
        self.publishes_at_once = True
        #: The groups of the step that the trainer is taking; empty while it takes none.
        self.batch: tuple[Group, ...] = ()
        #: Reasons and metrics that the checks of that batch returned.
        self.check_summary = CheckSummary()
        #: How long its groups were in each stage.
        self.stage_seconds: GroupSeconds | None = None
        #: Whether the trainer has started.
        self.ready = False
        #: Time since which the trainer has had something to do; None while it is idle.
        self.busy_since: float | None = None
        self.last_checkpoint: int | None = None
        #: Turns that the log-prob check has asked for.
        self.logprob_turns: list[Turn] = []
        self._answer: m.TrainerDone | None = None
        self._refusals = 0

    # -- messages ---------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        """Send a message to the trainer, which must be idle."""
        self.busy_since = self.clock.now()
        self.crew.trainer.send(message)

    def call(self, message: Any, what: str) -> Generator[str, None, m.TrainerDone]:
        """Send a message to the trainer, and wait for its answer."""
        self._answer = None
        self.send(message)
        while self._answer is None:
            yield f"the trainer {what}"
        return self._answer

    def on_done(self, worker: Handle, message: m.TrainerDone) -> None:
        self._answer, self.busy_since = message, None

    # -- steps ------------------------------------------------------------------------------------

    def train(self, taken: Sequence[PendingGroup]) -> None:
        """Give a batch to the trainer."""
        with self.ledger.between_steps():
            self.batch = tuple(p.group for p in taken if p.group is not None)
            self.check_summary = CheckSummary.merged(taken)
            self.stage_seconds = mean_stage_seconds(taken, self.clock.now())
            self.recorder.listener.batch(self.batch)
            step = self.state.version + 1
            ready = [p for p in taken if p.group is not None]
            chosen = self.recorder.choose(step, ready)
            self.send(m.TrainStep(self.batch, self._publishes(step), chosen))
        # While the trainer works, so that no step waits for it.
        self.recorder.sample(step, ready, chosen)

    def _publishes(self, version: int) -> bool:
        return self.publishes_at_once and self.setup.schedule.publishes(version)

    def on_step_done(self, worker: Handle, message: m.StepDone) -> None:
        with self.ledger.between_steps():
            self._record_step(message)

    def _record_step(self, message: m.StepDone) -> None:
        batch, self.batch, self.busy_since = self.batch, (), None
        report, ledger = message.report, self.ledger
        self._refusals = 0
        self.state.version = report.version
        if self._publishes(report.version):
            self.state.published = report.version
        episodes = sum(len(g.episodes) for g in batch)
        kept = report.filtered.effective_rollouts
        ledger.steps = report.version
        ledger.samples += episodes
        ledger.trained_tokens += report.forward_tokens
        ledger.add_work("train", message.seconds)
        ledger.cpu_seconds["train"] += message.cpu_seconds
        tokens = sum(g.tokens for g in batch)
        ledger.waste("filtered", episodes - kept, tokens - report.kept_tokens)
        self.recorder.step(message, batch, self.check_summary, self.stage_seconds, self.clock.now())

    def on_step_refused(self, worker: Handle, message: m.StepRefused) -> None:
        """Record a batch that the trainer did not learn from; after MAX_REFUSALS in a row the run
        fails."""
        batch, self.batch, self.busy_since = self.batch, (), None
        self._refusals += 1
        episodes = sum(len(g.episodes) for g in batch)
        self.ledger.add_work("train", message.seconds)
        self.ledger.samples += episodes
        self.ledger.waste("failed", episodes, sum(g.tokens for g in batch))
        prompts = tuple(g.prompt_id for g in batch)
        self.recorder.note("refused", message.reason, prompts=prompts)
        if self._refusals >= MAX_REFUSALS:
            raise PipelineError(
                f"{message.reason}; {self._refusals} batches in a row: lower optimiser.lr or "
                "optimiser.grad_clip and go on from an earlier checkpoint: "
                f"{self.recorder.alarms.command('optimiser.lr', back=True)}"
            )
        self.recorder.listener.say(f"warning: {message.reason}; the batch is left out")

    def publish(self) -> Waiting:
        """Publish the present weights, if that has not been done."""
        if self.state.published != self.state.version:
            yield from self.call(m.PublishWeights(), "to publish its weights")
            self.state.published = self.state.version

    def compare_logprobs(self) -> Waiting:
        """Compare the log-probs of generator and trainer on the same tokens before training; the
        check's request must have been given to a generator."""
        while len(self.logprob_turns) < logprob_check.ROLLOUTS:
            if self.state.stop is not None:
                raise Stopped(self.state.stop)
            yield "the first rollouts, to compare log-probs"
        group = logprob_check.group(self.setup, self.logprob_turns)
        answer = yield from self.call(m.CompareLogprobs((group,)), "to score the first rollouts")
        self.recorder.listener.say(logprob_check.check_mismatch(self.setup, answer.gaps))

    # -- checkpoints ------------------------------------------------------------------------------

    @property
    def checkpoint_due(self) -> bool:
        version, every = self.state.version, self.setup.recipe.checkpoint.every
        return version > 0 and version % every == 0 and self.last_checkpoint != version

    def save(self, save_state: Any) -> Generator[str, None, Path]:
        """Write a checkpoint of everything the run needs to be resumed from here. `save_state`
        writes the state of the loop into a folder."""
        # A step under way changes the weights, and its groups are no longer pending.
        while self.batch:
            yield "the trainer"
        version, out, alarms = self.state.version, self.recorder.store.path, self.recorder.alarms
        healthy = alarms.healthy
        with checkpoints.writing(out, version, healthy=healthy) as folder:
            message = m.SaveCheckpoint(str(folder.resolve()))
            problem = (yield from self.call(message, "to write a checkpoint")).problem
            if problem is not None:
                raise OSError(problem)
            save_state(folder)
        self.last_checkpoint = version
        alarms.has_healthy |= healthy
        checkpoints.prune(out, self.setup.recipe.checkpoint.keep)
        return checkpoints.folder_of(out) / f"step_{version}"
