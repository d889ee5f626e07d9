"""A generator: a process around an engine. Takes requests, weights and decode steps in turn."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from multiprocessing.connection import Connection

import torch

from scalerl.algorithm.logits import use_head_precision
from scalerl.engine.interface import Written
from scalerl.engine.local import LocalEngine
from scalerl.pipeline import messages as m
from scalerl.pipeline.weights import SharedWeights
from scalerl.pipeline.workers import guarded, load_model

#: A generator with nothing to do looks for messages this often.
IDLE = 0.01
#: A generator reports at least this often, so that the loop sees it is alive.
HEARTBEAT = 0.5


def run_generator(conn: Connection, spec: m.GeneratorSpec, shared: SharedWeights) -> None:
    """Entry point of a generator process."""
    guarded(conn, lambda: _Generator(conn, spec, shared).serve())


class _Generator:
    def __init__(self, conn: Connection, spec: m.GeneratorSpec, shared: SharedWeights) -> None:
        torch.set_num_threads(spec.threads)
        self.conn = conn
        self.shared = shared
        model = load_model(spec.model, spec.dtype, spec.device)
        use_head_precision(model, spec.head)
        self.training = LocalEngine(model, slots=spec.slots, columns=spec.columns)
        self.validation = LocalEngine(model, slots=spec.slots, columns=spec.columns)
        self.seconds: dict[str, float] = defaultdict(float)
        self.parent = os.getppid()
        self.told = time.monotonic()
        self.tokens = 0
        #: Rollouts to finish before holding; None: never hold.
        self.share: int | None = 0 if spec.in_step else None

    def serve(self) -> None:
        self._load()
        self.seconds.clear()  # waiting for the first weights is part of the start
        self.conn.send(m.Ready(self.training.version))
        while True:
            busy = self._busy()
            while self.conn.poll(0 if busy else IDLE):
                message = self.conn.recv()
                if isinstance(message, m.Stop):
                    return
                self._take(message)
                busy = True
            if os.getppid() != self.parent:
                return  # orphaned by a kill
            self._work()

    def _busy(self) -> bool:
        engine = self._engine()
        held = self.share == 0 and engine is self.training
        return bool(engine.running or engine.waiting) and not held

    def _engine(self) -> LocalEngine:
        """Validation goes first; training rollouts stand still meanwhile."""
        validating = self.validation.running or self.validation.waiting
        return self.validation if validating else self.training

    def _take(self, message: m.Submit | m.Advance) -> None:
        if isinstance(message, m.Advance):
            self._load_version(message.version)
            self.share = message.rollouts
        elif message.validation:
            self._load_version(message.version)
            self.validation.version = self.training.version
            self.validation.submit(message.requests)
        else:
            self.training.submit(message.requests)

    def _load_version(self, version: int) -> None:
        while self.shared.version < version and os.getppid() == self.parent:
            time.sleep(IDLE)
        self._load()

    def _load(self) -> None:
        """The newest weights, if they are new."""
        start = time.perf_counter()
        while self.shared.version != self.training.version or self.training.version < 0:
            ticket = self.shared.ticket()
            weights, version = self.shared.read()
            if version < 0:
                time.sleep(IDLE)
                continue
            self.training.load_weights(weights, version)
            if self.shared.intact(ticket):
                break
        self.seconds["hand_over"] += time.perf_counter() - start

    def _work(self) -> None:
        engine = self._engine()
        validating = engine is self.validation
        if not validating and self.share is None and self.shared.version != self.training.version:
            self._load()
            self.told = 0.0  # new groups may be waiting for these weights: say it at once
        start = time.perf_counter()
        before = engine.written_tokens
        finished = engine.step() if self._busy() else []
        written = engine.written_tokens - before
        if written:
            kind = "validate" if validating else "generate"
            self.seconds[kind] += time.perf_counter() - start
            self.tokens += 0 if validating else written
        held = not validating and self._held(len(finished))
        if finished or held or time.monotonic() - self.told > HEARTBEAT:
            self._tell(finished, validating, held)

    def _held(self, finished: int) -> bool:
        """Whether the share has just been done (or nothing is left to do)."""
        if not self.share:
            return False
        self.share = max(self.share - finished, 0)
        if not (self.training.running or self.training.waiting):
            self.share = 0
        return self.share == 0

    def _tell(self, finished: list[Written], validating: bool, held: bool) -> None:
        running = len(self.training.running) + len(self.training.waiting)
        self.conn.send(
            m.Finished(
                tuple(finished),
                validating,
                self.training.version,
                dict(self.seconds),
                self.tokens,
                running,
                held,
            )
        )
        self.seconds.clear()
        self.tokens = 0
        self.told = time.monotonic()
