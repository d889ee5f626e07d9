"""The supervisor of the crew: handles its events, and replaces workers that are lost.

`WorkerSupervisor` has generators and environment workers; `scalerl eval` uses it as it is. The
`Supervisor` of a run also has the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol

from scalerl.engine.interface import Lane, Request, TurnResult
from scalerl.errors import InputError, PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import (
    Clock,
    Crew,
    Handle,
    IrreplaceableWorkerLost,
    MessageReceived,
    WorkerLost,
    less_memory,
)
from scalerl.pipeline.dispatch import Dispatcher, GeneratorState
from scalerl.pipeline.environment_pool import Done, EnvironmentPool
from scalerl.pipeline.learner import Learner
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.recorder import Recorder
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.state import RunState, Stopped
from scalerl.runs.lines import EventKind
from scalerl.runs.listener import Listener

#: A generator that dies more often than this without finishing a turn is not started again.
MAX_DEATHS = 5
#: Seconds that a worker may take to start, however small `placement.patience` is: loading a large
#: model from a slow disk takes minutes, while a worker that runs sends a heartbeat every 0.5 s.
START_SECONDS = 300.0
#: Seconds between two lines about workers that have not started yet.
WORD_SECONDS = 30.0


class Notes(Protocol):
    """What a supervisor reports to."""

    @property
    def listener(self) -> Listener: ...

    def note(self, event: EventKind, why: str) -> None:
        """Record an event."""
        ...


class WorkerSupervisor:
    """Generators and environment workers: their messages, starts and losses."""

    #: What a user does after repairing the cause of an error.
    again = "--resume"

    def __init__(
        self, setup: RunSetup, crew: Crew, clock: Clock, state: RunState, notes: Notes,
        ledger: Ledger, *, deterministic: bool,
    ) -> None:  # fmt: skip
        self.crew, self.clock, self.state = crew, clock, state
        self.notes, self.ledger = notes, ledger
        where = setup.recipe.placement
        self.patience, self.deterministic = where.patience, deterministic
        self.dispatcher = Dispatcher(crew.generators, clock, deterministic=deterministic)
        self.pool = EnvironmentPool(
            setup.task, crew.checkers, where.checkers, where.check_seconds, clock
        )
        # Set by the loop or the evaluation, which know the parts that these belong to:
        #: Takes a turn that a generator has finished.
        self.on_turn: Callable[[TurnResult], None]
        #: Takes scores and replies of environments.
        self.on_results: Callable[[Sequence[Done]], None]
        #: Takes requests that are written again, and the version from which on.
        self.on_restart: Callable[[Iterable[Request], int], None]
        #: Takes a generator that was lost before it joined.
        self.on_join_failed: Callable[[Handle], None]
        self.handlers: dict[type, Callable[[Handle, Any], None]] = {
            m.WorkerReady: self._on_ready,
            m.WorkerFailed: self._on_failed,
            m.GeneratorReport: self._on_report,
            m.WorkDone: self._on_work_done,
        }
        #: Workers that were replaced while the events of one poll were handled, by identity: a
        #: replacement has the name of the worker that it replaces.
        self._replaced: set[int] = set()
        self._checker_deaths = 0

    def handle(self, events: Sequence[MessageReceived | WorkerLost]) -> None:
        """Handle the events of one poll."""
        self._replaced.clear()
        for event in events:
            if id(event.worker) in self._replaced:
                continue
            if isinstance(event, WorkerLost):
                self.on_worker_lost(event.worker, event.why)
                continue
            handler = self.handlers.get(type(event.message))
            if handler is None:
                kind = type(event.message).__name__
                raise PipelineError(f"{event.worker.name} sent a message of unknown type {kind!r}")
            handler(event.worker, event.message)

    # -- requests ---------------------------------------------------------------------------------

    def place(self, requests: Sequence[Request], lane: Lane) -> int:
        """Submit requests, each to the generator that will have finished first; the oldest version
        that any generator may write with."""
        shares = self.dispatcher.place(requests, lane, self.state.version)
        if lane == "train":
            for share in shares.values():
                names = [f"{r.id}/{row}" for r in share for row in r.seeds]
                self.notes.listener.asked(self.clock.now(), names)
        return self.dispatcher.oldest

    def _on_report(self, worker: Handle, report: m.GeneratorReport) -> None:
        """Pass on the turns that a generator has finished, and count its time."""
        generator = self.dispatcher.states.get(worker.name)
        if generator is None or generator.starting:  # its `WorkerReady` was lost
            self._generator_ready(worker, report.version)
            generator = self.dispatcher.states[worker.name]
            generator.number = report.number - 1
        if report.number != generator.number + 1:
            self.on_worker_lost(worker, "has lost a report")
            return
        self._record_proofs(worker, report.proofs)
        self.ledger.generated_tokens += report.tokens
        self.ledger.reread_tokens += report.read_tokens
        self.ledger.add_decoded(report.decoded)
        self.ledger.cpu_seconds["generate"] += report.cpu_seconds
        for kind, seconds in report.seconds.items():
            self.ledger.add_work(kind, seconds)
        found = self.dispatcher.on_report(generator, report)
        named = [(f"{w.request}/{w.row}", w.turn) for w in found if report.lane == "train"]
        self.notes.listener.wrote(self.clock.now(), report.version, named)
        for written in found:
            self.on_turn(written)
        if report.left:
            self.ledger.waste("failed", *report.dropped)
            self.on_generator_left(generator)

    def _on_work_done(self, worker: Handle, message: m.WorkDone) -> None:
        self.ledger.add_work("check", message.seconds)
        self.ledger.add_judging(message.scores)
        if message.job is not None:
            self._checker_deaths = 0
        self.on_results(self.pool.on_done(worker, message))

    # -- starting ---------------------------------------------------------------------------------

    def _on_ready(self, worker: Handle, message: m.WorkerReady) -> None:
        if worker.name in self.pool.states:
            self.pool.on_ready(worker)
            return
        self.ledger.set_device(worker.name, message.device)
        self._record_proofs(worker, message.proofs)
        self._generator_ready(worker, message.version)

    def _record_proofs(self, worker: Handle, proofs: Sequence[str]) -> None:
        for line in proofs:
            self.notes.note("note", f"{worker.name} {line}")

    def _generator_ready(self, worker: Handle, version: int) -> None:
        """Give a generator that has started the requests of the one it replaces; one that replaces
        none joins the others."""
        if worker.name not in self.dispatcher.states:
            self.ledger.generator_joined()
            self.notes.listener.say(f"{worker.name} has joined")
        state = self.dispatcher.on_ready(worker, version)
        lanes: tuple[Lane, ...] = ("train", "validate")
        for lane in lanes:
            held = state.requests(lane)
            self.on_restart(held, version)
            self.dispatcher.assign(state, held, lane, self.state.version)

    def _on_failed(self, worker: Handle, message: m.WorkerFailed) -> None:
        if message.bad_input:
            raise InputError(message.reason)
        if message.no_memory:
            raise PipelineError(
                f"{worker.name} ran out of memory ({message.reason}): "
                f"{less_memory(worker.name)}, then {self.again}"
            )
        raise PipelineError(f"{worker.name}: {message.reason}")

    # -- losses -----------------------------------------------------------------------------------

    def on_worker_lost(self, worker: Handle, why: str) -> None:
        """Replace a worker. The requests of a generator go to the others, or, if there are none,
        to the new one. In a deterministic run a generator cannot be replaced."""
        if worker.name in self.pool.states:
            self._replace_checker(worker, why)
            return
        lost = f"{worker.name} {why}"
        if self.deterministic:
            raise IrreplaceableWorkerLost(lost)
        state = self.dispatcher.states.get(worker.name)
        self.notes.note("lost", lost)
        self._replaced.add(id(worker))
        if state is None:
            self.on_join_failed(worker)
            return
        begun = sum(lane == "train" for _, lane in state.held.values())
        self.ledger.waste("failed", begun, 0)  # how many tokens it had written is not known
        if state.leaving:
            self.on_generator_left(state)
            return
        state.deaths += 1
        if state.deaths > MAX_DEATHS:
            raise PipelineError(
                f"{lost}; it was started {MAX_DEATHS} times and never finished a rollout; if "
                f"it ran out of memory: {less_memory(worker.name)}, then {self.again}"
            )
        self.notes.listener.say(f"warning: {lost}: starting another one")
        self.dispatcher.on_restart(state, self.crew.replace(worker))
        if any(not s.starting for s in self.dispatcher.staying):
            self.reassign(state)  # the new one may take minutes to start

    def reassign(self, state: GeneratorState) -> int:
        """Let the other generators write what this one holds, from its beginning; the number of
        training requests."""
        held = self.dispatcher.release(state)
        for lane, requests in held.items():
            shares = self.dispatcher.place(requests, lane, self.state.version)
            for name, share in shares.items():
                self.on_restart(share, self.dispatcher.states[name].version)
        return len(held["train"])

    def on_generator_left(self, state: GeneratorState) -> None:
        """A generator has sent its last report, or died: what it still held goes to the others."""
        name = state.handle.name
        self.dispatcher.remove(state)
        self.ledger.generator_left(name)
        self.crew.remove_generator(state.handle)
        self._replaced.add(id(state.handle))
        self.notes.listener.say(
            f"{name} has left; {self.reassign(state)} groups are given to others"
        )

    def _replace_checker(self, worker: Handle, why: str) -> None:
        self._checker_deaths += 1
        self._replaced.add(id(worker))
        self.notes.note("checker", f"{worker.name} {why}: replaced")
        if self._checker_deaths > MAX_DEATHS * max(len(self.crew.checkers), 1):
            raise PipelineError(
                f"{worker.name} {why}; checkers were started {self._checker_deaths - 1} times and "
                f"never scored an answer: look at the task's verifier, then {self.again}"
            )
        self.on_results(self.pool.on_worker_lost(worker, self.crew.replace(worker), why))

    # -- deadlines --------------------------------------------------------------------------------

    def replace_silent(self, waits_for: str) -> None:
        """Replace generators and environment workers that have been silent for too long."""
        start = max(self.patience, START_SECONDS)
        for state in list(self.dispatcher):
            silence = max(state.handle.silence, self.dispatcher.seconds_behind(state))
            if silence > (start if state.starting else self.patience):
                self.on_worker_lost(state.handle, silence_text(silence, waits_for))
            elif (stuck := self.dispatcher.seconds_stuck(state)) > self.patience:
                many = f"{len(state.held)} rollouts" if len(state.held) > 1 else "one rollout"
                self.on_worker_lost(
                    state.handle, f"holds {many} and has written nothing for {stuck:.0f} s"
                )
        for checker, why in self.pool.replaceable(self.patience, start):
            self.on_worker_lost(checker, why)

    def shift_deadlines(self, seconds: float) -> None:
        """Move all deadlines by the seconds for which no message could be received."""
        for state in self.dispatcher:
            if state.behind_since is not None:
                state.behind_since += seconds
            if state.stuck_since is not None:
                state.stuck_since += seconds
        self.pool.shift_deadlines(seconds)


def silence_text(seconds: float, waits_for: str) -> str:
    """Why a silent worker is replaced."""
    return f"has sent nothing for {seconds:.0f} s (the run waits for {waits_for})"


class Supervisor(WorkerSupervisor):
    """The supervisor of a run, with the trainer."""

    def __init__(
        self, setup: RunSetup, crew: Crew, clock: Clock, state: RunState, recorder: Recorder,
        learner: Learner, ledger: Ledger,
    ) -> None:  # fmt: skip
        deterministic = setup.recipe.placement.deterministic
        super().__init__(setup, crew, clock, state, recorder, ledger, deterministic=deterministic)
        self.recorder, self.learner = recorder, learner
        self.handlers |= {
            m.TrainerDone: learner.on_done,
            m.StepDone: learner.on_step_done,
            m.StepRefused: learner.on_step_refused,
        }

    def await_crew(self) -> Generator[str, None, None]:
        """Wait until the trainer and all generators have started."""
        trainer = self.crew.trainer
        begun = self.clock.now()
        next_word = begun + WORD_SECONDS
        while True:
            waiting = [s.handle.name for s in self.dispatcher if s.starting]
            waiting += [] if self.learner.ready else [trainer.name]
            if not waiting:
                break
            if self.state.stop is not None:
                raise Stopped(self.state.stop)
            names = ", ".join(sorted(waiting))
            yield f"{names} to start"
            if self.clock.now() > next_word:
                next_word += WORD_SECONDS
                passed = self.clock.now() - begun
                self.notes.listener.say(f"waiting for {names} to start ({passed:.0f} s)")
            if not self.learner.ready and trainer.silence > max(self.patience, START_SECONDS):
                raise IrreplaceableWorkerLost(
                    f"{names} did not start: is the machine short of memory?"
                )
        self.dispatcher.set_versions(self.state.version)

    def _on_ready(self, worker: Handle, message: m.WorkerReady) -> None:
        if worker is not self.crew.trainer:
            super()._on_ready(worker, message)
            return
        self.ledger.set_device(worker.name, message.device)
        self.state.version, self.learner.ready = message.version, True

    def on_worker_lost(self, worker: Handle, why: str) -> None:
        """Replace a worker. A trainer cannot be replaced here."""
        if worker is self.crew.trainer:
            raise IrreplaceableWorkerLost(f"{worker.name} {why}", trainer=True)
        super().on_worker_lost(worker, why)

    def replace_silent(self, waits_for: str) -> None:
        if self.learner.busy_since is not None:
            # An idle trainer sends nothing: what counts is the time since it has had work.
            trainer = self.crew.trainer
            silence = min(trainer.silence, self.clock.now() - self.learner.busy_since)
            if silence > self.patience:
                self.on_worker_lost(trainer, silence_text(silence, waits_for))
        super().replace_silent(waits_for)

    def shift_deadlines(self, seconds: float) -> None:
        if self.learner.busy_since is not None:
            self.learner.busy_since += seconds
        super().shift_deadlines(seconds)
