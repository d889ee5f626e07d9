"""An engine without a model: rollouts of random length and no content, for the planner and for
tests of the loop. Lengths follow from the seeds alone. Of turns that it would keep in a cache, it
keeps the number of tokens, so that it counts the tokens read as a real engine does."""

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

    def __init__(self, slots: int, validation_slots: int, *, park_turns: bool = True) -> None:
        self.version = 0
        self.park_turns = park_turns
        #: Number of cached tokens of parked turns by request and row, the first parked first.
        self.parked: dict[tuple[str, int], int] = {}
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
        return SimulatedEngine(spec.slots, spec.validation_slots, park_turns=spec.park_turns)

    def submit(self, requests: Iterable[Request], lane: Lane = "train") -> None:
        for request in requests:
            for row, seed in request.seeds.items():
                length = 1 + seed % request.control.max_tokens
                self.waiting[lane].append(_Row(request, row, length))

    def step(self) -> EngineStep:
        lane = self.health().lane
        waiting, running = self.waiting[lane], self.running[lane]
        read_tokens = 0
        while waiting and len(running) < self.slots[lane]:
            running.append(waiting.popleft())
            read_tokens += self._read(running[-1])
        for row in running:
            row.versions.append(self.version)
        done = [row for row in running if len(row.versions) >= row.length]
        self.running[lane] = [row for row in running if len(row.versions) < row.length]
        self._park(done)
        written = tuple(row.written("stop") for row in done)
        return EngineStep(lane, written, len(running), read_tokens)

    def _read(self, row: _Row) -> int:
        """Tokens that are read before a later turn of an episode."""
        if row.request.continues is None:
            return 0
        cached = self.parked.pop((row.request.continues, row.row), 0)
        n = len(row.request.prompt_token_ids)
        return n - cached if cached < n else n  # a rewritten conversation may be shorter

    def _park(self, done: Sequence[_Row]) -> None:
        if self.park_turns:
            for row in done:
                if row.request.one_by_one:
                    # The last token was sampled and not read.
                    cached = len(row.request.prompt_token_ids) + row.length - 1
                    self.parked[row.request.id, row.row] = cached
        free = sum(self.slots.values()) - sum(map(len, self.running.values()))
        while len(self.parked) > free:
            del self.parked[next(iter(self.parked))]

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        if version < self.version:
            self.parked.clear()
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
