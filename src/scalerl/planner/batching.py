"""Continuous batching by segments: a generator's decode steps in closed form between two events.

Between events the rows that are written stay the same, so the n-th decode step of a segment takes
`base + context × (cached + rows × n)` seconds, and the time of many steps is a quadratic in their
number. What is an event: the end of a row, a cache that is full, a reply of an environment, new
requests, new weights. So an answer of 10,000 tokens costs as much to simulate as one of 10.

Steps are counted in fractions: a segment may end within a step.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from scalerl.pipeline.messages import decode_terms, no_decode_steps
from scalerl.planner.rates import GeneratorRates

#: Share of the cache that must be free before a row is admitted: without it each admission would
#: push out another row at once. vLLM's watermark is 0.01.
WATERMARK = 0.02
#: Rounding error of a count of steps.
TINY = 1e-6
VersionRuns = tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class SimulatedRow:
    """One answer under way."""

    request: str
    row: int
    #: Tokens to write in each turn, the next turn last.
    turns: list[int]
    #: Tokens of its prompt that are not in the cache of another row of its group.
    prompt: int
    #: Whether the answer will be right.
    right: bool
    #: Tokens that an environment replies with after each turn.
    reply: int = 0
    #: Seconds that its replies take, one for each turn but the last.
    waits: list[float] = field(default_factory=list)
    #: Tokens that it has in the cache while it runs, beyond those of the shared prompt.
    cached: int = 0
    #: Steps of the lane at which each stretch of its tokens was begun, and their number.
    pieces: list[tuple[float, int]] = field(default_factory=list)
    #: Tokens of the turn that is being written that were written before it was pushed out.
    begun: int = 0
    #: Step of the lane at which it was admitted last.
    since: float = 0.0
    #: Tokens of `cached` that are still in the cache while it waits, and need not be read again.
    kept: int = 0

    @property
    def length(self) -> int:
        return sum(n for _, n in self.pieces)


class SimulatedLane:
    """Rows of one lane, and the steps it has made."""

    def __init__(self) -> None:
        self.steps = 0.0
        self.waiting: deque[SimulatedRow] = deque()
        #: (step at which it ends, order, row) of the rows that are written.
        self.running: list[tuple[float, int, SimulatedRow]] = []
        #: Tokens in the cache of rows that are written.
        self.cached = 0.0
        #: Tokens in the cache of rows that wait for an environment.
        self.parked = 0
        #: (time of the reply, order, row) of rows that wait for an environment.
        self.outside: list[tuple[float, int, SimulatedRow]] = []
        #: (step from which on, version) of the weights.
        self.versions: list[tuple[float, int]] = [(0.0, 0)]

    def runs(self, row: SimulatedRow) -> VersionRuns:
        """The versions of a row's tokens as run-lengths."""
        found: list[tuple[int, int]] = []
        for begin, tokens in row.pieces:
            at = bisect_right(self.versions, (begin + TINY, math.inf)) - 1
            left, start = tokens, begin
            while left:
                last = at + 1 == len(self.versions)
                until = math.inf if last else self.versions[at + 1][0]
                n = left if last else min(left, max(math.ceil(until - start - TINY), 0))
                if n:
                    found.append((self.versions[at][1], n))
                left, start, at = left - n, start + n, at + 1
        return tuple(found)


class SimulatedBatching:
    """The decode steps of one generator, up to the time `at`."""

    def __init__(
        self, rates: GeneratorRates, pass_on: Callable[[float], float] = lambda at: at
    ) -> None:
        self.rates = rates
        #: Time at which the loop has passed on a turn that ended at a time.
        self._pass_on = pass_on
        self.at = 0.0
        self.version = 0
        self.lanes = {"train": SimulatedLane(), "validate": SimulatedLane()}
        self.done: list[tuple[SimulatedRow, VersionRuns]] = []
        #: Rows that were pushed out of a full cache.
        self.preempted = 0
        #: Seconds and tokens since they were last taken, by lane.
        self.seconds = {"train": 0.0, "validate": 0.0}
        #: Seconds of all its work so far.
        self.busy = 0.0
        self.tokens = 0.0
        self.read_tokens = 0
        #: Decode steps so far, and rows × steps.
        self.steps = 0.0
        self.row_steps = 0.0
        #: Sums over decode steps of training rows since they were last taken, as a generator
        #: reports them (`DecodeWork`).
        self.decoded = no_decode_steps()
        self._order = 0

    @property
    def lane(self) -> str:
        """The lane that is written: validation first, then training."""
        other = self.lanes["validate"]
        return "validate" if other.waiting or other.running or other.outside else "train"

    # -- events from outside ----------------------------------------------------------------------

    def submit(self, rows: Iterable[SimulatedRow], lane: str, now: float) -> None:
        """Queue rows, at a time up to which the generator has been advanced."""
        self.at = max(self.at, now)
        self.lanes[lane].waiting.extend(rows)
        self._admit()

    def load(self, version: int, now: float) -> None:
        """Load new weights: they write from here on, and loading takes time."""
        self.at = max(self.at, now) + self.rates.load
        self.version = version
        for lane in self.lanes.values():
            if lane.versions[-1][0] == lane.steps:  # nothing was written with the one before
                lane.versions[-1] = (lane.steps, version)
            else:
                lane.versions.append((lane.steps, version))

    # -- time -------------------------------------------------------------------------------------

    def next_event(self) -> float:
        """Time at which something happens by itself; inf if nothing will."""
        lane = self.lanes[self.lane]
        reply = lane.outside[0][0] if lane.outside else math.inf
        if not lane.running:
            return max(reply, self.at) if reply < math.inf else math.inf
        # A reply that has come is admitted with the next event.
        after = reply if reply > self.at else math.inf
        return min(self.at + self._duration(lane, self._steps_left(lane)), after)

    def advance(self, now: float) -> None:
        """Make all decode steps up to a time, and take what happens meanwhile."""
        while True:
            lane = self.lanes[self.lane]
            if not lane.running:
                if self.at < now:
                    self.at = now
                self._replies(lane)
                if lane.waiting:
                    self._admit()
                    if lane.running and self.at < now:
                        continue
                return
            left = self._steps_left(lane)
            seconds = self._duration(lane, left)
            reply = lane.outside[0][0] if lane.outside else math.inf
            ends = self.at + seconds
            until = min(now, max(reply, self.at)) if reply > self.at else now
            if ends > until + 1e-9 * max(1.0, until):
                if until > self.at:
                    self._step(lane, self._steps_in(lane, until - self.at), until - self.at)
                    self.at = until
                if until >= now:
                    return
            else:
                self._step(lane, left, seconds)
                self.at = ends
                self._ended(lane)
            self._replies(lane)
            self._admit()

    def _steps_left(self, lane: SimulatedLane) -> float:
        """Steps until a row ends or the cache is full."""
        rows = len(lane.running)
        left = lane.running[0][0] - lane.steps
        if math.isfinite(self.rates.cache_tokens) and rows > 1:
            left = min(left, max((self._free(lane)) / rows, 0.0))
        return max(left, 0.0)

    def _free(self, lane: SimulatedLane) -> float:
        return self.rates.cache_tokens - lane.cached - lane.parked

    def _duration(self, lane: SimulatedLane, steps: float) -> float:
        rows, context = len(lane.running), self.rates.context
        first = self.rates.decode(rows) + context * lane.cached
        return steps * first + context * rows * steps * steps / 2

    def _steps_in(self, lane: SimulatedLane, seconds: float) -> float:
        rows, context = len(lane.running), self.rates.context
        first = self.rates.decode(rows) + context * lane.cached
        growth = context * rows
        if growth * seconds < 1e-9 * first * first:
            return seconds / first
        return (math.sqrt(first * first + 2 * growth * seconds) - first) / growth

    def _step(self, lane: SimulatedLane, steps: float, seconds: float) -> None:
        rows = len(lane.running)
        lane.steps += steps
        lane.cached += rows * steps
        name = "train" if lane is self.lanes["train"] else "validate"
        self.seconds[name] += seconds
        self.busy += seconds
        self.steps += steps
        self.row_steps += rows * steps
        if name == "train":
            self.tokens += rows * steps
            terms = decode_terms(rows, seconds / steps) if steps else no_decode_steps()
            self.decoded = [a + steps * b for a, b in zip(self.decoded, terms, strict=True)]

    # -- rows -------------------------------------------------------------------------------------

    def _admit(self) -> None:
        name = self.lane
        lane, rates = self.lanes[name], self.rates
        admitted = tokens = 0
        spare = WATERMARK * rates.cache_tokens if math.isfinite(rates.cache_tokens) else 0.0
        while lane.waiting and len(lane.running) < rates.slots:
            row = lane.waiting[0]
            need = row.prompt + row.cached
            if lane.running and need + spare > self._free(lane):
                break
            lane.waiting.popleft()
            read = need - row.kept
            admitted, tokens = admitted + 1, tokens + read
            if row.pieces:
                self.read_tokens += read
            row.cached, row.prompt, row.kept = need, 0, 0
            row.since = lane.steps
            lane.cached += need
            self._order += 1
            ends = lane.steps + row.turns[-1] - row.begun
            heapq.heappush(lane.running, (ends, self._order, row))
        if admitted:
            seconds = rates.admit_row * admitted + rates.admit_token * tokens
            self.at += seconds
            self.seconds[name] += seconds
            self.busy += seconds

    def _stretch(self, lane: SimulatedLane, row: SimulatedRow, tokens: int) -> None:
        """Record tokens that a row has written since it was admitted."""
        if tokens:
            row.pieces.append((row.since, tokens))
        lane.cached -= row.cached + (lane.steps - row.since)
        row.cached += tokens

    def _ended(self, lane: SimulatedLane) -> None:
        ended = False
        while lane.running and lane.running[0][0] <= lane.steps + TINY:
            ended = True
            _, _, row = heapq.heappop(lane.running)
            self._stretch(lane, row, row.turns[-1] - row.begun)
            row.turns.pop()
            row.begun = 0
            if row.turns:
                self._order += 1
                lane.parked += row.cached
                reply = self._pass_on(self.at) + row.waits.pop()
                heapq.heappush(lane.outside, (reply, self._order, row))
            else:
                self.done.append((row, lane.runs(row)))
        if not lane.running:
            lane.cached = 0.0  # without rounding errors
        if not ended:
            # Several at once, as many as make room for a while: one at a time would be an event
            # every other decode step.
            spare = 2 * WATERMARK * self.rates.cache_tokens
            while len(lane.running) > 1 and self._free(lane) < spare:
                self._push_out(lane)

    def _push_out(self, lane: SimulatedLane) -> None:
        """Free the cache of the row that was admitted last; it is read again later."""
        newest = max(range(len(lane.running)), key=lambda i: lane.running[i][1])
        _, _, row = lane.running.pop(newest)
        heapq.heapify(lane.running)
        written = min(max(round(lane.steps - row.since), 0), row.turns[-1] - row.begun - 1)
        self._stretch(lane, row, written)
        row.begun += written
        self.preempted += 1
        lane.waiting.appendleft(row)

    def _replies(self, lane: SimulatedLane) -> None:
        """Queue rows with a reply of their environment: only what is new is read."""
        while lane.outside and lane.outside[0][0] <= self.at + 1e-9:
            _, _, row = heapq.heappop(lane.outside)
            lane.parked -= row.cached
            lane.waiting.append(row)
            row.prompt, row.kept = row.reply, row.cached
