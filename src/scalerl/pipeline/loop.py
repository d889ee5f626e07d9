"""The loop: prompts out, episodes in, batches to the trainer, weights back (paper, Figure 4).

                     prompts                 turns                    groups
    intake ──────────────────► generators ⇄ environments ────────────────────► learner
        ▲                          ▲                │                              │
        └────── pass rates ────────┼────────────────┘                              │
                                   └───────────── weights, version + 1 ◄───────────┘

    supervisor   handles the events of all workers, and replaces those that are lost
    intake       begins groups while the schedule has room (`Schedule.room`)
    learner      trains on a batch when the schedule has one (`Schedule.choose`)
    validator    measures the pass rate when it is due; training turns are paused meanwhile
    recorder     writes the run's record

The loop is given a crew and a clock and starts no process itself. It is one iteration over a
*script*, a generator that starts all work that may start, and yields what the run then waits for:
whatever it waits for, events of all workers are handled. Without the trainer the run goes back to
its last checkpoint (`scalerl.training`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from scalerl.engine.interface import TurnResult
from scalerl.machine import cores
from scalerl.pipeline import logprob_check, state
from scalerl.pipeline.crew import Clock, Crew
from scalerl.pipeline.intake import Intake
from scalerl.pipeline.learner import Learner, Waiting
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.lockstep import LockstepPace
from scalerl.pipeline.recorder import Recorder
from scalerl.pipeline.rollouts import Rollouts
from scalerl.pipeline.scaling import Scaling
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.state import RunState, Stopped
from scalerl.pipeline.supervisor import Supervisor
from scalerl.pipeline.validator import Validator
from scalerl.pipeline.worker_watch import WATCH_SECONDS, WorkerWatch
from scalerl.recipe import Recipe
from scalerl.runs.compute import Compute, budget_use
from scalerl.runs.lines import EvalLine
from scalerl.runs.listener import Listener
from scalerl.runs.store import RunStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """How a loop ended."""

    reason: str
    steps: int
    compute: Compute


class Loop:
    """One run, until its budget is used up, its prompts run out, or it is asked to stop."""

    def __init__(
        self,
        setup: RunSetup,
        crew: Crew,
        clock: Clock,
        store: RunStore,
        listener: Listener,
        *,
        checkpoint: Path | None = None,
        stop_rule: Callable[[EvalLine], str | None] = lambda line: None,
    ) -> None:
        self.setup, self.crew = setup, crew
        self.state = RunState()
        where, count = setup.recipe.placement, setup.recipe.compute.count_validation
        self.ledger = Ledger(
            clock, setup.parameters, len(crew.generators), where.trainers, count,
            where.devices_per_generator, cores() if where.backend == "local" else None,
        )  # fmt: skip
        self.recorder = Recorder(setup, store, listener, self.ledger, self.state)
        self.learner = Learner(setup, crew, clock, self.state, self.recorder, self.ledger)
        self.supervisor = Supervisor(
            setup, crew, clock, self.state, self.recorder, self.learner, self.ledger
        )
        self.intake = Intake(
            setup, self.state, self.supervisor.dispatcher, self.recorder, self.ledger
        )
        self.validator = Validator(setup, clock, self.state, self.recorder, self.ledger, stop_rule)
        self.rollouts = Rollouts(
            setup, self.supervisor.pool, clock, self.supervisor.place,
            {"train": self.intake.complete, "validate": self.validator.complete},
        )  # fmt: skip
        self.intake.rollouts = self.validator.rollouts = self.rollouts
        self.scaling = Scaling(self.supervisor, setup.recipe)
        self.watch = WorkerWatch(self.supervisor, self.intake, self.scaling)
        self.supervisor.on_turn = self._on_turn
        self.supervisor.on_results = self.rollouts.on_results
        self.supervisor.on_restart = self.rollouts.restarted
        self.supervisor.on_join_failed = self.scaling.on_join_failed
        self.pace: StreamingPace | LockstepPace = (
            LockstepPace(self) if where.deterministic else StreamingPace(self)
        )
        #: Warnings about the checkpoint that the run was resumed from.
        self._restored = [] if checkpoint is None else state.restore(self, checkpoint)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, with the present number of generators."""
        return self.scaling.recipe

    def stop(self, reason: str) -> None:
        """Ask the run to end as soon as no step is under way; safe in a signal handler."""
        self.state.stop = reason

    def run(self) -> LoopEnd:
        """Run from the first weights to the last validation."""
        try:
            reason = self._drive(self._script())
        except Stopped as stopped:
            reason = str(stopped)
        return LoopEnd(reason, self.state.version, self.ledger.compute())

    def save(self) -> Path:
        """Write a checkpoint of everything the run needs to be resumed from here."""
        return self._drive(self.save_checkpoint())

    def save_checkpoint(self) -> Generator[str, None, Path]:
        """Write a checkpoint, as a part of the script."""
        return self.learner.save(lambda folder: state.save(self, folder))

    def _drive(self, script: Generator[str, None, T]) -> T:
        """Handle events until a script is at its end; what it returns."""
        try:
            while True:
                try:
                    waits_for = next(script)
                except StopIteration as end:
                    found: T = end.value
                    return found
                self.pace.before_poll()
                self.supervisor.handle(self.crew.poll(WATCH_SECONDS))
                self.rollouts.step = self.state.version
                self.watch.tick(waits_for)
        finally:
            script.close()  # what it has open, a checkpoint say, is removed

    def _script(self) -> Generator[str, None, str]:
        """The whole run; why it ended."""
        setup, run_state = self.setup, self.state
        yield from self.supervisor.await_crew()
        self.recorder.warn([*setup.warnings, *self._restored])
        self.recorder.note("note", setup.stop_text)
        if setup.recipe.adapter.rank:
            self.recorder.note("note", setup.recipe.learning_rate_text)
        # The generators have the weights of the last published version; an off-policy schedule
        # publishes every k steps only.
        earlier = range(run_state.version, -1, -1)
        run_state.published = next(v for v in earlier if setup.schedule.publishes(v))
        self.supervisor.place([logprob_check.request(setup)], "validate")
        yield from self.learner.compare_logprobs()
        self.intake.resubmit()
        self.ledger.validating(self.validator.last is None)
        self.ledger.start()
        run_state.started = True
        reason = (yield from self.validator.validate()) if self.validator.last is None else None
        while reason is None:
            self.raise_if_stopping()
            reason = self._budget_used_up() or (yield from self.pace.iterate())
        run_state.over = True
        if self.validator.last != run_state.version:
            yield from self.learner.publish()
            yield from self.validator.validate()
        return str(reason)

    def _on_turn(self, written: TurnResult) -> None:
        if written.request == logprob_check.REQUEST_ID:
            self.learner.logprob_turns.append(written.turn)
        else:
            self.rollouts.on_turn(written)

    def raise_if_stopping(self) -> None:
        """Raise Stopped if the run was asked to end and no step is under way."""
        if self.state.stop is not None and not self.learner.batch:
            raise Stopped(self.state.stop)

    def _budget_used_up(self) -> str | None:
        """Why the run ends, if its budget is used up; never while a step is under way."""
        budget = self.setup.recipe.budget
        use = None if self.learner.batch else budget_use(budget, self.ledger.compute())
        return None if use is None else use.reason


class StreamingPace:
    """The usual pace: each worker goes on as soon as it can."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.intake, self.learner = loop, loop.intake, loop.learner

    def before_poll(self) -> None:
        """Begin all groups that may begin."""
        self.intake.start_groups(training=bool(self.learner.batch))

    def iterate(self) -> Waiting:
        """Start all work that may start, then wait for events. Returns why the run ends, or
        None."""
        if not self.learner.batch:
            if self.loop.validator.due:
                return (yield from self.loop.validator.validate())
            if self.learner.checkpoint_due:
                yield from self.loop.save_checkpoint()
        waits_for = self._start_work()
        if self.intake.exhausted and not self.learner.batch:
            return "every prompt has been retired"
        yield waits_for
        return None

    def _start_work(self) -> str:
        """Start groups and the next step until neither can be started; what the run then waits
        for."""
        while True:
            self.before_poll()
            if self.learner.batch:
                return "the trainer"
            choice = self.intake.choose()
            self.loop.ledger.awaits_checks(self.intake.only_checks_missing(choice))
            if not choice.serials:
                return choice.waits_for or "the generators"
            self.learner.train(self.intake.take(choice.serials))
