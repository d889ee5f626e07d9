"""The supervisor of the crew: dispatches messages, replaces workers that are lost or silent.

Whatever the run waits for, events of all workers are handled: the wait itself is one call of
`_poll_and_dispatch` after the other. `Loop` adds what to do with each message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from scalerl.errors import InputError, PipelineError
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import (
    Clock,
    Crew,
    Handle,
    IrreplaceableWorkerLost,
    WorkerLost,
    generator_number,
    less_memory,
)
from scalerl.pipeline.dispatch import Dispatcher, GeneratorState
from scalerl.pipeline.environment_pool import EnvironmentPool, ScoredAnswers
from scalerl.pipeline.groups import PendingGroup
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.setup import RunSetup
from scalerl.runs.lines import EventKind, EventLine, Status
from scalerl.runs.listener import Listener
from scalerl.runs.store import RunStore

#: A generator that dies more often than this without finishing a rollout is not started again.
MAX_DEATHS = 5
#: Seconds between two ticks of the watchdog, each of which writes a status file.
WATCH_SECONDS = 1.0
#: Seconds that a worker may take to start, however small `placement.patience` is: loading a large
#: model from a slow disk takes minutes, while a worker that runs sends a heartbeat every 0.5 s.
START_SECONDS = 300.0
#: The loop itself stood still (Ctrl-Z, a slow disk) if a tick comes this many intervals late, plus
#: PAUSE_SHARE of the patience.
PAUSE_INTERVALS = 3
PAUSE_SHARE = 0.1


class Stopped(Exception):
    """The run was asked to end; its text is the reason."""


class CrewSupervisor(ABC):
    """The base of the loop: sends messages, dispatches events, watches over the workers."""

    def __init__(
        self, setup: RunSetup, crew: Crew, clock: Clock, store: RunStore, listener: Listener
    ) -> None:
        self.setup, self.crew, self.clock = setup, crew, clock
        #: The recipe of the setup, with the present number of generators.
        self.recipe = setup.recipe
        self.store, self.listener = store, listener
        where = setup.recipe.placement
        self.patience, self.deterministic = where.patience, where.deterministic
        self.version = 0
        self.pending: dict[int, PendingGroup] = {}
        self.dispatcher = Dispatcher(crew.generators, clock, deterministic=where.deterministic)
        self.checks = EnvironmentPool(
            setup.task, crew.checkers, where.checkers, where.check_seconds, clock
        )
        self.ledger = Ledger(
            clock, setup.parameters, len(crew.generators), where.trainers,
            setup.recipe.compute.count_validation,
        )  # fmt: skip
        #: Time since which the trainer has had something to do; None while it is idle.
        self.trainer_since: float | None = None
        self._trainer_ready = False
        self._answer: m.TrainerDone | None = None
        self._stop: str | None = None
        #: Warnings from outside the loop; appending one is safe in a signal handler.
        self.notes: list[str] = []
        self._last_watchdog = clock.now()
        self._checker_deaths = 0
        self._handlers: dict[type, Callable[[Handle, Any], None]] = {
            m.WorkerReady: self._on_ready,
            m.WorkerFailed: self._on_failed,
            m.TrainerDone: self._on_trainer_done,
            m.GeneratorReport: self._on_report,
            m.WorkDone: self._on_scores,
            m.StepDone: self._on_step_done,
            m.StepRefused: self._on_step_refused,
        }

    # -- handlers that the loop adds --------------------------------------------------------------

    @abstractmethod
    def _on_report(self, worker: Handle, report: m.GeneratorReport) -> None: ...

    @abstractmethod
    def _on_step_done(self, worker: Handle, message: m.StepDone) -> None: ...

    @abstractmethod
    def _on_step_refused(self, worker: Handle, message: m.StepRefused) -> None: ...

    @abstractmethod
    def _on_scored(self, scored: ScoredAnswers) -> None: ...

    @abstractmethod
    def _start_groups(self) -> None: ...

    @abstractmethod
    def _rescale(self) -> None: ...

    @abstractmethod
    def _reassign(self, state: GeneratorState) -> int: ...

    @abstractmethod
    def _on_generator_left(self, state: GeneratorState) -> None: ...

    @abstractmethod
    def _on_join_failed(self, worker: Handle) -> None: ...

    # -- messages ---------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Ask the run to end as soon as no step is under way; safe in a signal handler."""
        self._stop = reason

    def _poll_and_dispatch(self, waits_for: str) -> None:
        """Start new groups, wait for events, and handle them. `waits_for` says what the run needs
        before it can go on, for the status file and for errors."""
        self._start_groups()
        for event in self.crew.poll(WATCH_SECONDS):
            # An earlier event of the same list may have led to its replacement.
            if not self._present(event.worker):
                continue
            if isinstance(event, WorkerLost):
                self._on_worker_lost(event.worker, event.why)
                continue
            handler = self._handlers.get(type(event.message))
            if handler is None:
                kind = type(event.message).__name__
                raise PipelineError(f"{event.worker.name} sent a message of unknown type {kind!r}")
            handler(event.worker, event.message)
        self._record_notes()
        self._watchdog_tick(waits_for)

    def _present(self, worker: Handle) -> bool:
        crew = self.crew
        # By identity: a replacement has the name of the worker that it replaces.
        return any(worker is one for one in (crew.trainer, *crew.generators, *crew.checkers))

    def _send_to_trainer(self, message: Any) -> None:
        self.trainer_since = self.clock.now()
        self.crew.trainer.send(message)

    def _call_trainer(self, message: Any, what: str) -> m.TrainerDone:
        """Send a message to the trainer, which must be idle, and wait for its answer."""
        self._answer = None
        self._send_to_trainer(message)
        while self._answer is None:
            self._poll_and_dispatch(f"the trainer {what}")
        return self._answer

    def _on_trainer_done(self, worker: Handle, message: m.TrainerDone) -> None:
        self._answer, self.trainer_since = message, None

    def _on_scores(self, worker: Handle, message: m.WorkDone) -> None:
        self.ledger.add_work("check", message.seconds)
        if message.job is not None:
            self._checker_deaths = 0
        for done in self.checks.on_done(worker, message):
            if isinstance(done, ScoredAnswers):
                self._on_scored(done)

    # -- starting and replacing workers -----------------------------------------------------------

    def _await_crew(self) -> None:
        """Wait until the trainer and all generators have started."""
        while True:
            waiting = [s.handle.name for s in self.dispatcher if s.starting]
            waiting += [] if self._trainer_ready else [self.crew.trainer.name]
            if not waiting:
                break
            if self._stop is not None:
                raise Stopped(self._stop)
            names = ", ".join(sorted(waiting))
            self._poll_and_dispatch(f"{names} to start")
            if not self._trainer_ready and self.crew.trainer.silence > max(
                self.patience, START_SECONDS
            ):
                raise IrreplaceableWorkerLost(
                    f"{names} did not start: is the machine short of memory?"
                )
        self.dispatcher.set_versions(self.version)

    def _on_ready(self, worker: Handle, message: m.WorkerReady) -> None:
        if any(worker is checker for checker in self.crew.checkers):
            self.checks.on_ready(worker)
            return
        self.ledger.set_device(worker.name, message.device)
        if worker is self.crew.trainer:
            self.version, self._trainer_ready = message.version, True
        else:
            self._generator_ready(worker, message.version)

    def _generator_ready(self, worker: Handle, version: int) -> None:
        """Give a generator that has started the requests of the one it replaces; one that replaces
        none joins the others."""
        if worker.name not in self.dispatcher.states:
            self.ledger.generator_joined()
            self.listener.say(f"{worker.name} has joined")
        state = self.dispatcher.on_ready(worker, version)
        for p in self.pending.values():
            if p.stage == "writing" and p.generator == worker.name:
                p.restart_at(version)
        for lane in ("train", "validate"):
            self.dispatcher.assign(state, state.requests(lane), lane, self.version)

    def _on_failed(self, worker: Handle, message: m.WorkerFailed) -> None:
        if message.bad_input:
            raise InputError(message.reason)
        if message.no_memory:
            raise PipelineError(
                f"{worker.name} ran out of memory ({message.reason}): "
                f"{less_memory(worker.name)}, then --resume"
            )
        raise PipelineError(f"{worker.name}: {message.reason}")

    def _on_worker_lost(self, worker: Handle, why: str) -> None:
        """Replace a worker. Its requests go to the other generators, or, if there are none, to the
        new one. A trainer cannot be replaced here, nor, in a deterministic run, a generator."""
        if any(worker is checker for checker in self.crew.checkers):
            self._replace_checker(worker, why)
            return
        lost = IrreplaceableWorkerLost(f"{worker.name} {why}", trainer=worker is self.crew.trainer)
        if worker is self.crew.trainer or self.deterministic:
            raise lost
        state = self.dispatcher.states.get(worker.name)
        self._note("lost", str(lost))
        if state is None:
            self._on_join_failed(worker)
            return
        begun = sum(lane == "train" for _, lane in state.held.values())
        if state.leaving:
            self.ledger.waste("failed", begun, 0)
            self._on_generator_left(state)
            return
        state.deaths += 1
        if state.deaths > MAX_DEATHS:
            raise PipelineError(
                f"{lost}; it was started {MAX_DEATHS} times and never finished a rollout; if "
                f"it ran out of memory: {less_memory(worker.name)}, then --resume"
            )
        self.ledger.waste("failed", begun, 0)  # how many tokens it had written is not known
        self.listener.say(f"warning: {lost}: starting another one")
        state.starting, state.behind_since, state.stuck_since = True, None, None
        state.handle = self.crew.replace(worker)
        if any(not s.starting for s in self.dispatcher.staying):
            self._reassign(state)  # the new one may take minutes to start

    def _replace_checker(self, worker: Handle, why: str) -> None:
        self._checker_deaths += 1
        self._note("checker", f"{worker.name} {why}: replaced")
        if self._checker_deaths > MAX_DEATHS * max(len(self.crew.checkers), 1):
            raise PipelineError(
                f"{worker.name} {why}; checkers were started {self._checker_deaths - 1} times and "
                "never scored an answer: look at the task's verifier, then --resume"
            )
        for done in self.checks.on_worker_lost(worker, self.crew.replace(worker), why):
            if isinstance(done, ScoredAnswers):
                self._on_scored(done)

    def _watchdog_tick(self, waits_for: str) -> None:
        """Once a second: replace workers that are silent, change the number of generators if that
        was asked for, and write the status for `scalerl doctor`."""
        now = self.clock.now()
        if now - self._last_watchdog < WATCH_SECONDS:
            return
        away, self._last_watchdog = now - self._last_watchdog, now
        if away > PAUSE_INTERVALS * WATCH_SECONDS + self.patience * PAUSE_SHARE:
            # Messages may wait in the pipes: workers are not to blame for a pause of the loop.
            self._shift_deadlines(away)
        else:
            self._replace_silent_workers(waits_for)
        self._rescale()
        self._write_status(waits_for)

    def _replace_silent_workers(self, waits_for: str) -> None:
        trainer = self.crew.trainer
        if self.trainer_since is not None:
            # An idle trainer sends nothing: what counts is the time since it has had work.
            silence = min(trainer.silence, self.clock.now() - self.trainer_since)
            if silence > self.patience:
                self._on_worker_lost(trainer, self._silence_text(silence, waits_for))
        for state in list(self.dispatcher):
            silence = max(state.handle.silence, self.dispatcher.seconds_behind(state))
            if silence > (max(self.patience, START_SECONDS) if state.starting else self.patience):
                self._on_worker_lost(state.handle, self._silence_text(silence, waits_for))
            elif (stuck := self.dispatcher.seconds_stuck(state)) > self.patience:
                many = f"{len(state.held)} rollouts" if len(state.held) > 1 else "one rollout"
                self._on_worker_lost(
                    state.handle, f"holds {many} and has written nothing for {stuck:.0f} s"
                )
        for checker, why in self.checks.replaceable(
            self.patience, max(self.patience, START_SECONDS)
        ):
            self._on_worker_lost(checker, why)

    def _silence_text(self, seconds: float, waits_for: str) -> str:
        return f"has sent nothing for {seconds:.0f} s (the run waits for {waits_for})"

    def _shift_deadlines(self, seconds: float) -> None:
        """Move all deadlines by the seconds for which no message could be received."""
        if self.trainer_since is not None:
            self.trainer_since += seconds
        for state in self.dispatcher:
            if state.behind_since is not None:
                state.behind_since += seconds
            if state.stuck_since is not None:
                state.stuck_since += seconds
        self.checks.shift_deadlines(seconds)

    def _write_status(self, waits_for: str) -> None:
        workers = [self.crew.trainer, *self.crew.generators, *self.crew.checkers]
        stages = [p.stage for p in self.pending.values()]
        self.store.status(
            Status(
                step=self.version,
                waits_for=waits_for,
                pids=self.crew.pids(),
                silent_seconds={w.name: round(w.silence, 1) for w in workers},
                starting=tuple(generator_number(s.handle) for s in self.dispatcher if s.starting),
                stopping=self._stop is not None,
                rollouts=tuple(s.rollouts for s in self.dispatcher),
                under_way=len(stages),
                writing=stages.count("writing"),
                checking=stages.count("checking"),
            )
        )

    # -- the record -------------------------------------------------------------------------------

    def _record_notes(self) -> None:
        for line in self.checks.notes:
            self.listener.say(f"warning: {line}")
            self._note("checker", line)
        self.checks.notes.clear()
        while self.notes:
            self._warn([self.notes.pop(0)])

    def _warn(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.listener.say(f"warning: {line}")
            self._note("warning", line)

    def _note(self, event: EventKind, why: str, **more: Any) -> None:
        line = EventLine(step=self.version, event=event, why=why, **more)
        self.store.append(line)
        self.listener.noted(line)
