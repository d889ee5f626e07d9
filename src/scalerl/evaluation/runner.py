"""Runs an evaluation: generators write the answers and checkers score them, in processes of their
own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Self

from scalerl.errors import PipelineError
from scalerl.pipeline.crew import Handle
from scalerl.pipeline.groups import PendingGroup
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.rollouts import Rollouts
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.state import RunState
from scalerl.pipeline.supervisor import WorkerSupervisor
from scalerl.pipeline.validation import Validation, ValidationPrompt
from scalerl.pipeline.worker_watch import WATCH_SECONDS, stood_still
from scalerl.placement.registry import place_evaluation
from scalerl.runs.lines import EventKind
from scalerl.runs.listener import Listener

#: Answers under way, in multiples of what all generators write at once: enough that no slot waits
#: for the next answer, and few enough that a generator that is slow, or joins late, gets its share
#: and that a kill loses little.
AHEAD = 2


class EvaluationNotes:
    """Passes the events of the workers on to the user. An evaluation has no record of them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.listener = Listener()
        self._say = say

    def note(self, event: EventKind, why: str) -> None:
        self._say(why)


class EvaluationSupervisor(WorkerSupervisor):
    """The supervisor of an evaluation."""

    again = "repeat the command"


class EvaluationWorkers:
    """The generators and checkers of an evaluation of these weights, until the `with` ends."""

    def __init__(self, setup: RunSetup, weights: str, say: Callable[[str], None]) -> None:
        self.setup, self.say = setup, say
        self.crew, self.clock = place_evaluation(setup, weights)
        ledger = Ledger(self.clock, setup.parameters, len(self.crew.generators), trainers=0)
        self.supervisor = EvaluationSupervisor(
            setup, self.crew, self.clock, RunState(), EvaluationNotes(say), ledger,
            deterministic=False,
        )  # fmt: skip
        self.supervisor.on_join_failed = _refuse
        self._watched = self.clock.now()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.crew.stop(at_once=error is not None)

    def poll(self, rollouts: Rollouts) -> None:
        """Handle what has arrived, and replace workers that are silent."""
        supervisor = self.supervisor
        supervisor.handle(self.crew.poll(WATCH_SECONDS))
        while supervisor.pool.notes:
            self.say(supervisor.pool.notes.pop(0))
        away = self.clock.now() - self._watched
        if away < WATCH_SECONDS:
            return
        self._watched += away
        if stood_still(away, supervisor.patience):
            supervisor.shift_deadlines(away)
            rollouts.shift_deadlines(away)
            return
        supervisor.replace_silent("answers")
        for line in rollouts.end_late_episodes():
            self.say(line)

    def score_answers(
        self, questions: Validation, step: int
    ) -> Iterator[tuple[ValidationPrompt, float]]:
        """Yield every prompt when all its episodes are scored, with the share of the prompts that
        are."""
        done: list[PendingGroup] = []
        rollouts = Rollouts(
            self.setup, self.supervisor.pool, self.clock, self.supervisor.place,
            {"train": done.append, "validate": done.append},
        )  # fmt: skip
        rollouts.step = step
        self.supervisor.on_turn = rollouts.on_turn
        self.supervisor.on_results = rollouts.on_results
        self.supervisor.on_restart = rollouts.restarted
        room = AHEAD * self.setup.validation_slots * self.setup.recipe.placement.generators
        waiting, total = deque(questions.groups), questions.missing
        while questions.missing:
            under_way = sum(p.size for p in rollouts.groups.values())
            new: list[PendingGroup] = []
            while waiting and under_way < room:
                new.append(waiting.popleft())
                under_way += new[-1].size
            rollouts.begin(new)
            self.poll(rollouts)
            while done:
                questions.missing -= 1
                yield questions.asked[done.pop(0).key], 1.0 - questions.missing / total


def _refuse(worker: Handle) -> None:
    raise PipelineError(f"{worker.name} is lost and was not one of the evaluation")
