"""Assigns requests to generators, and keeps what each of them holds, its version and its speed.

No call costs more with more generators, except by the logarithm of a heap: a run may have
thousands, and each of their reports leads here.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from scalerl.engine.interface import Lane, Request, TurnResult
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Clock, Handle

#: Weight of the newest report in the moving average of a generator's speed.
EWMA_ALPHA = 0.2
#: Kinds of work that show that a generator writes tokens.
WRITING_WORK = {"generate", "validate"}
#: Outdated entries are removed from the heap when it has this many entries a generator: often
#: enough to stay small, and rarely enough to cost little per report.
HEAP_FACTOR = 8
#: The next turn of an episode goes to the generator that wrote the turn before, which may have kept
#: its key-value cache, unless that one needs more than this many times the seconds of the least
#: busy one for what it holds: by then waiting costs more than reading the episode again.
AFFINITY_FACTOR = 2.0
#: Turns that a generator may hold in any case without counting as busier: a decode step of few rows
#: takes about as long as that of one.
AFFINITY_TURNS = 8
#: Number of turns for which the generator is remembered, the newest: an episode that is over leaves
#: its last turn behind. All slots of a thousand generators; 10 MB.
REMEMBERED_TURNS = 65_536


@dataclass(slots=True, eq=False)
class GeneratorState:
    """What is known of one generator."""

    handle: Handle
    #: Number in the order of joining, which decides between generators that are equally busy.
    order: int = 0
    version: int = 0
    #: Whether it has not started yet: its requests are sent when it has.
    starting: bool = True
    #: Whether it was asked to leave: it gets no new requests, and its last report is awaited.
    leaving: bool = False
    #: Turns that it still has to write, by request and row.
    held: dict[tuple[str, int], tuple[Request, Lane]] = field(default_factory=dict)
    #: Moving average of tokens per second while it generates; before its first report that of the
    #: others. Only ratios between generators are used.
    speed: float = 1.0
    #: Whether it has reported a speed.
    measured: bool = False
    #: Times that it has died since it last finished a turn.
    deaths: int = 0
    #: Turns that it has finished.
    turns: int = 0
    #: Messages it was sent.
    sent: int = 0
    #: Messages it has accepted.
    taken: int = 0
    #: Time since which `taken` < `sent`; None while they are equal.
    behind_since: float | None = None
    #: Sequence number of its latest report.
    number: int = 0
    #: Time since which it holds turns and reports, but has written no token; else None.
    stuck_since: float | None = None
    #: Version under which `Dispatcher` counts it as writing; None: it does not write.
    counted: int | None = None
    #: Number of its latest entry in the heap of `Dispatcher`: earlier ones are outdated.
    entry: int = 0

    @property
    def seconds_left(self) -> float:
        """Time to finish what it holds and one turn more, in seconds times an unknown factor."""
        # + 1 is the request to be assigned: of two idle generators the faster one gets it.
        return (len(self.held) + 1) / self.speed

    def requests(self, lane: Lane) -> list[Request]:
        """The requests of a lane that it still has to write, each with its missing rows only."""
        rows: dict[str, list[int]] = {}
        of: dict[str, Request] = {}
        for (name, row), (request, its_lane) in self.held.items():
            if its_lane == lane:
                rows.setdefault(name, []).append(row)
                of[name] = request
        return [of[name].only(rows[name]) for name in rows]


class Dispatcher:
    """Assigns requests to generators and follows their reports."""

    def __init__(self, generators: Sequence[Handle], clock: Clock, *, deterministic: bool) -> None:
        self.clock = clock
        #: Whether measured speeds must not influence the assignment.
        self.deterministic = deterministic
        self.states: dict[str, GeneratorState] = {}
        self._joined = self._entries = 0
        #: Whether any generator has reported its speed so far.
        self._speeds_known = False
        #: Generators that were asked to leave.
        self._leaving = 0
        #: Generators that have started and stay.
        self._up = 0
        #: Number of generators that may still write with each version.
        self._writing: Counter[int] = Counter()
        #: (time to finish, order, entry, name) of each generator that may get requests; outdated
        #: entries are skipped when they come up.
        self._heap: list[tuple[float, int, int, str]] = []
        #: Name of the generator that wrote a turn to which an environment replies, by request and
        #: row, the oldest first.
        self._wrote: dict[tuple[str, int], str] = {}
        for handle in generators:
            self._add(handle)

    def _add(self, handle: Handle) -> GeneratorState:
        self._joined += 1
        # One that joins is taken to be as fast as the others: with a speed of its own, 1, it would
        # seem thousands of times slower, and never get a request to be measured by.
        known = [s.speed for s in self if s.measured]
        speed = sum(known) / len(known) if known else 1.0
        state = self.states[handle.name] = GeneratorState(handle, self._joined, speed=speed)
        self._changed(state)
        return state

    def __len__(self) -> int:
        """Number of generators that may get requests: all that were not asked to leave."""
        return len(self.states) - self._leaving

    def __iter__(self) -> Iterator[GeneratorState]:
        return iter(self.states.values())

    @property
    def staying(self) -> list[GeneratorState]:
        """Generators that were not asked to leave."""
        return [state for state in self if not state.leaving]

    @property
    def up(self) -> list[GeneratorState]:
        """Generators that have started; if none has, all that stay."""
        return [state for state in self.staying if not state.starting] or self.staying

    @property
    def oldest(self) -> int:
        """The oldest version that any generator may still write with. One that is starting and
        holds nothing will begin with the newest, and does not count."""
        if self._writing:
            return min(self._writing)
        return min(state.version for state in self)

    def set_versions(self, version: int) -> None:
        for state in self:
            state.version = version
            self._changed(state)

    def _changed(self, state: GeneratorState) -> None:
        """Follow a change of a generator's version, load or state in the counts and the heap."""
        writing = state.version if state.held or not state.starting else None
        if writing != state.counted:
            self._uncount(state)
            if writing is not None:
                self._writing[writing] += 1
            state.counted = writing
        self._entries += 1
        state.entry = self._entries
        if not state.leaving:
            seconds = state.seconds_left
            heapq.heappush(self._heap, (seconds, state.order, state.entry, state.handle.name))
        if len(self._heap) > HEAP_FACTOR * len(self.states) + HEAP_FACTOR:
            self._heap = [e for e in self._heap if self._current(e) is not None]
            heapq.heapify(self._heap)

    def _current(self, entry: tuple[float, int, int, str]) -> GeneratorState | None:
        """The generator that an entry of the heap is about; None if the entry is outdated."""
        state = self.states.get(entry[3])
        valid = state is not None and state.entry == entry[2] and not state.leaving
        return state if valid else None

    def _uncount(self, state: GeneratorState) -> None:
        if state.counted is not None:
            self._writing[state.counted] -= 1
            if not self._writing[state.counted]:
                del self._writing[state.counted]
            state.counted = None

    def _choose(self) -> GeneratorState:
        """The generator that will have finished first, given what each holds. So slow generators
        get fewer requests, and one that is starting gets some only if all are."""
        passed: list[tuple[float, int, int, str]] = []
        try:
            while True:
                state = self._current(self._heap[0])
                if state is None:
                    heapq.heappop(self._heap)
                elif self._up and state.starting:
                    passed.append(heapq.heappop(self._heap))
                else:
                    return state
        finally:
            for entry in passed:
                heapq.heappush(self._heap, entry)

    def _choose_for(self, request: Request) -> GeneratorState:
        """The generator for a request: the one that wrote the turn before, if it is not clearly
        busier than the others."""
        least = self._choose()
        if request.continues is None:
            return least
        names = {self._wrote.pop((request.continues, row), "") for row in request.seeds}
        state = self.states.get(names.pop())
        if state is None or state.starting or state.leaving:
            return least
        allowed = AFFINITY_FACTOR * least.seconds_left + AFFINITY_TURNS / state.speed
        return state if state.seconds_left <= allowed else least

    def place(
        self, requests: Iterable[Request], lane: Lane, version: int
    ) -> dict[str, list[Request]]:
        """Assign each request to the generator that will have finished first, or to the one that
        wrote the turn before, and send all of a generator in one message; the requests by the
        generator's name."""
        shares: dict[str, list[Request]] = {}
        for request in requests:
            state = self._choose_for(request)
            self._hold(state, request, lane)
            shares.setdefault(state.handle.name, []).append(request)
        for name, share in shares.items():
            self._submit(self.states[name], share, lane, version)
        return shares

    def assign(
        self, state: GeneratorState, requests: Iterable[Request], lane: Lane, version: int
    ) -> None:
        """Assign requests to this generator, and send them if it has started."""
        new = list(requests)
        for request in new:
            self._hold(state, request, lane)
        self._submit(state, new, lane, version)

    def _hold(self, state: GeneratorState, request: Request, lane: Lane) -> None:
        state.held |= {(request.id, row): (request, lane) for row in request.seeds}
        self._changed(state)

    def _submit(
        self, state: GeneratorState, requests: Sequence[Request], lane: Lane, version: int
    ) -> None:
        if requests and not state.starting:
            self.send(state, m.SubmitRequests(tuple(requests), lane, version))

    def send(
        self, state: GeneratorState, message: m.SubmitRequests | m.AdvanceAndHold | m.LeaveRun
    ) -> None:
        """Send a numbered message, which the generator must acknowledge in a report."""
        state.sent += 1
        state.handle.send(replace(message, number=state.sent))
        if state.behind_since is None:
            state.behind_since = self.clock.now()

    def on_ready(self, handle: Handle, version: int) -> GeneratorState:
        """Record that a generator has started, as a new one or as a replacement."""
        state = self.states.get(handle.name) or self._add(handle)
        if state.starting and not state.leaving:
            self._up += 1
        state.handle, state.version, state.starting = handle, version, False
        # Another process, or another session, counts from the beginning.
        state.sent = state.taken = state.number = 0
        state.behind_since = state.stuck_since = None
        self._changed(state)
        return state

    def on_restart(self, state: GeneratorState, replacement: Handle) -> None:
        """Record that a generator is being started again; what it held stays with it."""
        if not state.starting and not state.leaving:
            self._up -= 1
        state.handle, state.starting = replacement, True
        state.behind_since = state.stuck_since = None
        self._changed(state)

    def ask_to_leave(self, state: GeneratorState) -> None:
        """Ask a generator to leave; what it holds stays with it until its last report."""
        self._leaving += 1
        self._up -= not state.starting
        state.leaving = True
        if not state.starting:
            self.send(state, m.LeaveRun(tuple(r.id for r in state.requests("train"))))

    def remove(self, state: GeneratorState) -> None:
        """Forget a generator that has left."""
        self._uncount(state)
        self._leaving -= state.leaving
        del self.states[state.handle.name]

    def release(self, state: GeneratorState) -> dict[Lane, list[Request]]:
        """The requests that a generator still holds, by lane; it holds them no longer."""
        lanes: tuple[Lane, ...] = ("train", "validate")
        held = {lane: state.requests(lane) for lane in lanes}
        state.held.clear()
        if state.handle.name in self.states:
            self._changed(state)
        return held

    def on_report(self, state: GeneratorState, report: m.GeneratorReport) -> list[TurnResult]:
        """Record a report; the finished turns among those that the generator holds. (Others were
        assigned to another generator meanwhile.)"""
        state.number = report.number
        # It accepts messages: the time for those that are left begins anew.
        if report.taken != state.taken:
            state.taken, state.behind_since = report.taken, self.clock.now()
        if state.taken == state.sent:
            state.behind_since = None
        busy = report.seconds.get("generate", 0.0)
        # Measured speeds would make a deterministic run depend on timing.
        measured = report.tokens and busy and not self.deterministic
        if measured:
            self._measure(state, report.tokens / busy)
        found = [w for w in report.written if self._finished(state, w)]
        if measured or found or report.version != state.version:
            state.version = report.version
            self._changed(state)
        state.turns += len(found)
        if found:
            state.deaths = 0
        if self.deterministic or not state.held or report.seconds.keys() & WRITING_WORK:
            state.stuck_since = None
        elif state.stuck_since is None:
            state.stuck_since = self.clock.now()
        return found

    def _measure(self, state: GeneratorState, speed: float) -> None:
        if not self._speeds_known:
            self._speeds_known = True
            for other in self:
                other.speed = speed
                self._changed(other)
        state.speed += EWMA_ALPHA * (speed - state.speed)
        state.measured = True

    def _finished(self, state: GeneratorState, written: TurnResult) -> bool:
        """Whether a turn is one that the generator holds; it holds it no longer."""
        key = (written.request, written.row)
        request, _ = state.held.pop(key, (None, None))
        # A deterministic run keeps no cache between turns.
        if request is not None and request.one_by_one and not self.deterministic:
            self._wrote.pop(key, None)
            self._wrote[key] = state.handle.name
            if len(self._wrote) > REMEMBERED_TURNS:
                del self._wrote[next(iter(self._wrote))]
        return request is not None

    def seconds_behind(self, state: GeneratorState) -> float:
        """Seconds for which it has not accepted a message that it was sent."""
        return 0.0 if state.behind_since is None else self.clock.now() - state.behind_since

    def seconds_stuck(self, state: GeneratorState) -> float:
        """Seconds for which it has written nothing of what it holds, although it sends reports."""
        return 0.0 if state.stuck_since is None else self.clock.now() - state.stuck_since
