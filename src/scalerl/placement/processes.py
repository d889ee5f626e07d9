"""Workers as processes of this machine (`placement.backend = "local"`).

Each worker has a pipe and two threads of the main process: one receives, one sends. So a worker
that is frozen with a full pipe, or in the middle of a message, delays no other.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch.multiprocessing  # noqa: F401 - lets tensors in shared memory travel through pipes

from scalerl.errors import InputError, PipelineError
from scalerl.machine import cores
from scalerl.pipeline import messages as m
from scalerl.pipeline.crew import MessageReceived, WorkerLost
from scalerl.pipeline.setup import RunSetup
from scalerl.placement import forkserver
from scalerl.placement.base_crew import BaseCrew, RankGroup, checker_names
from scalerl.placement.child import UNGUARDED, UnguardedScript, end_group, guarded
from scalerl.placement.environment_worker import run_environments
from scalerl.placement.serve_workers import serve_generator, serve_trainer
from scalerl.placement.specs import Specs, evaluation_generator
from scalerl.trainer.interface import TrainerSpec
from scalerl.trainer.rendezvous import rendezvous_store
from scalerl.weights.collective import CollectiveWeights

#: Seconds that processes get to end by themselves.
PATIENCE = 5.0
#: Address of this machine for rendezvous of processes on it.
HERE = "127.0.0.1"
#: Network interface of that address; on other systems than Linux torch finds it by itself.
LOOPBACK = "lo" if sys.platform == "linux" else None


class RealClock:
    """The monotonic clock of this machine."""

    def now(self) -> float:
        return time.monotonic()


class ProcessHandle:
    """A process, the pipe to it, and the two threads that serve the pipe."""

    def __init__(
        self, name: str, inbox: queue.SimpleQueue[Any], entry: Callable[..., None], *arguments: Any
    ) -> None:
        self.name = name
        self._program = (entry, *arguments)
        self._inbox = inbox
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        context: Any = forkserver.context()
        self._conn, theirs = context.Pipe()
        self.process = context.Process(
            name=name, target=forkserver.child_main, daemon=True,
            args=(dict(os.environ), entry, theirs, *arguments),
        )  # fmt: skip
        with forkserver.signals_blocked():
            self.process.start()
        # Workers ignore SIGTERM, with which multiprocessing would end them when this process exits.
        Finalize(self, self._end_all, exitpriority=0)
        theirs.close()
        self._heard = time.monotonic()
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._read, self._write)]
        for thread in self._threads:
            thread.start()

    @property
    def silence(self) -> float:
        return time.monotonic() - self._heard

    def send(self, message: Any) -> None:
        self._outbox.put(message)

    def restart(self) -> ProcessHandle:
        """End the process and start another one like it."""
        self.kill()
        return ProcessHandle(self.name, self._inbox, *self._program)

    def _read(self) -> None:
        while True:
            try:
                message = self._conn.recv()
            except (EOFError, OSError):
                self._inbox.put((self, None))
                return
            except Exception as error:  # reported: an exception of a thread would go unnoticed
                self._fail("sent a message that cannot be unpickled", error)
                return
            self._heard = time.monotonic()
            self._inbox.put((self, message))

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._conn.send(message)
            except OSError:  # it is gone: the reading thread reports that
                return
            except Exception as error:
                self._fail("was to get a message that cannot be pickled", error)
                return

    def _fail(self, what: str, error: Exception) -> None:
        self._inbox.put((self, m.WorkerFailed(f"{what} ({type(error).__name__}: {error})")))

    def end(self) -> str:
        """How the process ended, in words."""
        self.process.join(PATIENCE)
        code = self.process.exitcode
        if code is None:
            return "died: it still runs, but does not answer"
        return f"died: killed by signal {-code}" if code < 0 else f"died: exit code {code}"

    def loss(self) -> WorkerLost:
        """The event of its end; raises InputError where the user's script is the cause."""
        why = self.end()
        if self.process.exitcode == UNGUARDED:
            raise UnguardedScript
        return WorkerLost(self, why)

    def _end_all(self) -> None:
        # A checker leads a group, with what its verifiers and environments have started, which
        # outlives a checker that was killed.
        if self.process.pid and self._program[0] is run_environments:
            end_group(self.process.pid)
        if self.process.is_alive():
            self.process.kill()

    def kill(self) -> None:
        self._end_all()
        self.process.join(PATIENCE)
        self._outbox.put(None)
        for thread in self._threads:  # both end once the pipe has no other end
            thread.join(PATIENCE)
        self._conn.close()


class WorkerProcesses(BaseCrew):
    """Workers as processes: starts, polls, replaces and ends them. An evaluation has no trainer.
    `generator` has the arguments of `serve_generator` after the connection."""

    def __init__(self, generator: tuple[Any, ...] = ()) -> None:
        self._generator = generator
        self._inbox: queue.SimpleQueue[tuple[ProcessHandle, Any]] = queue.SimpleQueue()
        self.trainer: RankGroup[ProcessHandle] = RankGroup(())
        self.generators: list[ProcessHandle] = []
        self.checkers: list[ProcessHandle] = []

    def start_checkers(self, setup: RunSetup) -> None:
        where = setup.recipe.placement
        names, places = checker_names(setup, cores())
        task = setup.task.for_checking()
        self.checkers = [
            self._start(name, run_environments, task, places, where.check_seconds) for name in names
        ]

    def _start(self, name: str, entry: Callable[..., None], *arguments: Any) -> ProcessHandle:
        try:
            return ProcessHandle(name, self._inbox, entry, *arguments)
        except (AttributeError, TypeError, ValueError) as error:  # what pickle raises
            raise PipelineError(
                f"{name} cannot be sent to a process of its own: {error}; define what the recipe "
                "names at the top of a module that can be imported"
            ) from None

    def _start_generator(self, name: str) -> ProcessHandle:
        return self._start(name, guarded, serve_generator, *self._generator)

    @property
    def _workers(self) -> list[ProcessHandle]:
        return [*self.trainer.ranks, *self.generators, *self.checkers]

    def poll(self, seconds: float) -> list[MessageReceived | WorkerLost]:
        found: list[MessageReceived | WorkerLost] = []
        try:
            worker, message = self._inbox.get(timeout=seconds)
            while True:
                # The last messages of a worker that has been replaced are dropped.
                if any(worker is one for one in self._workers):
                    found += self.trainer.events(worker, message)
                worker, message = self._inbox.get_nowait()
        except queue.Empty:
            overdue = self.trainer.overdue()
            return found if overdue is None else [*found, overdue]

    def _restarted(self, worker: ProcessHandle) -> ProcessHandle:
        return worker.restart()

    def pids(self) -> dict[str, int]:
        return {"main": os.getpid()} | {w.name: w.process.pid or 0 for w in self._workers}

    def stop(self, *, at_once: bool = False) -> None:
        try:
            for worker in () if at_once else self._workers:
                worker.send(m.StopWorker())
            deadline = time.monotonic() + PATIENCE  # for all of them together
            for worker in () if at_once else self._workers:
                worker.process.join(max(deadline - time.monotonic(), 0.0))
        finally:  # also when Ctrl-C comes in between
            for worker in self._workers:
                worker.kill()


class EvaluationProcesses(WorkerProcesses):
    """The generators and checkers of an evaluation of these weights."""

    def __init__(self, setup: RunSetup, weights: str) -> None:
        super().__init__(evaluation_generator(setup, weights))
        try:
            for _ in range(setup.recipe.placement.generators):
                self.add_generator()
            self.start_checkers(setup)
        except BaseException:  # Ctrl-C too: no process may be left behind
            self.stop(at_once=True)
            raise


class ProcessCrew(WorkerProcesses):
    """One trainer, some generators and checkers, each a process."""

    def __init__(self, setup: RunSetup, checkpoint: Path | None = None) -> None:
        specs = Specs.from_setup(setup, checkpoint, default_channel="shared-memory")
        if not specs.channel.across_processes:
            raise InputError(
                f"placement.weights={setup.recipe.placement.weights} stays within one process: "
                "set placement.weights=auto, or placement.backend=inline"
            )
        where = setup.recipe.placement
        channel = specs.channel
        super().__init__(specs.generator(deterministic=where.deterministic))
        if isinstance(channel, CollectiveWeights):
            self._weights_rendezvous, port = rendezvous_store(HERE)
            channel.set_rendezvous(HERE, port, LOOPBACK, setup.device)
        self.trainer = RankGroup(
            [self._start(name, guarded, serve_trainer, specs.make_trainer, spec, channel)
             for name, spec in self._ranks(specs)]
        )  # fmt: skip
        for _ in range(where.generators):
            self.add_generator()
        self.start_checkers(setup)

    def _ranks(self, specs: Specs) -> list[tuple[str, TrainerSpec]]:
        """Name and spec of each rank of the trainer; their rendezvous is on this machine."""
        if specs.trainers == 1:
            return [("trainer", specs.trainer)]
        self._rendezvous, port = rendezvous_store(HERE)
        return specs.ranks(HERE, port, LOOPBACK)
