"""The lockstep pace (`placement.deterministic`): one seed gives one run, bit for bit.

Each round, generators finish a fixed share of turns while the trainer takes one step and the
environments work. When all have finished, their results are handled in a fixed order, and the
weights change. So no result depends on which worker was faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Handle
from scalerl.pipeline.environment_pool import Done, ScoredAnswers
from scalerl.pipeline.learner import Waiting
from scalerl.pipeline.state import Stopped

if TYPE_CHECKING:
    from scalerl.pipeline.loop import Loop

#: Share of a batch that is finished between two weight updates. Less than a whole one, so that
#: turns are in flight when weights change, as in a run that is not deterministic.
SHARE = 0.75


class LockstepPace:
    """Waits for all workers after each round."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.intake, self.learner = loop, loop.intake, loop.learner
        self.supervisor = loop.supervisor
        self._holding: set[str] = set()
        self._results: list[Done] = []
        self._trainer_message: tuple[Handle, Any] | None = None
        # Weights are published at the end of a round, never right after a step.
        self.learner.publishes_at_once = False
        handlers = self.supervisor.handlers
        handlers[m.GeneratorReport] = self._then_holding(handlers[m.GeneratorReport])
        handlers[m.StepDone] = handlers[m.StepRefused] = self._keep_trainer_message
        self.supervisor.on_results = self._keep_results

    def before_poll(self) -> None:
        """Do nothing: groups are begun once a round, in `iterate`."""

    def iterate(self) -> Waiting:
        """One round. Returns why the run ends, or None."""
        loop = self.loop
        if loop.validator.due:
            return (yield from loop.validator.validate())
        if self.learner.checkpoint_due:
            # A resume would lose the half-written turns that generators hold.
            while self._unfinished():
                yield from self._advance()
            yield from loop.save_checkpoint()
        choice = self.intake.choose()
        if choice.serials:
            self.learner.train(self.intake.take(choice.serials))
        self.intake.start_groups(training=bool(self.learner.batch))
        if self.intake.out_of_prompts and not choice.serials and not self._unfinished():
            return "every prompt has been retired"
        yield from self._advance()
        if loop.setup.schedule.publishes(loop.state.version):
            yield from self.learner.publish()
            self.supervisor.dispatcher.set_versions(loop.state.version)
        return None

    def _unfinished(self) -> int:
        """Number of groups that are being written, or played in their environment."""
        counts = self.loop.rollouts.counts["train"]
        return counts.writing + counts.checking

    def _advance(self) -> Waiting:
        """Every generator finishes its share of turns, or all it has, with the same weights, while
        trainer and environments work."""
        dispatcher, pool = self.supervisor.dispatcher, self.supervisor.pool
        share = math.ceil(SHARE * self.loop.setup.recipe.batch.completions / len(dispatcher))
        self._holding, self._trainer_message = set(), None
        for state in dispatcher:
            if state.held:
                self._holding.add(state.handle.name)
                dispatcher.send(state, m.AdvanceAndHold(self.loop.state.published, share))
        while self._holding:
            self._raise_if_stopped()
            yield f"{', '.join(sorted(self._holding))} to finish their share"
        while pool.pending:
            self._raise_if_stopped()
            yield "the checkers"
        while self.learner.batch and self._trainer_message is None:
            yield "the trainer"
        # In the order of groups and rows: that of arrival depends on the workers' speed.
        results, self._results = sorted(self._results, key=_order), []
        self.loop.rollouts.on_results(results)
        if self._trainer_message is not None:
            worker, message = self._trainer_message
            if isinstance(message, m.StepDone):
                self.learner.on_step_done(worker, message)
            else:
                self.learner.on_step_refused(worker, message)

    def _raise_if_stopped(self) -> None:
        """Stop in the middle of a round, without a checkpoint: only those between rounds can be
        resumed bit for bit."""
        if self.loop.state.stop is not None:
            raise Stopped(self.loop.state.stop)

    def _then_holding(self, handle: Any) -> Any:
        """A handler of reports that also notes which generators hold."""

        def handler(worker: Handle, report: m.GeneratorReport) -> None:
            handle(worker, report)
            if report.held:
                self._holding.discard(worker.name)

        return handler

    def _keep_results(self, results: Sequence[Done]) -> None:
        if self.loop.validator.current is not None:
            self.loop.rollouts.on_results(results)
        else:
            self._results += results

    def _keep_trainer_message(self, worker: Handle, message: Any) -> None:
        self._trainer_message, self.learner.busy_since = (worker, message), None


def _order(result: Done) -> tuple[int, int]:
    if isinstance(result, ScoredAnswers):
        return int(str(result.key)), 0
    name = result.episode.split("#")
    return int(name[0]), int(name[-1])
