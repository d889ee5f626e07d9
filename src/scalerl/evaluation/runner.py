"""Runs an evaluation: an engine in this process generates, checker processes score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scalerl.engine.interface import Engine, Lane, Request
from scalerl.errors import InputError, PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Handle, MessageReceived, WorkerLost
from scalerl.pipeline.environment_pool import Done, EnvironmentPool
from scalerl.pipeline.groups import PendingGroup
from scalerl.pipeline.rollouts import Rollouts
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.supervisor import START_SECONDS
from scalerl.pipeline.validation import Validation, ValidationPrompt
from scalerl.placement.processes import RealClock, WorkerProcesses
from scalerl.placement.specs import make_engine_here

#: Seconds to wait for scores when all answers are generated.
WAIT = 0.2
#: Seconds between two searches for checkers to replace. After a pause of this process (Ctrl-Z, a
#: model that loads) the heartbeats in the pipes have this long to be read.
WATCH_SECONDS = 1.0
#: Share of placement.patience: a longer interval between two searches was a pause of this process,
#: which is not counted against the checkers.
PAUSE = 0.1


class EvaluationCheckers:
    """The checker processes of an evaluation; they may serve many models."""

    def __init__(self, setup: RunSetup, say: Callable[[str], None]) -> None:
        self.crew = WorkerProcesses()
        self.say = say
        self._patience = setup.recipe.placement.patience
        self.clock = RealClock()
        self._looked = self.clock.now()
        try:
            self.crew.start_checkers(setup)
            where = setup.recipe.placement
            self.pool = EnvironmentPool(
                setup.task, self.crew.checkers, where.checkers, where.check_seconds, self.clock
            )
        except BaseException:  # Ctrl-C too: no process may be left behind
            self.close()
            raise

    def close(self) -> None:
        """Kill the checker processes."""
        self.crew.stop(at_once=True)

    def poll_results(self, seconds: float) -> list[Done]:
        """Scores and replies of environments that have arrived, after at most this many seconds for
        the first."""
        found: list[Done] = []
        for event in self.crew.poll(seconds):
            found += self._event(event)
        for handle, why in self._replaceable():
            self.say(f"{handle.name} {why}: replaced")
            found += self.pool.on_worker_lost(handle, self.crew.replace(handle), why)
        while self.pool.notes:
            self.say(self.pool.notes.pop(0))
        return found

    def _replaceable(self) -> list[tuple[Handle, str]]:
        """Checkers that have to be replaced, each with the reason."""
        away = self.clock.now() - self._looked
        if away < WATCH_SECONDS:
            return []
        self._looked += away
        # Three intervals, since one engine step may take longer than one.
        if away > 3 * WATCH_SECONDS + PAUSE * self._patience:
            self.pool.shift_deadlines(away)
            return []
        return self.pool.replaceable(self._patience, max(self._patience, START_SECONDS))

    def _event(self, event: MessageReceived | WorkerLost) -> list[Done]:
        if isinstance(event, WorkerLost):
            return self.pool.on_worker_lost(
                event.worker, self.crew.replace(event.worker), event.why
            )
        message = event.message
        if isinstance(message, m.WorkerReady):
            self.pool.on_ready(event.worker)
            return []
        if isinstance(message, m.WorkDone):
            return self.pool.on_done(event.worker, message)
        if isinstance(message, m.WorkerFailed) and message.bad_input:
            raise InputError(message.reason)
        raise PipelineError(f"{event.worker.name}: {getattr(message, 'reason', message)}")


def score_answers(
    setup: RunSetup, weights: str, questions: Validation, checkers: EvaluationCheckers, step: int
) -> Iterator[tuple[ValidationPrompt, float]]:
    """Yield every prompt when all its episodes are scored, with the share of the work done so far;
    generating and scoring count half each."""
    # One slot: the training lane stays empty, all requests go to the validation lane.
    engine: Engine = make_engine_here(setup, model=weights, slots=1)
    done: list[PendingGroup] = []

    def place(requests: Sequence[Request], lane: Lane) -> int:
        engine.submit(requests, lane)
        return 0

    rollouts = Rollouts(
        setup, checkers.pool, checkers.clock, place, {"train": done.append, "validate": done.append}
    )
    rollouts.step = step
    rollouts.begin(questions.groups)
    while questions.missing:
        writing = engine.health().busy
        if writing:
            for written in engine.step().written:
                rollouts.on_turn(written)
        rollouts.on_results(checkers.poll_results(0.0 if writing else WAIT))
        for line in rollouts.end_late_episodes():
            checkers.say(line)
        while done:
            questions.missing -= 1
            wrote, checked, total = questions.progress
            yield questions.asked[done.pop(0).key], (wrote + checked) / (2 * total)
