"""An engine without a model: rollouts of random length and no content, for the planner and for
tests of the loop. Lengths follow from the seeds alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from scalerl.algorithm.episode import FinishReason, Turn
from scalerl.engine.interface import EngineSpec, EngineStep, Health, Lane, Request, TurnResult
from scalerl.errors import InputError


@dataclass(slots=True, eq=False)
class _Row:
    request: Request
    row: int
    length: int
    versions: list[int] = field(default_factory=list)

    def written(self, finish: FinishReason) -> TurnResult:
        n = len(self.versions)
        turn = Turn(
            np.full(n, self.request.seeds[self.row] % 10, dtype=np.int64),
            np.zeros(n, dtype=np.float32),
            np.asarray(self.versions, dtype=np.int64),
            np.zeros(n, dtype=bool),
            finish,
        )
        return TurnResult(self.request.id, self.row, turn)


class SimulatedEngine:
    """An Engine that generates one token per running rollout and step, with lengths uniform up to
    the longest allowed."""

    def __init__(self, slots: int, validation_slots: int) -> None:
        self.version = 0
        self.slots: dict[Lane, int] = {"train": slots, "validate": validation_slots}
        self.waiting: dict[Lane, deque[_Row]] = {"train": deque(), "validate": deque()}
        self.running: dict[Lane, list[_Row]] = {"train": [], "validate": []}

    @staticmethod
    def from_spec(spec: EngineSpec) -> SimulatedEngine:
        """The engine "simulated" of a recipe."""
        if spec.record_routing:
            raise InputError(
                "placement.engine=simulated has no experts to replay: set "
                "precision.routing=own, or placement.engine=local"
            )
        return SimulatedEngine(spec.slots, spec.validation_slots)

    def submit(self, requests: Iterable[Request], lane: Lane = "train") -> None:
        for request in requests:
            for row, seed in request.seeds.items():
                length = 1 + seed % request.control.max_tokens
                self.waiting[lane].append(_Row(request, row, length))

    def step(self) -> EngineStep:
        lane = self.health().lane
        waiting, running = self.waiting[lane], self.running[lane]
        while waiting and len(running) < self.slots[lane]:
            running.append(waiting.popleft())
        for row in running:
            row.versions.append(self.version)
        done = [row for row in running if len(row.versions) >= row.length]
        self.running[lane] = [row for row in running if len(row.versions) < row.length]
        return EngineStep(lane, tuple(row.written("stop") for row in done), len(running))

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.version = version

    def abort(self, ids: Sequence[str]) -> list[TurnResult]:
        gone = set(ids)
        out: list[TurnResult] = []
        for lane in self.running:
            out += [r.written("aborted") for r in self.running[lane] if r.request.id in gone]
            self.running[lane] = [r for r in self.running[lane] if r.request.id not in gone]
            self.waiting[lane] = deque(r for r in self.waiting[lane] if r.request.id not in gone)
        return out

    def health(self) -> Health:
        lane: Lane = "validate" if self.waiting["validate"] or self.running["validate"] else "train"
        return Health(
            self.version,
            sum(map(len, self.waiting.values())),
            sum(map(len, self.running.values())),
            lane,
        )
