"""What the processes of all workers share: how they begin, and how they end with the main one."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from scalerl.errors import InputError, PipelineError, is_out_of_memory
from scalerl.pipeline import messages as m
from scalerl.streams import ignore_unread_output

#: Exit code of a worker that, while it was starting, reached the very call of `train` that was
#: starting it: the script lacks `if __name__ == "__main__":`.
UNGUARDED = 87


class UnguardedScript(InputError):
    """A script starts processes at import: every process it starts would do so again."""

    def __init__(self) -> None:
        super().__init__(
            'put the call of train() or evaluate() under `if __name__ == "__main__":`, for it '
            "starts processes"
        )


def guarded(conn: Connection, serve: Callable[..., None], *arguments: Any) -> None:
    """Call `serve` in a worker process; an error of it is sent to the main process, as one line."""
    # Ctrl-C and a closed terminal reach the whole process group; the main process handles them.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # (Windows has no SIGHUP)
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    _die_with_parent()
    ignore_unread_output()
    try:
        serve(conn, *arguments)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process is gone: nothing is left to do
    except Exception as error:  # reported by the main process, which knows the worker's name
        conn.send(failure(error))


def failure(error: Exception) -> m.WorkerFailed:
    """The message about an error that ends a worker."""
    if isinstance(error, InputError | PipelineError):  # its text is a line for people already
        return m.WorkerFailed(str(error), isinstance(error, InputError))
    text = str(error).splitlines()
    reason = ": ".join([type(error).__name__, *text[:1]])
    return m.WorkerFailed(reason, no_memory=is_out_of_memory(error))


#: Pid of this worker's parent: the main process, or the fork server, which ends with it. Empty in
#: a process that is no worker.
_PARENT: list[int] = []


def orphaned() -> bool:
    """Whether the parent of this worker is gone. Linux has killed the worker by then; on other
    systems it must look for itself."""
    return bool(_PARENT) and os.getppid() != _PARENT[0]


def _die_with_parent() -> None:
    """Let Linux kill this process when its parent ends, however it ends."""
    _PARENT[:] = [os.getppid()]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    main = multiprocessing.parent_process()
    if main is not None and not main.is_alive():
        sys.exit()  # it ended before prctl: no signal will come


def end_group(pid: int) -> None:
    """Kill a process that leads its own process group, and everything it has started; also what is
    left of the group after the process itself has ended."""
    try:
        try:
            # Another process may have got the number of one that has ended, but hardly one of this
            # session that leads a group; and none while the group has members.
            ours = os.getpgid(pid) == pid and os.getsid(pid) == os.getsid(0)
        except ProcessLookupError:
            ours = True
        if ours:
            os.killpg(pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):  # Windows; it is gone
        return
