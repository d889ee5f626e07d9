"""A generator: an engine, a weights receiver, and what it is told. The same wherever it lives:
a placement gives it messages, lets it work, and carries away what it says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from scalerl.engine.interface import Engine, EngineStep
from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.ledger import Work
from scalerl.weights.interface import Receiver

#: A generator reports at least this often, so that the loop sees it is alive.
HEARTBEAT = 0.5


class GeneratorPart:
    """Takes requests, weights and decode steps in turn. `now` is the clock of where it lives."""

    def __init__(
        self, engine: Engine, receiver: Receiver, now: Callable[[], float], *, deterministic: bool
    ) -> None:
        self.engine = engine
        self.receiver = receiver
        self.now = now
        #: Rollouts to finish before holding; None: never hold.
        self.share: int | None = 0 if deterministic else None
        #: The version that must be there before anything else is done.
        self.needs = 0
        self._held: list[m.Submit | m.Advance] = []
        self._seconds: dict[Work, float] = defaultdict(float)
        self._tokens = self._taken = self._number = 0
        self._told = now()

    def start(self) -> m.Ready | None:
        """Load the first weights; None while there are none."""
        version = self.receiver.into(self.engine)
        return None if version < 0 else m.Ready(version)

    @property
    def version(self) -> int:
        return self.engine.health().version

    @property
    def busy(self) -> bool:
        """Whether `work` would do anything but report."""
        if self._held:
            return self.receiver.newest() >= self.needs
        health = self.engine.health()
        return health.busy and not (self.share == 0 and health.lane == "train")

    def take(self, message: Any) -> None:
        """Anything the loop says. What must wait for weights waits in order."""
        if not isinstance(message, m.Submit | m.Advance):
            raise PipelineError(f"a generator does not understand {type(message).__name__!r}")
        if message.number not in (0, self._taken + 1):
            return  # one before it was lost: the loop sees that no more is taken in
        self._taken += 1
        self._held.append(message)
        self._accept()

    def _accept(self) -> None:
        while self._held:
            message = self._held[0]
            if isinstance(message, m.Advance) or message.lane == "validate":
                self.needs = message.version
                if self.receiver.newest() < message.version:
                    return  # published, but not here yet
                self._load(self.now())
            self._held.pop(0)
            if isinstance(message, m.Advance):
                self.share = message.rollouts
            else:
                self.engine.submit(message.requests, message.lane)

    def _load(self, began: float) -> bool:
        """The newest weights, if they are new."""
        if self.receiver.newest() == self.version:
            return False
        self.receiver.into(self.engine)
        self._seconds["hand_over"] += self.now() - began
        return True

    def work(self, began: float) -> list[m.Report]:
        """One decode step, if there is anything to write, and a report, if there is anything to
        say. `began` is when this turn began, for the ledger."""
        self._accept()
        new = False
        if self.share is None and self.engine.health().lane == "train":
            new = self._load(began)  # new groups may be waiting for these: said at once
            began = self.now() if new else began
        step = EngineStep("train")
        if self.busy and not self._held:
            step = self.engine.step()
            if step.tokens:
                kind: Work = "validate" if step.lane == "validate" else "generate"
                self._seconds[kind] += self.now() - began
                self._tokens += step.tokens if step.lane == "train" else 0
        held = step.lane == "train" and self._holds(len(step.written))
        if step.written or held or new or self.now() - self._told > HEARTBEAT:
            return [self._report(step, held)]
        return []

    def _holds(self, finished: int) -> bool:
        """Whether the share has just been done (or nothing is left to do)."""
        if not self.share or self._held:
            return False
        self.share = max(self.share - finished, 0)
        if not self.engine.health().busy:
            self.share = 0
        return self.share == 0

    def _report(self, step: EngineStep, held: bool) -> m.Report:
        self._number += 1
        report = m.Report(
            number=self._number,
            taken=self._taken,
            version=self.version,
            written=step.written,
            lane=step.lane,
            seconds=dict(self._seconds),
            tokens=self._tokens,
            held=held,
        )
        self._seconds.clear()
        self._tokens = 0
        self._told = self.now()
        return report
