"""A thread of its own for each environment that blocks."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any


class OwnThread:
    """Runs blocking calls in one thread, so that an event loop goes on meanwhile.

    One thread for all calls of an environment: SQLite connections and browser drivers may be used
    in the thread that made them only. Not a pool: calls that hang would use up its threads, and a
    pool waits for them when the process ends. The thread starts with the first call.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Calls that have not returned, also those that nobody waits for any more.
        self.unfinished = 0

    async def run(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The result of a function: awaited if it is async, called in the thread otherwise."""
        found = (
            function(*args, **named)
            if inspect.iscoroutinefunction(function)
            else await self._in_thread(partial(function, *args, **named))
        )
        return await found if inspect.isawaitable(found) else found

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        events = asyncio.get_running_loop()
        settled: asyncio.Future[Any] = events.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            self.unfinished -= 1
            if settled.done():
                return  # cancelled meanwhile
            if error is None:
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
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self.unfinished += 1
        self._calls.put(work)
        return await settled

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def stop(self) -> None:
        """End the thread after the call that it is in."""
        if self._thread is not None:
            self._calls.put(None)
