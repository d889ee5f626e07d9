"""The supervisor of the crew: handles its events, and replaces workers that are lost."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

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

#: A generator that dies more often than this without finishing a turn is not started again.
MAX_DEATHS = 5
#: Seconds that a worker may take to start, however small `placement.patience` is: loading a large
#: model from a slow disk takes minutes, while a worker that runs sends a heartbeat every 0.5 s.
START_SECONDS = 300.0


class Supervisor:
    """Generators, the trainer and environment workers: their messages, starts and losses."""

    def __init__(
        self, setup: RunSetup, crew: Crew, clock: Clock, state: RunState, recorder: Recorder,
        learner: Learner, ledger: Ledger,
    ) -> None:  # fmt: skip
        self.crew, self.clock, self.state = crew, clock, state
        self.recorder, self.learner, self.ledger = recorder, learner, ledger
        where = setup.recipe.placement
        self.patience, self.deterministic = where.patience, where.deterministic
        self.dispatcher = Dispatcher(crew.generators, clock, deterministic=where.deterministic)
        self.pool = EnvironmentPool(
            setup.task, crew.checkers, where.checkers, where.check_seconds, clock
        )
        # Set by the loop, which knows the parts that these belong to:
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
            m.TrainerDone: learner.on_done,
            m.StepDone: learner.on_step_done,
            m.StepRefused: learner.on_step_refused,
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
                self.recorder.listener.asked(self.clock.now(), names)
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
        self.ledger.generated_tokens += report.tokens
        self.ledger.reread_tokens += report.read_tokens
        self.ledger.add_decoded(report.decoded)
        self.ledger.cpu_seconds["generate"] += report.cpu_seconds
        for kind, seconds in report.seconds.items():
            self.ledger.add_work(kind, seconds)
        found = self.dispatcher.on_report(generator, report)
        named = [(f"{w.request}/{w.row}", w.turn) for w in found if report.lane == "train"]
        self.recorder.listener.wrote(self.clock.now(), report.version, named)
        for written in found:
            self.on_turn(written)
        if report.left:
            self.ledger.waste("failed", *report.dropped)
            self.on_generator_left(generator)

    def _on_work_done(self, worker: Handle, message: m.WorkDone) -> None:
        self.ledger.add_work("check", message.seconds)
        if message.job is not None:
            self._checker_deaths = 0
        self.on_results(self.pool.on_done(worker, message))

    # -- starting ---------------------------------------------------------------------------------

    def await_crew(self) -> Generator[str, None, None]:
        """Wait until the trainer and all generators have started."""
        trainer = self.crew.trainer
        while True:
            waiting = [s.handle.name for s in self.dispatcher if s.starting]
            waiting += [] if self.learner.ready else [trainer.name]
            if not waiting:
                break
            if self.state.stop is not None:
                raise Stopped(self.state.stop)
            names = ", ".join(sorted(waiting))
            yield f"{names} to start"
            if not self.learner.ready and trainer.silence > max(self.patience, START_SECONDS):
                raise IrreplaceableWorkerLost(
                    f"{names} did not start: is the machine short of memory?"
                )
        self.dispatcher.set_versions(self.state.version)

    def _on_ready(self, worker: Handle, message: m.WorkerReady) -> None:
        if worker.name in self.pool.states:
            self.pool.on_ready(worker)
            return
        self.ledger.set_device(worker.name, message.device)
        if worker is self.crew.trainer:
            self.state.version, self.learner.ready = message.version, True
        else:
            self._generator_ready(worker, message.version)

    def _generator_ready(self, worker: Handle, version: int) -> None:
        """Give a generator that has started the requests of the one it replaces; one that replaces
        none joins the others."""
        if worker.name not in self.dispatcher.states:
            self.ledger.generator_joined()
            self.recorder.listener.say(f"{worker.name} has joined")
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
                f"{less_memory(worker.name)}, then --resume"
            )
        raise PipelineError(f"{worker.name}: {message.reason}")

    # -- losses -----------------------------------------------------------------------------------

    def on_worker_lost(self, worker: Handle, why: str) -> None:
        """Replace a worker. Its requests go to the other generators, or, if there are none, to the
        new one. A trainer cannot be replaced here, nor, in a deterministic run, a generator."""
        if worker.name in self.pool.states:
            self._replace_checker(worker, why)
            return
        lost = IrreplaceableWorkerLost(f"{worker.name} {why}", trainer=worker is self.crew.trainer)
        if worker is self.crew.trainer or self.deterministic:
            raise lost
        state = self.dispatcher.states.get(worker.name)
        self.recorder.note("lost", str(lost))
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
                f"it ran out of memory: {less_memory(worker.name)}, then --resume"
            )
        self.recorder.listener.say(f"warning: {lost}: starting another one")
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
        self.recorder.listener.say(
            f"{name} has left; {self.reassign(state)} groups are given to others"
        )

    def _replace_checker(self, worker: Handle, why: str) -> None:
        self._checker_deaths += 1
        self._replaced.add(id(worker))
        self.recorder.note("checker", f"{worker.name} {why}: replaced")
        if self._checker_deaths > MAX_DEATHS * max(len(self.crew.checkers), 1):
            raise PipelineError(
                f"{worker.name} {why}; checkers were started {self._checker_deaths - 1} times and "
                "never scored an answer: look at the task's verifier, then --resume"
            )
        self.on_results(self.pool.on_worker_lost(worker, self.crew.replace(worker), why))
