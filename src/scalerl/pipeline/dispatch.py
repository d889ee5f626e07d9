"""Who writes what: the rollouts each generator holds, its version, its speed, its deaths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scalerl.engine.interface import Lane, Request, RolloutResult
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import Clock, Handle

#: Weight of the newest report in a generator's speed.
EWMA_ALPHA = 0.2
#: What a generator's time goes to while it writes.
WRITES = {"generate", "validate"}


@dataclass(slots=True, eq=False)
class GeneratorState:
    """What is known of one generator."""

    handle: Handle
    version: int = 0
    #: Not up yet: what is asked of it is sent when it is.
    starting: bool = True
    #: CheckSummary to go: it is asked nothing more, and its last report is awaited.
    leaving: bool = False
    #: Rollouts that it has still to write, by request and row.
    held: dict[tuple[str, int], tuple[Request, Lane]] = field(default_factory=dict)
    #: Tokens a second while busy, smoothed; only their proportions matter.
    speed: float = 1.0
    #: Times it has died since it last finished something.
    deaths: int = 0
    #: Rollouts that it has finished.
    rollouts: int = 0
    #: Messages it was sent and has taken in, since when these differ, and its latest report.
    sent: int = 0
    taken: int = 0
    behind_since: float | None = None
    number: int = 0
    #: Since when it holds rollouts and reports, and has written no token.
    stuck_since: float | None = None

    def requests(self, lane: Lane) -> list[Request]:
        """What it still has to write in a lane, group by group."""
        rows: dict[str, list[int]] = {}
        of: dict[str, Request] = {}
        for (name, row), (request, its_lane) in self.held.items():
            if its_lane == lane:
                rows.setdefault(name, []).append(row)
                of[name] = request
        return [of[name].only(rows[name]) for name in rows]


class Dispatcher:
    """Gives requests to generators and knows what became of them."""

    def __init__(self, generators: Sequence[Handle], clock: Clock, *, deterministic: bool) -> None:
        self.states = {g.name: GeneratorState(g) for g in generators}
        self.clock = clock
        #: No clock may decide who writes what.
        self.deterministic = deterministic

    def __len__(self) -> int:
        return len(self.staying)

    def __iter__(self) -> Iterator[GeneratorState]:
        return iter(self.states.values())

    @property
    def staying(self) -> list[GeneratorState]:
        """Those that may be asked something."""
        return [state for state in self if not state.leaving]

    @property
    def up(self) -> list[GeneratorState]:
        """Those that write what they are asked now; all, if none does."""
        return [state for state in self.staying if not state.starting] or self.staying

    @property
    def oldest(self) -> int:
        """The oldest version that any generator may still write with. One that is to start, and
        holds nothing, will begin with the newest."""
        writing = [state for state in self if state.held or not state.starting]
        return min(state.version for state in writing or self)

    def set_versions(self, version: int) -> None:
        for state in self:
            state.version = version

    def choose(self, planned: Mapping[str, int]) -> GeneratorState:
        """The generator that will be done first with what it holds and `planned` more: a slow one
        holds nobody up, and one that is still to start is asked only if all are."""
        return min(self.up, key=lambda s: (len(s.held) + planned[s.handle.name] + 1) / s.speed)

    def assign(
        self, state: GeneratorState, requests: Iterable[Request], lane: Lane, version: int
    ) -> list[str]:
        """It holds these from now on: names of the rollouts. Sent at once if it is up."""
        new = list(requests)
        rows = [(request, row) for request in new for row in request.seeds]
        state.held |= {(r.id, row): (r, lane) for r, row in rows}
        if new and not state.starting:
            self.send(state, m.SubmitRequests(tuple(new), lane, version))
        return [f"{r.id}/{row}" for r, row in rows]

    def send(
        self, state: GeneratorState, message: m.SubmitRequests | m.AdvanceAndHold | m.LeaveRun
    ) -> None:
        """Send a message, and note that it is to be taken in."""
        state.sent += 1
        state.handle.send(replace(message, number=state.sent))
        if state.behind_since is None:
            state.behind_since = self.clock.now()

    def on_ready(self, handle: Handle, version: int) -> GeneratorState:
        """A generator is up, for the first time or in the place of another."""
        state = self.states.setdefault(handle.name, GeneratorState(handle))
        state.handle, state.version, state.starting = handle, version, False
        state.sent = state.taken = state.number = 0
        state.behind_since = state.stuck_since = None
        return state

    def ask_to_leave(self, state: GeneratorState) -> None:
        """Tell a generator to go; it keeps what it holds until its last report."""
        state.leaving = True
        if not state.starting:
            self.send(state, m.LeaveRun(tuple(r.id for r in state.requests("train"))))

    def on_report(self, state: GeneratorState, report: m.GeneratorReport) -> list[RolloutResult]:
        """What a generator has finished of what it holds; anything else is an old story."""
        state.version = report.version
        state.number = report.number
        if report.taken != state.taken:
            state.taken, state.behind_since = report.taken, self.clock.now()
        if state.taken == state.sent:
            state.behind_since = None
        busy = report.seconds.get("generate", 0.0)
        if report.tokens and busy and not self.deterministic:
            state.speed += EWMA_ALPHA * (report.tokens / busy - state.speed)
        found = [w for w in report.written if state.held.pop((w.request, w.row), None) is not None]
        state.rollouts += len(found)
        if found:
            state.deaths = 0
        if self.deterministic or not state.held or report.seconds.keys() & WRITES:
            state.stuck_since = None
        elif state.stuck_since is None:
            state.stuck_since = self.clock.now()
        return found

    def seconds_behind(self, state: GeneratorState) -> float:
        """Seconds for which it has not taken in what it was sent."""
        return 0.0 if state.behind_since is None else self.clock.now() - state.behind_since

    def seconds_stuck(self, state: GeneratorState) -> float:
        """Seconds for which it has written nothing of what it holds, though it says that it
        lives."""
        return 0.0 if state.stuck_since is None else self.clock.now() - state.stuck_since
