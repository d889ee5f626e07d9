"""Daemon threads for calls that may never return, and the memory that threads free.

A read of a file on a network file system that is gone waits in the kernel, and no signal ends it.
The calls that read files are therefore made by daemon threads: the caller stops waiting after a
while, and the process can exit without them. (The threads of `concurrent.futures` and of anyio are
waited for when the interpreter ends.)
"""

from __future__ import annotations

import asyncio
import ctypes
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: The parameter of glibc's mallopt that limits the heaps of all threads together.
M_ARENA_MAX = -8


class Call(Generic[T]):
    """A call that another thread makes."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._done = threading.Event()
        self._found: T
        self._error: BaseException | None = None
        self._then: Callable[[], None] = lambda: None
        self.begun = time.time()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; returns whether the call is done."""
        return self._done.wait(seconds)

    def result(self) -> T:
        """The call's return value, or its exception raised; only once it is done."""
        if self._error is not None:
            raise self._error
        return self._found

    def run(self) -> None:
        try:
            self._found = self._call()
        except BaseException as error:
            self._error = error
        self._done.set()
        self._then()

    async def finished(self, seconds: float) -> T:
        """The result, awaited by the event loop; TimeoutError after `seconds`."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(ready.set)

        # Set before `done` is checked: a call that ends in between notifies as well.
        self._then = notify
        if not self.done:
            await asyncio.wait_for(ready.wait(), seconds)
        return self.result()


class DaemonThreads:
    """Up to `most` daemon threads, started as needed. Further calls wait in a queue."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._queue: queue.SimpleQueue[Call[Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        #: Threads without a call, minus calls without a thread.
        self._idle = 0
        self._threads = 0

    def submit(self, call: Callable[[], T]) -> Call[T]:
        job = Call(call)
        with self._lock:
            if self._idle > 0 or self._threads >= self._most:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._queue.put(job)
        return job

    @property
    def busy(self) -> bool:
        """Whether a call has not returned."""
        return self._idle < self._threads

    def _work(self) -> None:
        while True:
            self._queue.get().run()
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
