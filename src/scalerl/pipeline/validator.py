"""The validator: measures the pass rate on held-out prompts when it is due."""

from __future__ import annotations

import math
from collections.abc import Callable

from scalerl.errors import PipelineError
from scalerl.pipeline.crew import Clock
from scalerl.pipeline.groups import PendingGroup
from scalerl.pipeline.learner import Waiting
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.recorder import Recorder
from scalerl.pipeline.rollouts import Rollouts
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.state import RunState, Stopped
from scalerl.pipeline.validation import Validation
from scalerl.runs.lines import EvalLine

#: Seconds between two reports of progress: redrawing a view more often would slow the run down.
PROGRESS_SECONDS = 1.0


class Validator:
    """Validations of a run, one at a time."""

    def __init__(
        self,
        setup: RunSetup,
        clock: Clock,
        state: RunState,
        recorder: Recorder,
        ledger: Ledger,
        stop_rule: Callable[[EvalLine], str | None],
    ) -> None:
        self.clock, self.state, self.recorder = clock, state, recorder
        self.ledger, self.stop_rule = ledger, stop_rule
        #: Set by the loop.
        self.rollouts: Rollouts
        #: Version of the last validation.
        self.last: int | None = None
        #: The validation under way.
        self.current: Validation | None = None
        self._every = setup.recipe.validation.every
        self._template = Validation.from_setup(setup)
        self._reported_at = -math.inf

    @property
    def due(self) -> bool:
        """Whether a validation is due, and generators can load this very version."""
        if self.last == self.state.version or self.state.published != self.state.version:
            return False
        return self.state.version - (self.last or 0) >= self._every

    def complete(self, p: PendingGroup) -> None:
        """Take a held-out prompt with all its scores."""
        self.recorder.scored(p.scores.values())
        if self.current is not None and p.key in self.current.asked:
            self.current.missing -= 1

    def validate(self) -> Waiting:
        """Measure mean@k on the held-out prompts at the present version. Training turns are paused
        and the trainer waits, so that one set of weights answers all prompts. When all answers are
        written, the generators go on and only the trainer waits for the scores. Returns why the
        run ends, or None."""
        version = self.state.version
        self.ledger.validating(True)
        found = self.current = self._template.unanswered()
        self._reported_at = -math.inf
        try:
            self.rollouts.begin(found.groups)
            while unwritten := self.rollouts.counts["validate"].writing:
                self._report_progress(found)
                yield f"answers to {unwritten} validation prompts"
            self.ledger.validating(False)
            compute, spent = self.ledger.compute(), self.ledger.validation_seconds
            self.ledger.awaits_checks(True)
            yield from self._await_scores(found)
            if failed := found.main.failed:
                again = found.unscored()
                how = " and is checked again" if again else ""
                self.recorder.warn([f"the validation has failed{how}: {failed}"])
                self.rollouts.begin(again)
                yield from self._await_scores(found)
        finally:
            self.current = None
            self.ledger.validating(False)
            self.ledger.awaits_checks(False)
        if self.last is None and (why := found.nothing_scored) is not None:
            raise PipelineError(why)
        line = EvalLine(
            step=version,
            version=version,
            **found.score(),
            compute=compute,
            validation_hours=spent / 3600.0,
        )
        self.last = version
        self.recorder.validation(line, found)
        return self.stop_rule(line)

    def _await_scores(self, validation: Validation) -> Waiting:
        while validation.missing:
            self._report_progress(validation)
            yield f"scores of {validation.missing} validation prompts"

    def _report_progress(self, validation: Validation) -> None:
        """Raise if the run is to stop; report the progress to the listener, at once and then about
        every second."""
        if self.state.stop is not None:
            raise Stopped(self.state.stop)
        if self.clock.now() - self._reported_at >= PROGRESS_SECONDS:
            self._reported_at = self.clock.now()
            self.recorder.listener.validating(self.state.version, *validation.progress)
