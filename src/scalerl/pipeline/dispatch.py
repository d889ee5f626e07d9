"""Assigns requests to generators, and keeps what each of them holds, its version and its speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scalerl.engine.interface import Lane, Request, RolloutResult
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Clock, Handle

#: Weight of the newest report in the moving average of a generator's speed.
EWMA_ALPHA = 0.2
#: Kinds of work that show that a generator writes tokens.
WRITING_WORK = {"generate", "validate"}


@dataclass(slots=True, eq=False)
class GeneratorState:
    """What is known of one generator."""

    handle: Handle
    version: int = 0
    #: Whether it has not started yet: its requests are sent when it has.
    starting: bool = True
    #: Whether it was asked to leave: it gets no new requests, and its last report is awaited.
    leaving: bool = False
    #: Rollouts that it still has to write, by request and row.
    held: dict[tuple[str, int], tuple[Request, Lane]] = field(default_factory=dict)
    #: Moving average of tokens per second while it generates. Only ratios between generators are
    #: used, so the initial value matters only until the first report.
    speed: float = 1.0
    #: Times that it has died since it last finished a rollout.
    deaths: int = 0
    #: Rollouts that it has finished.
    rollouts: int = 0
    #: Messages it was sent.
    sent: int = 0
    #: Messages it has accepted.
    taken: int = 0
    #: Time since which `taken` < `sent`; None while they are equal.
    behind_since: float | None = None
    #: Sequence number of its latest report.
    number: int = 0
    #: Time since which it holds rollouts and reports, but has written no token; else None.
    stuck_since: float | None = None

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
        self.states = {g.name: GeneratorState(g) for g in generators}
        self.clock = clock
        #: Whether measured speeds must not influence the assignment.
        self.deterministic = deterministic

    def __len__(self) -> int:
        return len(self.staying)

    def __iter__(self) -> Iterator[GeneratorState]:
        return iter(self.states.values())

    @property
    def staying(self) -> list[GeneratorState]:
        """Generators that may get requests: all that were not asked to leave."""
        return [state for state in self if not state.leaving]

    @property
    def up(self) -> list[GeneratorState]:
        """Generators that have started; if none has, all that stay."""
        return [state for state in self.staying if not state.starting] or self.staying

    @property
    def oldest(self) -> int:
        """The oldest version that any generator may still write with. One that is starting and
        holds nothing will begin with the newest, and does not count."""
        writing = [state for state in self if state.held or not state.starting]
        return min(state.version for state in writing or self)

    def set_versions(self, version: int) -> None:
        for state in self:
            state.version = version

    def choose(self, planned: Mapping[str, int]) -> GeneratorState:
        """The generator that will have finished first, given what each holds and is `planned` to
        get. So slow generators get fewer groups, and one that is starting gets some only if all
        are."""
        # + 1 is the group to be assigned: of two idle generators the faster one gets it.
        return min(self.up, key=lambda s: (len(s.held) + planned[s.handle.name] + 1) / s.speed)

    def assign(
        self, state: GeneratorState, requests: Iterable[Request], lane: Lane, version: int
    ) -> list[str]:
        """Assign requests to a generator, and send them if it has started; names of their
        rollouts."""
        new = list(requests)
        rows = [(request, row) for request in new for row in request.seeds]
        state.held |= {(r.id, row): (r, lane) for r, row in rows}
        if new and not state.starting:
            self.send(state, m.SubmitRequests(tuple(new), lane, version))
        return [f"{r.id}/{row}" for r, row in rows]

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
        state = self.states.setdefault(handle.name, GeneratorState(handle))
        state.handle, state.version, state.starting = handle, version, False
        # Another process, or another session, counts from the beginning.
        state.sent = state.taken = state.number = 0
        state.behind_since = state.stuck_since = None
        return state

    def ask_to_leave(self, state: GeneratorState) -> None:
        """Ask a generator to leave; what it holds stays with it until its last report."""
        state.leaving = True
        if not state.starting:
            self.send(state, m.LeaveRun(tuple(r.id for r in state.requests("train"))))

    def on_report(self, state: GeneratorState, report: m.GeneratorReport) -> list[RolloutResult]:
        """Record a report; the finished rollouts among those that the generator holds. (Others were
        assigned to another generator meanwhile.)"""
        state.version = report.version
        state.number = report.number
        # It accepts messages: the time for those that are left begins anew.
        if report.taken != state.taken:
            state.taken, state.behind_since = report.taken, self.clock.now()
        if state.taken == state.sent:
            state.behind_since = None
        busy = report.seconds.get("generate", 0.0)
        # Measured speeds would make a deterministic run depend on timing.
        if report.tokens and busy and not self.deterministic:
            state.speed += EWMA_ALPHA * (report.tokens / busy - state.speed)
        found = [w for w in report.written if state.held.pop((w.request, w.row), None) is not None]
        state.rollouts += len(found)
        if found:
            state.deaths = 0
        if self.deterministic or not state.held or report.seconds.keys() & WRITING_WORK:
            state.stuck_since = None
        elif state.stuck_since is None:
            state.stuck_since = self.clock.now()
        return found

    def seconds_behind(self, state: GeneratorState) -> float:
        """Seconds for which it has not accepted a message that it was sent."""
        return 0.0 if state.behind_since is None else self.clock.now() - state.behind_since

    def seconds_stuck(self, state: GeneratorState) -> float:
        """Seconds for which it has written nothing of what it holds, although it sends reports."""
        return 0.0 if state.stuck_since is None else self.clock.now() - state.stuck_since
