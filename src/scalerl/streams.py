"""Standard output and error whose reader is gone: a pipe to `head`, a terminal that was closed."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any

NAMES = {1: "stdout", 2: "stderr"}
#: What a pipe says that nobody reads, a terminal that is gone, and a file that is closed.
GONE = {errno.EPIPE, errno.EIO, errno.EBADF}


def is_closed_stream(error: Exception) -> bool:
    """Whether something could not be written because nobody is there to read it."""
    if isinstance(error, OSError):
        return error.errno in GONE
    return isinstance(error, ValueError) and "closed file" in str(error)


def redirect_unread_streams() -> list[str]:
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
            if not is_closed_stream(error):
                raise
            return memoryview(data).nbytes


def ignore_unread_output() -> None:
    """In a part of a run: what it prints (a reward function, a library) may get lost, and that is
    all."""
    redirect_unread_streams()
    for fd, name in NAMES.items():
        old = getattr(sys, name)
        encoding, errors = getattr(old, "encoding", "utf-8"), getattr(old, "errors", "replace")
        pipe = io.BufferedWriter(_Pipe(fd, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(pipe, encoding, errors, line_buffering=True))
