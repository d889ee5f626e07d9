"""Connections with deadlines.

uvicorn closes a connection that is idle between two requests (`timeout_keep_alive`), but waits for
ever for the rest of a request once its first byte has arrived, and for a client that does not read
its response. Each of these holds a file descriptor, of which a process has about a thousand.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Connections at once; further ones are closed at once. A browser has up to seven for
#: each page that is open.
MAX_CONNECTIONS = 256
#: Seconds from the start of a connection, or from the first byte of a further request, to the end
#: of the headers; also for the rest of a body after its response. (`responses.BODY_SECONDS` bounds
#: a body that is waited for.)
HEADER_SECONDS = 10.0
#: Seconds that a client may read nothing while its answer waits to be sent.
STALLED_SECONDS = 60.0


class Connection(H11Protocol):
    """uvicorn's connection by h11, the one of its two parsers that limits the size of headers."""

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_headers()
        else:
            self._headers_came()

    def _expect_headers(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _headers_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        self._was_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._was_read()
        self._expect_reading()

    def _expect_reading(self, unsent: int | None = None) -> None:
        """Drop the connection if the client has read no byte of `unsent` since the last call."""
        now = self.transport.get_write_buffer_size()
        # abort, since close would wait until the client has read everything.
        if unsent is not None and now >= unsent:
            self.transport.abort()
            return
        self._stalled = self.loop.call_later(STALLED_SECONDS, self._expect_reading, now)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._was_read()

    def _was_read(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
