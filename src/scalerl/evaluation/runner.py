"""Runs an evaluation: an engine in this process generates, checker processes score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from scalerl.engine.interface import Engine
from scalerl.errors import InputError, PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Handle, MessageReceived, WorkerLost
from scalerl.pipeline.environment_pool import Done, EnvironmentPool, ScoredAnswers
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
        self._clock = RealClock()
        self._looked = self._clock.now()
        try:
            self.crew.start_checkers(setup)
            where = setup.recipe.placement
            self.checks = EnvironmentPool(
                setup.task, self.crew.checkers, where.checkers, where.check_seconds, self._clock
            )
        except BaseException:  # Ctrl-C too: no process may be left behind
            self.close()
            raise

    def close(self) -> None:
        """Kill the checker processes."""
        self.crew.stop(at_once=True)

    def poll_scores(self, seconds: float) -> list[ScoredAnswers]:
        """Scores that have arrived, after at most this many seconds for the first."""
        found: list[ScoredAnswers] = []
        for event in self.crew.poll(seconds):
            found += self._event(event)
        for handle, why in self._replaceable():
            self.say(f"{handle.name} {why}: replaced")
            found += _scored(self.checks.on_worker_lost(handle, self.crew.replace(handle), why))
        while self.checks.notes:
            self.say(self.checks.notes.pop(0))
        return found

    def _replaceable(self) -> list[tuple[Handle, str]]:
        """Checkers that have to be replaced, each with the reason."""
        away = self._clock.now() - self._looked
        if away < WATCH_SECONDS:
            return []
        self._looked += away
        # Three intervals, since one engine step may take longer than one.
        if away > 3 * WATCH_SECONDS + PAUSE * self._patience:
            self.checks.shift_deadlines(away)
            return []
        return self.checks.replaceable(self._patience, max(self._patience, START_SECONDS))

    def _event(self, event: MessageReceived | WorkerLost) -> list[ScoredAnswers]:
        if isinstance(event, WorkerLost):
            return _scored(
                self.checks.on_worker_lost(event.worker, self.crew.replace(event.worker), event.why)
            )
        message = event.message
        if isinstance(message, m.WorkerReady):
            self.checks.on_ready(event.worker)
            return []
        if isinstance(message, m.WorkDone):
            return _scored(self.checks.on_done(event.worker, message))
        if isinstance(message, m.WorkerFailed) and message.bad_input:
            raise InputError(message.reason)
        raise PipelineError(f"{event.worker.name}: {getattr(message, 'reason', message)}")


def _scored(done: Iterable[Done]) -> list[ScoredAnswers]:
    return [one for one in done if isinstance(one, ScoredAnswers)]


def score_answers(
    setup: RunSetup, weights: str, questions: Validation, checkers: EvaluationCheckers, step: int
) -> Iterator[tuple[ValidationPrompt, float]]:
    """Yield every prompt when all its answers are scored, with the share of the work done so far;
    generating and scoring count half each."""
    # One slot: the training lane stays empty, all requests go to the validation lane.
    engine: Engine = make_engine_here(setup, model=weights, slots=1)
    engine.submit([asked.request for asked in questions.asked.values()], "validate")
    while questions.missing:
        writing = engine.health().busy
        if writing:
            for written in engine.step().written:
                answers = questions.wrote(written, step)
                if answers:
                    checkers.checks.score(written.request, answers)
        for scored in checkers.poll_scores(0.0 if writing else WAIT):
            questions.add_scores(str(scored.key), scored.scores)
            wrote, checked, total = questions.progress
            yield questions.asked[str(scored.key)], (wrote + checked) / (2 * total)
