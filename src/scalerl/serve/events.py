"""Server-sent events: each listener is told everything, and from then on what has changed since it
was last told, however slow it is. News about one run replaces older news about it, so nothing piles
up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from scalerl.files import to_json_bytes

#: Seconds of silence after which a line is sent that says nothing, so that a lost connection is
#: noticed on both sides.
BEAT = 10.0
#: Listeners at once.
MAX_LISTENERS = 64


class _Listener:
    def __init__(self) -> None:
        self.news: dict[str, dict[str, Any]] = {}
        self.some = asyncio.Event()

    def add(self, news: dict[str, Any]) -> None:
        key = news.get("id") or news.get("run", {}).get("id") or news["kind"]
        old = self.news.pop(key, None)
        if old is not None and "new" in old:
            # New points that were not sent: their run is read again as a whole.
            news = {k: v for k, v in news.items() if k not in ("new", "from")}
        self.news[key] = news
        self.some.set()


class Hub:
    """Who listens."""

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
            listener.some.set()

    @property
    def full(self) -> bool:
        return len(self._listeners) >= MAX_LISTENERS

    def tell(self, news: dict[str, Any]) -> None:
        """From any thread."""
        if self._loop is not None and self._listeners and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, news)

    def _tell(self, news: dict[str, Any]) -> None:
        for listener in self._listeners:
            listener.add(news)

    async def stream(self) -> AsyncIterator[bytes]:
        """The events for one listener, until it goes."""
        mine = _Listener()
        self._listeners.add(mine)
        try:
            yield b"retry: 1000\nevent: all\ndata: " + self._everything() + b"\n\n"
            while not self._closed:
                try:
                    await asyncio.wait_for(mine.some.wait(), BEAT)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                mine.some.clear()
                news, mine.news = list(mine.news.values()), {}
                for each in news:
                    text = to_json_bytes(each)
                    yield b"event: " + each["kind"].encode() + b"\ndata: " + text + b"\n\n"
        finally:
            self._listeners.discard(mine)
