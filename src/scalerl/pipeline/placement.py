"""Where the parts run: processes on this machine. Start them, watch them, replace them, stop them.

The loop only knows `trainer`, `generators`, `wait`, `restart` and `stop`: another placement (many
machines) gives it the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

import torch.multiprocessing as mp

from scalerl.pipeline import messages as m
from scalerl.pipeline.generator_process import run_generator
from scalerl.pipeline.trainer_process import run_trainer
from scalerl.pipeline.weights import Layout, SharedWeights

#: Seconds a process is given to end by itself.
PATIENCE = 5.0


class PipelineError(RuntimeError):
    """A part of the run failed or did not answer in time; one line says which and what to do."""


class Lost(PipelineError):
    """A process is gone, or as good as gone. What it held is lost; it can be replaced."""

    def __init__(self, worker: Worker, why: str) -> None:
        super().__init__(f"{worker.name} {why}")
        self.worker = worker


class Worker:
    """A process and the pipe to it."""

    def __init__(
        self, name: str, entry: Callable[..., None], *arguments: Any, patience: float = 600.0
    ) -> None:
        self.name = name
        self._make = (entry, arguments, patience)
        context = mp.get_context("spawn")
        ours, theirs = context.Pipe()
        _limit(ours, patience)
        self.conn: Connection = ours
        self.process = context.Process(
            target=entry, args=(theirs, *arguments), name=name, daemon=True
        )
        with _no_ctrl_c():
            self.process.start()
        # Workers ignore SIGTERM, by which multiprocessing would end them when this process exits.
        Finalize(self, self.process.kill, exitpriority=0)
        theirs.close()
        self.heard = time.monotonic()

    def again(self) -> Worker:
        """The same process anew; the old one is ended first."""
        self.kill()
        entry, arguments, patience = self._make
        return Worker(self.name, entry, *arguments, patience=patience)

    def send(self, message: Any) -> None:
        try:
            self.conn.send(message)
        except OSError:  # gone, or it has not read its messages for as long as our patience lasts
            raise Lost(self, f"takes no messages: {self._end()}") from None

    def receive(self) -> Any:
        """The next message; only call it when there is one."""
        try:
            message = self.conn.recv()
        except (EOFError, OSError):
            raise Lost(self, f"died: {self._end()}") from None
        self.heard = time.monotonic()
        if isinstance(message, m.Failed):
            raise PipelineError(f"{self.name}: {message.reason}")
        return message

    @property
    def silence(self) -> float:
        """Seconds since it last said anything."""
        return time.monotonic() - self.heard

    def _end(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            return "it still runs, but does not answer"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join(PATIENCE)
        self.conn.close()


class LocalPlacement:
    """One trainer and some generators, as processes; weights go through shared memory."""

    def __init__(
        self,
        trainer: m.TrainerSpec,
        generator: m.GeneratorSpec,
        generators: int,
        layout: Layout,
        patience: float,
    ) -> None:
        self.shared = SharedWeights(layout)
        self.trainer = Worker("trainer", run_trainer, trainer, self.shared, patience=patience)
        self.generators = [
            Worker(f"generator {i}", run_generator, generator, self.shared, patience=patience)
            for i in range(generators)
        ]

    @property
    def workers(self) -> list[Worker]:
        return [self.trainer, *self.generators]

    def wait(self, seconds: float) -> list[Worker]:
        """The workers that have something to say (their end included), waiting for at most so
        long."""
        found = wait([w.conn for w in self.workers], timeout=seconds)
        return [w for w in self.workers if w.conn in found]

    def restart(self, i: int) -> None:
        """A new generator in the place of number i; it reports when it is ready."""
        self.generators[i] = self.generators[i].again()

    def pids(self) -> dict[str, int | None]:
        return {"main": os.getpid(), **{w.name: w.process.pid for w in self.workers}}

    def stop(self, *, at_once: bool = False) -> None:
        """Ask all to end, and end those that do not; without asking if it is to be at once."""
        try:
            for worker in () if at_once else self.workers:
                with contextlib.suppress(OSError):  # it may have ended already
                    worker.conn.send(m.Stop())
            for worker in () if at_once else self.workers:
                worker.process.join(PATIENCE)
        finally:  # also when Ctrl-C comes in between
            for worker in self.workers:
                worker.kill()


@contextlib.contextmanager
def _no_ctrl_c() -> Iterator[None]:
    """A process that is started in here does not see Ctrl-C until it ignores it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # its start would end our mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _limit(conn: Connection, seconds: float) -> None:
    """A process that neither reads nor writes its end must not hold ours for ever."""
    with socket.socket(fileno=os.dup(conn.fileno())) as end:
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
