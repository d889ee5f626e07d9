"""Standard output and error whose reader is gone: `| head`, a terminal that was closed."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable
from typing import Any

from scalerl.runs.listener import Listener

NAMES = {1: "stdout", 2: "stderr"}
#: What a pipe says that nobody reads, a terminal that is gone, and a file that is closed.
GONE = {errno.EPIPE, errno.EIO, errno.EBADF}


def reader_is_gone(error: Exception) -> bool:
    """Whether something could not be written because nobody is there to read it."""
    if isinstance(error, OSError):
        return error.errno in GONE
    return isinstance(error, ValueError) and "closed file" in str(error)


def let_go() -> list[str]:
    """Send what nobody reads to nowhere: the names of those streams."""
    if not hasattr(select, "poll"):  # Windows
        return []
    dead = [fd for fd in NAMES if _nobody_reads(fd)]
    if dead:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in dead:
            os.dup2(nowhere, fd)
        os.close(nowhere)
    return [NAMES[fd] for fd in dead]


def _nobody_reads(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:  # closed from the start; what is opened next would take its number
        return True
    poll = select.poll()
    poll.register(fd, 0)
    return any(found & (select.POLLERR | select.POLLHUP) for _, found in poll.poll(0))


class _Pipe(io.FileIO):
    """Takes what it is given, whether anybody reads it or not."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not reader_is_gone(error):
                raise
            return memoryview(data).nbytes


def make_unbreakable() -> None:
    """In a part of a run: what it prints (a reward function, a library) may get lost, and that is
    all."""
    let_go()
    for fd, name in NAMES.items():
        old = getattr(sys, name)
        encoding, errors = getattr(old, "encoding", "utf-8"), getattr(old, "errors", "replace")
        pipe = io.BufferedWriter(_Pipe(fd, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(pipe, encoding, errors, line_buffering=True))


class WhileSomebodyListens(Listener):
    """Tells a listener whatever happens. When the streams it writes to have lost their reader, the
    run goes on without: `lost` is told so, in one line."""

    def __init__(self, listener: Listener, lost: Callable[[str], None]) -> None:
        self._listener: Listener | None = listener
        self._lost = lost

    def _tell(self, name: str, *what: Any) -> None:
        if self._listener is None:
            return
        try:
            getattr(self._listener, name)(*what)
        except (OSError, ValueError) as error:
            if not reader_is_gone(error):
                raise
            names = let_go()
            if not names:  # a stream of its own
                self._listener = None
            closed = " and ".join(names) or "the listener's stream"
            self._lost(f"nobody listens any more ({closed} is closed); the run goes on")


def _telling(name: str) -> Callable[..., None]:
    return lambda self, *what: self._tell(name, *what)


# Everything that a listener can be told, now and in later versions.
for _name in [name for name in vars(Listener) if not name.startswith("_")]:
    setattr(WhileSomebodyListens, _name, _telling(_name))
