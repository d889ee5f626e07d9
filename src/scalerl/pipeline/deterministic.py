"""The loop in lockstep (`placement.deterministic`): one seed gives one run, bit for bit.

Each round, generators finish a fixed share of rollouts while the trainer takes one step and the
checkers score. When all have finished, their results are handled in a fixed order, and the weights
change. So no result depends on which worker was faster.
"""

from __future__ import annotations

import math

from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Handle
from scalerl.pipeline.environment_pool import ScoredAnswers
from scalerl.pipeline.loop import Loop
from scalerl.pipeline.supervisor import Stopped

#: Share of a batch that is finished between two weight updates. Less than a whole one, so that
#: rollouts are in flight when weights change, as in a run that is not deterministic.
SHARE = 0.75


class DeterministicLoop(Loop):
    """A loop that waits for all workers after each round."""

    _holding: set[str]
    _scored: list[ScoredAnswers]
    _trainer_message: tuple[Handle, m.StepDone | m.StepRefused] | None = None

    def _iterate(self) -> str | None:
        if self._validation_due():
            return self.validate()
        if self._checkpoint_due():
            # A resume would lose the half-written rollouts that generators hold.
            while self._count("writing"):
                self._advance()
            self.save()
        choice = self.setup.schedule.choose(self.version, self._ages())
        if choice.serials:
            self._train(choice.serials)
        super()._start_groups()
        if self._out_of_prompts and not choice.serials and not self._count("writing"):
            return "every prompt has been retired"
        self._advance()
        if self.setup.schedule.publishes(self.version):
            self._publish()
        return None

    def _advance(self) -> None:
        """One round: every generator finishes its share of rollouts, or all it has, with the same
        weights, while trainer and checkers work."""
        share = math.ceil(SHARE * self.setup.recipe.batch.completions / len(self.dispatcher))
        self._holding, self._scored, self._trainer_message = set(), [], None
        for state in self.dispatcher:
            if state.held:
                self._holding.add(state.handle.name)
                self.dispatcher.send(state, m.AdvanceAndHold(self.published, share))
        while self._holding:
            self._raise_if_stopped()
            self._poll_and_dispatch(f"{', '.join(sorted(self._holding))} to finish their share")
        while self.checks.pending:
            self._raise_if_stopped()
            self._poll_and_dispatch("the checkers")
        while self.batch and self._trainer_message is None:
            self._poll_and_dispatch("the trainer")
        # By serial number: the order in which checkers answer depends on their speed.
        for scored in sorted(self._scored, key=lambda j: int(str(j.key))):
            super()._on_scored(scored)
        if self._trainer_message is not None:
            worker, message = self._trainer_message
            if isinstance(message, m.StepDone):
                super()._on_step_done(worker, message)
            else:
                super()._on_step_refused(worker, message)

    def _raise_if_stopped(self) -> None:
        """Stop in the middle of a round, without a checkpoint: only those between rounds can be
        resumed bit for bit."""
        if self._stop is not None:
            raise Stopped(self._stop)

    def _start_groups(self) -> None:
        """Do nothing: groups are started once a round, in `_iterate`."""

    def _on_report(self, worker: Handle, report: m.GeneratorReport) -> None:
        super()._on_report(worker, report)
        if report.held:
            self._holding.discard(worker.name)

    def _on_scored(self, scored: ScoredAnswers) -> None:
        if self.validation is not None:
            super()._on_scored(scored)
        else:
            self._scored.append(scored)

    def _on_step_done(self, worker: Handle, message: m.StepDone) -> None:
        self._trainer_message, self.trainer_since = (worker, message), None

    def _on_step_refused(self, worker: Handle, message: m.StepRefused) -> None:
        self._trainer_message, self.trainer_since = (worker, message), None

    def _publishes(self, version: int) -> bool:
        """Never right after a step: `_iterate` publishes at the end of the round."""
        return False

    def _publish(self) -> None:
        super()._publish()
        self.dispatcher.set_versions(self.version)
