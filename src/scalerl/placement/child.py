"""What all child processes share: how they begin, and how they end with the main one."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

from scalerl.errors import InputError, PipelineError, is_out_of_memory
from scalerl.pipeline import messages as m
from scalerl.streams import make_unbreakable

#: Exit code of a process whose start came back to the call of `train` that started it.
UNGUARDED = 87
GUARD = (
    'put the call of train() or evaluate() under `if __name__ == "__main__":`, for it starts '
    "processes"
)


def guarded(conn: Connection, serve: Callable[[], None]) -> None:
    """Ctrl-C and a terminal that is closed are for the main process; what goes wrong here is told
    to it in one line."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # (Windows has no SIGHUP)
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    _die_with_parent()
    make_unbreakable()
    try:
        serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the main process is gone: nothing is left to do
    except Exception as error:  # told, not hidden
        conn.send(failure(error))


def failure(error: Exception) -> m.Failed:
    """What a part says of an error that ends it."""
    if isinstance(error, InputError | PipelineError):  # a line for people
        return m.Failed(str(error), isinstance(error, InputError))
    text = str(error).splitlines()
    reason = ": ".join([type(error).__name__, *text[:1]])
    return m.Failed(reason, no_memory=is_out_of_memory(error))


#: Where this process came from, if it is a part: the main one, or the nursery, which ends with it.
_PARENT: list[int] = []


def orphaned() -> bool:
    """Whether the main process is gone: elsewhere than on Linux nobody ends us then."""
    return bool(_PARENT) and os.getppid() != _PARENT[0]


def _die_with_parent() -> None:
    """Linux ends this process when the main one is gone, however that came about."""
    _PARENT[:] = [os.getppid()]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    main = multiprocessing.parent_process()
    if main is not None and not main.is_alive():
        sys.exit()  # it was gone before we could ask for that


def end_group(pid: int) -> None:
    """End a process and all it has started, if it leads a group of its own."""
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):  # Windows; it is gone
        return
