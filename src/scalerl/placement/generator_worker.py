"""A generator: an engine, a weights receiver, and the messages of the loop.

It is the same in every placement, which delivers messages (`take`), calls `work` in turn, and
carries away the reports.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scalerl.engine.adapter_proof import ProvenAdapter, proven
from scalerl.engine.interface import Engine, EngineSpec, EngineStep, Lane, TurnResult
from scalerl.errors import PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.ledger import Work
from scalerl.weights.interface import Receiver, WeightTarget

#: Seconds after which a generator sends a report even without news, as a heartbeat.
HEARTBEAT_SECONDS = 0.5


class GeneratorWorker:
    """Handles requests, weights and decode steps in turn. `now` is the clock of its placement;
    `spec` that of the engine, for one that has to prove its adapter."""

    def __init__(
        self,
        engine: Engine,
        receiver: Receiver,
        now: Callable[[], float],
        *,
        deterministic: bool,
        spec: EngineSpec | None = None,
    ) -> None:
        self.engine = engine
        #: What weights are loaded into: the engine, or its proof.
        self.target: WeightTarget = engine if spec is None else proven(engine, spec)
        self.now = now
        self.deterministic = deterministic
        #: Number of unfinished turns of each request.
        self.unfinished: dict[str, int] = {}
        #: Requests with turns that are reported one by one.
        self._one_by_one: set[str] = set()
        self.reset(receiver)

    def reset(self, receiver: Receiver) -> None:
        """Drop all requests and start again, with weights from this receiver."""
        self.engine.abort(list(self.unfinished))
        self.unfinished.clear()
        self._one_by_one.clear()
        self.receiver = receiver
        if isinstance(self.target, ProvenAdapter):
            self.target.doubt()
        #: Rollouts to finish before it holds; None: it never holds.
        self.share: int | None = 0 if self.deterministic else None
        #: Version that must have arrived before the next message in `_held` is handled.
        self.needs = 0
        self._held: list[m.SubmitRequests | m.AdvanceAndHold] = []
        #: The message that asked it to leave.
        self._leave: m.LeaveRun | None = None
        #: Whether it has sent its last report.
        self._left = False
        self._seconds: dict[Work, float] = defaultdict(float)
        self._tokens = self._read_tokens = self._taken = self._number = 0
        self._decoded = m.no_decode_steps()
        #: Rows of the last decode step that it did not finish.
        self._left_rows = 0
        self._cpu = time.process_time()
        #: Finished rollouts that were not reported yet, all of one lane.
        self._written: list[TurnResult] = []
        self._lane: Lane = "train"
        self._reported_at = self.now()

    def start(self) -> m.WorkerReady | None:
        """Load the first weights; None while none have been published."""
        version = self.receiver.into(self.target)
        return None if version < 0 else m.WorkerReady(version, proofs=self._proofs())

    def _proofs(self) -> tuple[str, ...]:
        """The proofs that were not reported yet."""
        if not isinstance(self.target, ProvenAdapter):
            return ()
        found = tuple(self.target.proofs)
        self.target.proofs.clear()
        return found

    @property
    def version(self) -> int:
        return self.engine.health().version

    @property
    def busy(self) -> bool:
        """Whether `work` would do more than send a heartbeat."""
        if self._leave is not None:
            return not self._left
        if self._held:
            return self.receiver.newest() >= self.needs
        health = self.engine.health()
        return health.busy and not (self.share == 0 and health.lane == "train")

    def take(self, message: Any) -> None:
        """Accept a message of the loop. Those that must wait for weights are handled in order."""
        if not isinstance(message, m.SubmitRequests | m.AdvanceAndHold | m.LeaveRun):
            raise PipelineError(f"a generator does not understand {type(message).__name__!r}")
        if message.number not in (0, self._taken + 1):
            return  # a message was lost: `taken` in the reports stops growing, which the loop sees
        self._taken += 1
        if isinstance(message, m.LeaveRun):  # needs no weights, so it is not queued
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
                    return  # published, but not received yet
                self._load(self.now())
            self._held.pop(0)
            if isinstance(message, m.AdvanceAndHold):
                self.share = message.rollouts
            else:
                self.engine.submit(message.requests, message.lane)
                for request in message.requests:
                    left = self.unfinished.get(request.id, 0)
                    self.unfinished[request.id] = left + len(request.seeds)
                    if request.one_by_one:
                        self._one_by_one.add(request.id)

    def _load(self, began: float) -> bool:
        """Load the newest weights; whether they are new."""
        if self.receiver.newest() == self.version:
            return False
        self.receiver.into(self.target)
        self._seconds["hand_over"] += self.now() - began
        return True

    def work(self, began: float) -> list[m.GeneratorReport]:
        """One turn: a decode step, if there is anything to write, and the reports that are due.
        `began` is the time at which the turn began, for the ledger."""
        if self._leave is not None:
            return self._last_report(self._leave)
        self._accept()
        new = False
        if self.share is None and self.engine.health().lane == "train":
            new = self._load(began)  # reported at once: the schedule may allow new groups
            began = self.now() if new else began
        step = EngineStep("train")
        if self.busy and not self._held:
            step = self.engine.step()
            if step.tokens:
                kind: Work = "validate" if step.lane == "validate" else "generate"
                seconds = self.now() - began
                self._seconds[kind] += seconds
                if step.lane == "train":
                    self._tokens += step.tokens
                    self._read_tokens += step.read_tokens
                    self._add_decode_step(step, seconds)
        reports = []
        if self._written and step.written and step.lane != self._lane:
            reports.append(self._report(held=False))
        complete = self._finished(step)
        held = step.lane == "train" and self._holds(len(step.written))
        if complete or held or new or self.now() - self._reported_at > HEARTBEAT_SECONDS:
            reports.append(self._report(held))
        return reports

    def _add_decode_step(self, step: EngineStep, seconds: float) -> None:
        """Add a decode step to the sums from which its time as a function of rows is found."""
        # A row writes one token a step: rows beyond those of the step before are new.
        admitted = max(step.tokens - self._left_rows, 0)
        self._left_rows = step.tokens - len(step.written)
        terms = m.decode_terms(step.tokens, seconds, admitted)
        self._decoded = [a + b for a, b in zip(self._decoded, terms, strict=True)]

    def _finished(self, step: EngineStep) -> bool:
        """Keep finished turns until their request is complete; whether some are to be reported."""
        # Only complete groups are of use to the loop, unless an environment waits for each turn:
        # one message per group, not per decode step.
        complete = False
        for written in step.written:
            self.unfinished[written.request] -= 1
            complete |= written.request in self._one_by_one
            if not self.unfinished[written.request]:
                del self.unfinished[written.request]
                self._one_by_one.discard(written.request)
                complete = True
        if step.written:
            self._lane = step.lane
            self._written += step.written
        return complete

    def _holds(self, finished: int) -> bool:
        """Whether it holds now: its share is finished, or nothing is left to write."""
        if not self.share or self._held:
            return False
        self.share = max(self.share - finished, 0)
        if not self.engine.health().busy:
            self.share = 0
        return self.share == 0

    def _last_report(self, leave: m.LeaveRun) -> list[m.GeneratorReport]:
        if self._left:
            return []
        self._left = True
        begun = [w.turn for w in self.engine.abort(leave.requests) if len(w.turn)]
        report = self._report(held=False)
        return [replace(report, left=True, dropped=(len(begun), sum(map(len, begun))))]

    def _report(self, held: bool) -> m.GeneratorReport:
        self._number += 1
        cpu = time.process_time()
        report = m.GeneratorReport(
            number=self._number,
            taken=self._taken,
            version=self.version,
            written=tuple(self._written),
            lane=self._lane,
            seconds=dict(self._seconds),
            tokens=self._tokens,
            read_tokens=self._read_tokens,
            decoded=tuple(self._decoded),
            cpu_seconds=cpu - self._cpu,
            held=held,
            proofs=self._proofs(),
        )
        self._cpu = cpu
        self._written.clear()
        self._seconds.clear()
        self._tokens = self._read_tokens = 0
        self._decoded = m.no_decode_steps()
        self._reported_at = self.now()
        return report
