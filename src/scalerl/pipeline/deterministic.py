"""The loop with fixed points (`placement.deterministic`): one seed gives one run, bit for bit.

Generators finish a fixed share of rollouts while the trainer takes a step and the checkers judge;
then all have been waited for, their news is taken in a fixed order, and weights change.
"""

from __future__ import annotations

import math

from scalerl.pipeline import messages as m
from scalerl.pipeline.checks import Judged
from scalerl.pipeline.conversation import Stopped
from scalerl.pipeline.crew import Handle
from scalerl.pipeline.loop import Loop

#: Part of a batch that is finished between two weight updates. Less than a whole one, so that
#: rollouts are in flight when weights change, as in a run without fixed points.
SHARE = 0.75


class DeterministicLoop(Loop):
    """Nothing depends on who was faster."""

    _holding: set[str]
    _verdicts: list[Judged]
    _news: tuple[Handle, m.Stepped | m.Refused] | None = None

    def _turn(self) -> str | None:
        if self._validation_due():
            return self.validate()
        if self._checkpoint_due():
            while self._count("writing"):  # a generator's memory would be lost to a resume
                self._advance()
            self.save()
        choice = self.plan.schedule.choose(self.version, self._ages())
        if choice.serials:
            self._train(choice.serials)
        super()._start_groups()
        if self._out_of_prompts and not choice.serials and not self._count("writing"):
            return "every prompt has been retired"
        self._advance()
        if self.plan.schedule.publishes(self.version):
            self._publish()
        return None

    def _advance(self) -> None:
        """Every generator finishes its share of rollouts, or all it has, with the same weights."""
        share = math.ceil(SHARE * self.plan.recipe.batch.completions / len(self.dispatcher))
        self._holding, self._verdicts, self._news = set(), [], None
        for state in self.dispatcher:
            if state.held:
                self._holding.add(state.handle.name)
                self.dispatcher.tell(state, m.Advance(self.published, share))
        while self._holding:
            self._obey_at_once()
            self._take_in(f"{', '.join(sorted(self._holding))} to do their share")
        while self.checks.pending:
            self._obey_at_once()
            self._take_in("the checkers")
        while self.batch and self._news is None:
            self._take_in("the trainer")
        for judged in sorted(self._verdicts, key=lambda j: int(str(j.key))):
            super()._judged(judged)
        if self._news is not None:
            who, message = self._news
            if isinstance(message, m.Stepped):
                super()._stepped(who, message)
            else:
                super()._refused(who, message)

    def _obey_at_once(self) -> None:
        """Nothing is saved in between: the last checkpoint stands."""
        if self._stop is not None:
            raise Stopped(self._stop)

    def _start_groups(self) -> None:
        """Only at its fixed point."""

    def _heard(self, who: Handle, report: m.Report) -> None:
        super()._heard(who, report)
        if report.held:
            self._holding.discard(who.name)

    def _judged(self, judged: Judged) -> None:
        if self.validation is not None:
            super()._judged(judged)
        else:
            self._verdicts.append(judged)

    def _stepped(self, who: Handle, message: m.Stepped) -> None:
        self._news, self.trainer_since = (who, message), None

    def _refused(self, who: Handle, message: m.Refused) -> None:
        self._news, self.trainer_since = (who, message), None

    def _publishes(self, version: int) -> bool:
        """Not by the trainer itself: at the fixed point."""
        return False

    def _publish(self) -> None:
        super()._publish()
        self.dispatcher.all_at(self.version)
