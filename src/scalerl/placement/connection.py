"""The worker's end of its connection to the main process, and the filter for old messages."""

from __future__ import annotations

import contextlib
import queue
from typing import Any, Protocol

from scalerl.pipeline import messages as m


class WorkerConnection(Protocol):
    """The three methods of a multiprocessing pipe that workers use."""

    def poll(self, timeout: float) -> bool:
        """Whether a message can be received, after waiting at most `timeout` seconds."""
        ...

    def recv(self) -> Any: ...

    def send(self, obj: Any) -> None: ...


class QueueConnection:
    """A connection made of two queues of this process."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A queue cannot be peeked into: `poll` takes the message out and keeps it for `recv`.
        self._next: list[Any] = []

    def poll(self, timeout: float) -> bool:
        with contextlib.suppress(queue.Empty):
            if not self._next:
                self._next.append(self.inbox.get(timeout=timeout) if timeout else
                                  self.inbox.get_nowait())  # fmt: skip
        return bool(self._next)

    def recv(self) -> Any:
        return self._next.pop() if self._next else self.inbox.get()

    def send(self, obj: Any) -> None:
        self.outbox.put(obj)


class SessionFilter:
    """Drops messages that a generator sent before its current session.

    A generator starts a new session whenever another trainer takes over (`SwitchTrainer`). Its
    `WorkerReady` carries the number of the session; what arrives before it is from the old one.

    >>> session = SessionFilter()
    >>> session.current(["a report"])
    ['a report']
    >>> session.start()
    1
    >>> session.current(["an old report", m.WorkerReady(30)])
    []
    >>> session.current(["another", m.WorkerReady(28, session=1), "a new report"])[1:]
    ['a new report']
    """

    def __init__(self) -> None:
        self.number = 0
        self._ready = True

    def start(self) -> int:
        """Begin the next session; its number."""
        self.number += 1
        self._ready = False
        return self.number

    def current(self, messages: list[Any]) -> list[Any]:
        """Messages of the current session: everything from its `WorkerReady` on. A `WorkerFailed`
        is passed on whatever the session, since the process has failed in either."""
        if self._ready:
            return messages
        for i, message in enumerate(messages):
            if isinstance(message, m.WorkerFailed):
                return [message]
            if isinstance(message, m.WorkerReady) and message.session == self.number:
                self._ready = True
                return messages[i:]
        return []
