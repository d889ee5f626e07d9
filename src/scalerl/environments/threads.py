"""Threads for environments that block: one for each environment, and a limit for all together."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any


class ThreadLimit:
    """The number of blocking calls that run at once in all environments of a worker. A call that is
    abandoned gives up its place and is counted as hung until it returns."""

    def __init__(self, places: int) -> None:
        self._room = asyncio.Semaphore(places)
        #: Calls that were abandoned and still run in their threads.
        self.hung = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place. The time limit of the call stands still meanwhile: an environment is
        not to blame for a queue."""
        with _time_stands_still():
            await self._room.acquire()
        try:
            yield
        finally:
            self._room.release()


#: The limit of the environment worker that the current call runs in; None outside of workers.
THREAD_LIMIT: ContextVar[ThreadLimit | None] = ContextVar("THREAD_LIMIT", default=None)
#: The time limit of the current call, while one runs.
TIME_LIMIT: ContextVar[asyncio.Timeout | None] = ContextVar("TIME_LIMIT", default=None)


@contextmanager
def _time_stands_still() -> Iterator[None]:
    """Stop the time limit of the current call. With several waits at once (tools that are called
    side by side) the time goes on as soon as the first one ends."""
    limit, now = TIME_LIMIT.get(), asyncio.get_running_loop().time
    when = None if limit is None else limit.when()
    if limit is None or when is None:
        yield
        return
    left = when - now()
    with suppress(RuntimeError):  # the call is over: this is a task that it left behind
        limit.reschedule(None)
    try:
        yield
    finally:
        with suppress(RuntimeError):
            limit.reschedule(now() + left)


class OwnThread:
    """Runs blocking calls in one thread, so that an event loop goes on meanwhile.

    One thread for all calls of an environment: SQLite connections and browser drivers may be used
    in the thread that made them only. Not a pool: calls that hang would use up its threads, and a
    pool waits for them when the process ends. The thread starts with the first call, and ends with
    `stop` or with this object.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Calls that have not returned, also those that were abandoned.
        self.unfinished = 0

    async def run(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The result of a function: awaited if it is async, called in the thread otherwise."""
        found = (
            function(*args, **named)
            if inspect.iscoroutinefunction(function)
            else await self._with_place(partial(function, *args, **named))
        )
        return await found if inspect.isawaitable(found) else found

    async def _with_place(self, call: Callable[[], Any]) -> Any:
        limit = THREAD_LIMIT.get()
        if limit is None:
            return await self._in_thread(call, None)
        async with limit.place():
            return await self._in_thread(call, limit)

    async def _in_thread(self, call: Callable[[], Any], limit: ThreadLimit | None) -> Any:
        events = asyncio.get_running_loop()
        settled: asyncio.Future[Any] = events.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            self.unfinished -= 1
            if settled.cancelled():
                if limit is not None:
                    limit.hung -= 1
            elif error is None:
                settled.set_result(result)
            elif isinstance(error, StopIteration):  # which a future refuses
                settled.set_exception(RuntimeError("StopIteration"))
            else:
                settled.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop may have been closed meanwhile
                events.call_soon_threadsafe(settle, result, error)

        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._calls,), daemon=True)
            self._thread.start()
            # An environment that never stops its thread must not leave it behind.
            weakref.finalize(self, self._calls.put, None)
        self.unfinished += 1
        self._calls.put(work)
        try:
            return await settled
        except asyncio.CancelledError:
            if limit is not None and settled.cancelled():
                limit.hung += 1
            raise

    def later(self, function: Callable[[], Any]) -> None:
        """Call a function in the thread after what it is in. Its result is not waited for, and an
        async one is not awaited."""

        def work() -> None:
            with suppress(BaseException):
                found = function()
                if inspect.iscoroutine(found):
                    found.close()

        self._calls.put(work)

    def stop(self) -> None:
        """End the thread after the call that it is in."""
        if self._thread is not None:
            self._calls.put(None)


# Not a method: a thread with a reference to its OwnThread would keep it for ever.
def _work(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it refers to the OwnThread
