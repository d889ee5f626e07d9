"""Writes what happens in a run: lines of the record, warnings, alarms, and calls of listeners."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scalerl.algorithm.episode import Group
from scalerl.pipeline import checkpoints
from scalerl.pipeline import messages as m
from scalerl.pipeline.alarms import Alarms, EmptyStepWatch
from scalerl.pipeline.environment_pool import UnscoredReasons
from scalerl.pipeline.episode_samples import bytes_at, sample_episodes, validation_episodes
from scalerl.pipeline.groups import CheckSummary, PendingGroup
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.state import RunState
from scalerl.pipeline.step_line import step_line
from scalerl.pipeline.validation import Validation
from scalerl.runs.lines import (
    EvalLine,
    EventKind,
    EventLine,
    GroupSeconds,
    Status,
    ValidationEpisodeLine,
)
from scalerl.runs.listener import Listener
from scalerl.runs.store import RunStore, encode
from scalerl.tasks.task import AnswerScore


class Recorder:
    """The only part of the loop that writes to the run's record."""

    def __init__(
        self, setup: RunSetup, store: RunStore, listener: Listener, ledger: Ledger, state: RunState
    ) -> None:
        self.setup, self.store, self.listener = setup, store, listener
        self.ledger, self.state = ledger, state
        #: Warnings from outside the loop; appending one is safe in a signal handler.
        self.notes: list[str] = []
        self.unscored = UnscoredReasons()
        self.empty_steps = EmptyStepWatch(setup.recipe)
        self.alarms = Alarms.from_recipe(setup.recipe, store.path)
        self._samples: list[bytes] = []
        #: Texts of single tokens, by id.
        self._token_texts: dict[int, str] = {}
        self.alarms.has_healthy = checkpoints.last_healthy(store.path) is not None

    def note(self, event: EventKind, why: str, **more: Any) -> None:
        """Record an event."""
        line = EventLine(step=self.state.version, event=event, why=why, **more)
        self.store.append(line)
        self.listener.noted(line)

    def warn(self, lines: Iterable[str], event: EventKind = "warning") -> None:
        """Record warnings, and show them to the user."""
        for line in lines:
            self.listener.say(f"warning: {line}")
            self.note(event, line)

    def drain(self, from_checks: list[str]) -> None:
        """Record the warnings that have gathered: of checks, and from outside the loop."""
        self.warn(from_checks, "checker")
        from_checks.clear()
        while self.notes:
            self.warn([self.notes.pop(0)])

    def scored(self, scores: Iterable[AnswerScore]) -> None:
        """Count answers without a score, and warn of reasons that are new or have grown."""
        for line, answers in self.unscored.add(list(scores)):
            self.listener.say(f"warning: {line}")
            self.note("checker", line, answers=answers)

    def step(
        self, message: m.StepDone, batch: Sequence[Group], summary: CheckSummary,
        stages: GroupSeconds | None, now: float,
    ) -> None:  # fmt: skip
        """Record an optimiser step."""
        line = step_line(
            message, batch, summary, stages, self.setup.curriculum.retired, self.ledger
        )
        self.store.append(line)
        self._record_samples()
        self.listener.trained(now - message.seconds, now, self.state.version)
        self.listener.step(line)
        self.warn([*message.report.notes, *self.alarms.check_step(line)])
        self.warn(self.empty_steps.check_step(line))

    def sample(self, step: int, taken: Sequence[PendingGroup]) -> None:
        """Choose the episodes of a batch that are recorded if the trainer does not refuse it."""
        # Encoded here, because the trainer waits while a step is recorded.
        self._samples = [
            encode(line, compact=True)
            for line in sample_episodes(self.setup, step, taken, self._token_texts)
        ]

    def _record_samples(self) -> None:
        if self._samples:
            limit = self.setup.recipe.record.episodes_megabytes * 1_000_000
            self.store.append_episodes(self._samples, bytes_at(self.state.version, limit))
            self._samples = []

    def validation(self, line: EvalLine, found: Validation) -> None:
        """Record a validation: its answers first, so that a line never lacks them."""
        self.store.save_answers(found.answers(line.step))
        self._record_answers(line.step, found)
        self.store.append(line)
        self.warn(self.alarms.check_validation(line))

    def _record_answers(self, step: int, found: Validation) -> None:
        recipe = self.setup.recipe
        if limit := recipe.record.validation_megabytes * 1_000_000:
            made = validation_episodes(self.setup, step, found, self._token_texts)
            # From the first validation on, which may be at step 0.
            most = bytes_at(step + recipe.validation.every, limit)
            encoded = (encode(each, compact=True) for each in made)
            self.store.append_episodes(encoded, most, ValidationEpisodeLine)

    def status(self, status: Status) -> None:
        """Write the status file, for `scalerl doctor`."""
        self.store.status(status)
