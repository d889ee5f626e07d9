"""A generator: an engine, a weights receiver, and what it is told. The same wherever it lives:
a placement gives it messages, lets it work, and carries away what it says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scalerl.engine.interface import Engine, EngineStep, Lane, RolloutResult
from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.ledger import Work
from scalerl.weights.interface import Receiver

#: A generator reports at least this often, so that the loop sees it is alive.
HEARTBEAT = 0.5


class GeneratorWorker:
    """Takes requests, weights and decode steps in turn. `now` is the clock of where it lives."""

    def __init__(
        self, engine: Engine, receiver: Receiver, now: Callable[[], float], *, deterministic: bool
    ) -> None:
        self.engine = engine
        self.now = now
        self.deterministic = deterministic
        #: Of each request, how many of its rollouts are not finished.
        self.unfinished: dict[str, int] = {}
        self.reset(receiver)

    def reset(self, receiver: Receiver) -> None:
        """Begin anew with weights from here: nothing was ever asked."""
        self.engine.abort(list(self.unfinished))
        self.unfinished.clear()
        self.receiver = receiver
        #: Rollouts to finish before holding; None: never hold.
        self.share: int | None = 0 if self.deterministic else None
        #: The version that must be there before anything else is done.
        self.needs = 0
        self._held: list[m.SubmitRequests | m.AdvanceAndHold] = []
        #: CheckSummary to go: then what it drops, and then nothing more.
        self._leave: m.LeaveRun | None = None
        self._gone = False
        self._seconds: dict[Work, float] = defaultdict(float)
        self._tokens = self._taken = self._number = 0
        #: What is finished and was not said yet, all of one lane.
        self._written: list[RolloutResult] = []
        self._lane: Lane = "train"
        self._told = self.now()

    def start(self) -> m.WorkerReady | None:
        """Load the first weights; None while there are none."""
        version = self.receiver.into(self.engine)
        return None if version < 0 else m.WorkerReady(version)

    @property
    def version(self) -> int:
        return self.engine.health().version

    @property
    def busy(self) -> bool:
        """Whether `work` would do anything but report."""
        if self._leave is not None:
            return not self._gone
        if self._held:
            return self.receiver.newest() >= self.needs
        health = self.engine.health()
        return health.busy and not (self.share == 0 and health.lane == "train")

    def take(self, message: Any) -> None:
        """Anything the loop says. What must wait for weights waits in order."""
        if not isinstance(message, m.SubmitRequests | m.AdvanceAndHold | m.LeaveRun):
            raise PipelineError(f"a generator does not understand {type(message).__name__!r}")
        if message.number not in (0, self._taken + 1):
            return  # one before it was lost: the loop sees that no more is taken in
        self._taken += 1
        if isinstance(message, m.LeaveRun):  # waits for nothing
            self._leave = message
            return
        self._held.append(message)
        self._accept()

    def _accept(self) -> None:
        while self._held:
            message = self._held[0]
            if isinstance(message, m.AdvanceAndHold) or message.lane == "validate":
                self.needs = message.version
                if self.receiver.newest() < message.version:
                    return  # published, but not here yet
                self._load(self.now())
            self._held.pop(0)
            if isinstance(message, m.AdvanceAndHold):
                self.share = message.rollouts
            else:
                self.engine.submit(message.requests, message.lane)
                for request in message.requests:
                    left = self.unfinished.get(request.id, 0)
                    self.unfinished[request.id] = left + len(request.seeds)

    def _load(self, began: float) -> bool:
        """The newest weights, if they are new."""
        if self.receiver.newest() == self.version:
            return False
        self.receiver.into(self.engine)
        self._seconds["hand_over"] += self.now() - began
        return True

    def work(self, began: float) -> list[m.GeneratorReport]:
        """One decode step, if there is anything to write, and a report, if there is anything to
        say. `began` is when this turn began, for the ledger."""
        if self._leave is not None:
            return self._last_word(self._leave)
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
        said = []
        if self._written and step.written and step.lane != self._lane:
            said.append(self._report(held=False))
        whole = self._finished(step)
        held = step.lane == "train" and self._holds(len(step.written))
        if whole or held or new or self.now() - self._told > HEARTBEAT:
            said.append(self._report(held))
        return said

    def _finished(self, step: EngineStep) -> bool:
        """Keep what is written until its group is whole, which is when anybody can use it: a
        message a group instead of one a decode step. Whether one is."""
        whole = False
        for written in step.written:
            self.unfinished[written.request] -= 1
            if not self.unfinished[written.request]:
                del self.unfinished[written.request]
                whole = True
        if step.written:
            self._lane = step.lane
            self._written += step.written
        return whole

    def _holds(self, finished: int) -> bool:
        """Whether the share has just been done (or nothing is left to do)."""
        if not self.share or self._held:
            return False
        self.share = max(self.share - finished, 0)
        if not self.engine.health().busy:
            self.share = 0
        return self.share == 0

    def _last_word(self, leave: m.LeaveRun) -> list[m.GeneratorReport]:
        if self._gone:
            return []
        self._gone = True
        begun = [w.rollout for w in self.engine.abort(leave.requests) if len(w.rollout)]
        report = self._report(held=False)
        return [replace(report, left=True, dropped=(len(begun), sum(map(len, begun))))]

    def _report(self, held: bool) -> m.GeneratorReport:
        self._number += 1
        report = m.GeneratorReport(
            number=self._number,
            taken=self._taken,
            version=self.version,
            written=tuple(self._written),
            lane=self._lane,
            seconds=dict(self._seconds),
            tokens=self._tokens,
            held=held,
        )
        self._written.clear()
        self._seconds.clear()
        self._tokens = 0
        self._told = self.now()
        return report
