"""Standard output and error without a reader: a pipe to `head`, a terminal that was closed."""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NAMES = {1: "stdout", 2: "stderr"}
#: Error numbers of writes to a pipe without a reader, a closed terminal, and a closed file.
CLOSED = {errno.EPIPE, errno.EIO, errno.EBADF}


def is_closed_stream(error: Exception) -> bool:
    """Whether a write failed because its stream has no reader any more, or is closed."""
    if isinstance(error, OSError):
        return error.errno in CLOSED
    return isinstance(error, ValueError) and "closed file" in str(error)


def redirect_unread_streams() -> list[str]:
    """Redirect standard streams without a reader to the null device; the names of those."""
    if not hasattr(select, "poll"):  # Windows
        return []
    dead = [fd for fd in NAMES if _has_no_reader(fd)]
    if dead:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in dead:
            os.dup2(nowhere, fd)
        os.close(nowhere)
    return [NAMES[fd] for fd in dead]


def _has_no_reader(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:  # closed from the start: the next file that is opened would get its number
        return True
    poll = select.poll()
    poll.register(fd, 0)
    return any(found & (select.POLLERR | select.POLLHUP) for _, found in poll.poll(0))


class _Pipe(io.FileIO):
    """A stream that accepts all data, and drops what cannot be written for lack of a reader."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not is_closed_stream(error):
                raise
            return memoryview(data).nbytes


def ignore_unread_output() -> None:
    """In a worker: output of a reward function or a library may be lost, but must never raise."""
    redirect_unread_streams()
    for fd, name in NAMES.items():
        old = getattr(sys, name)
        encoding, errors = getattr(old, "encoding", "utf-8"), getattr(old, "errors", "replace")
        pipe = io.BufferedWriter(_Pipe(fd, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(pipe, encoding, errors, line_buffering=True))


@contextmanager
def survive_hangup(then: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let the program survive SIGHUP (the terminal is closed, the ssh connection breaks): output is
    redirected, and `then` is called. Under nohup the signal is ignored anyway."""

    def hang_up(number: int, frame: FrameType | None) -> None:
        redirect_unread_streams()
        then()

    which: Any = getattr(signal, "SIGHUP", None)  # Windows has none
    ours = threading.current_thread() is threading.main_thread()
    if which is None or not ours or signal.getsignal(which) is not signal.SIG_DFL:
        yield
        return
    signal.signal(which, hang_up)
    try:
        yield
    finally:
        signal.signal(which, signal.SIG_DFL)
