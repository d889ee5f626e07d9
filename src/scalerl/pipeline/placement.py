"""Processes on this machine: start them, watch them, stop them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch.multiprocessing as mp

from scalerl.pipeline import messages as m

#: Seconds a process is given to end by itself.
PATIENCE = 5.0


class PipelineError(RuntimeError):
    """A part of the run failed or did not answer in time; one line says which and what to do."""


class Worker:
    """A process and the pipe to it."""

    def __init__(self, name: str, entry: Callable[..., None], *arguments: Any) -> None:
        context = mp.get_context("spawn")
        self.name = name
        ours, theirs = context.Pipe()
        self.conn: Connection = ours
        self.process = context.Process(
            target=entry, args=(theirs, *arguments), name=name, daemon=True
        )
        self.process.start()
        theirs.close()

    def send(self, message: Any) -> None:
        try:
            self.conn.send(message)
        except (BrokenPipeError, OSError):
            raise PipelineError(f"{self.name} is gone: {self._end()}") from None

    def receive(self) -> Any:
        """The next message; only call it when there is one."""
        try:
            message = self.conn.recv()
        except (EOFError, OSError):
            raise PipelineError(f"{self.name} died: {self._end()}") from None
        if isinstance(message, m.Failed):
            raise PipelineError(f"{self.name}: {message.reason}")
        return message

    def _end(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        return "it still runs" if code is None else f"exit code {code}; --resume goes on"

    def stop(self) -> None:
        """Ask it to end, and end it if it does not."""
        with contextlib.suppress(BrokenPipeError, OSError):  # it may have ended already
            self.conn.send(m.Stop())
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(PATIENCE)
        self.conn.close()


def await_any(workers: list[Worker], seconds: float) -> list[Worker]:
    """The workers that have something to say, waiting for at most so long."""
    found = wait([w.conn for w in workers], timeout=seconds)
    return [w for w in workers if w.conn in found]
