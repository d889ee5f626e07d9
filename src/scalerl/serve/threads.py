"""Daemon threads for calls that may never return, and the memory that threads free.

A read of a file on a network file system that is gone waits in the kernel, and no signal ends it.
The calls that read files are therefore made by daemon threads: the caller stops waiting after a
while, and the process can exit without them. (The threads of `concurrent.futures` and of anyio are
waited for when the interpreter ends.)
"""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

#: The parameter of glibc's mallopt that limits the heaps of all threads together.
M_ARENA_MAX = -8


class DaemonThreads:
    """Up to `most` daemon threads, started as needed. Further calls wait in a queue."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        #: Threads without a call, minus calls without a thread.
        self._idle = 0
        self._threads = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """The call's future. A caller that stops waiting for it does not cancel the call."""
        future: Future[T] = Future()
        # From here on `cancel`, which asyncio calls when a wait times out, has no effect.
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._idle > 0 or self._threads >= self._most:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._queue.put((future, call))
        return future

    @property
    def busy(self) -> bool:
        """Whether a call has not returned."""
        return self._idle < self._threads

    def _work(self) -> None:
        while True:
            future, call = self._queue.get()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            # Not kept until the next call: it may be large.
            del future, call
            with self._lock:
                self._idle += 1


# glibc gives each thread a heap of its own and keeps what is freed there. A server runs for weeks
# and fits in several threads, so its memory would grow to several times what is in use.


def _c_function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def one_heap() -> None:
    """Let all threads share one heap, where the C library can. Call before the first thread."""
    mallopt = _c_function("mallopt")
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)


def give_back_memory() -> None:
    """Return freed memory, such as that of fits of long runs, to the operating system."""
    trim = _c_function("malloc_trim")
    if trim is not None:
        trim(0)
