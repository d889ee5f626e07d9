"""Server-sent events: a page receives the whole list first, then only changes.

A newer event about a run replaces an older one that was not sent yet, so that a slow page never
piles up events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from scalerl.files import to_json_bytes

#: Seconds without events after which a comment line is sent, so that both sides notice a lost
#: connection.
HEARTBEAT_SECONDS = 10.0
#: Open event streams; each page has one.
MAX_LISTENERS = 64


class _Listener:
    def __init__(self) -> None:
        self.pending: dict[str, dict[str, Any]] = {}
        self.ready = asyncio.Event()

    def add(self, event: dict[str, Any]) -> None:
        key = event.get("id") or event.get("run", {}).get("id") or event["kind"]
        old = self.pending.pop(key, None)
        if old is not None and "new" in old:
            # New points of the older event are dropped, so that the page must read the run again:
            # without "from" it does.
            event = {k: v for k, v in event.items() if k not in ("new", "from")}
        self.pending[key] = event
        self.ready.set()


class EventHub:
    """All open event streams."""

    def __init__(self, everything: Callable[[], bytes]) -> None:
        self._everything = everything
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[_Listener] = set()
        self._closed = False

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """End every stream, so that the server can stop."""
        self._closed = True
        for listener in self._listeners:
            listener.ready.set()

    @property
    def full(self) -> bool:
        return len(self._listeners) >= MAX_LISTENERS

    def publish(self, event: dict[str, Any]) -> None:
        """Send an event to every stream; callable from any thread."""
        if self._loop is not None and self._listeners and not self._loop.is_closed():
            # asyncio.Event may be set by the thread of its event loop only.
            self._loop.call_soon_threadsafe(self._add_to_all, event)

    def _add_to_all(self, event: dict[str, Any]) -> None:
        for listener in self._listeners:
            listener.add(event)

    async def stream(self) -> AsyncIterator[bytes]:
        """The events for one page, until it disconnects."""
        mine = _Listener()
        self._listeners.add(mine)
        try:
            yield b"retry: 1000\nevent: all\ndata: " + self._everything() + b"\n\n"
            while not self._closed:
                try:
                    await asyncio.wait_for(mine.ready.wait(), HEARTBEAT_SECONDS)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                mine.ready.clear()
                events, mine.pending = list(mine.pending.values()), {}
                for each in events:
                    text = to_json_bytes(each)
                    yield b"event: " + each["kind"].encode() + b"\ndata: " + text + b"\n\n"
        finally:
            self._listeners.discard(mine)
