"""The server of a process: started when a driver asks for the address, stopped after the last
session."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from typing import TYPE_CHECKING

from scalerl.environments.endpoint.session import Session, SessionOver
from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.environments.endpoint.app import QuietServer

#: Connections that may wait to be accepted: several hundred sessions may begin at once.
_BACKLOG = 1024
#: Seconds that stopping takes at most: the server looks ten times a second, and gives connections
#: a second.
_STOP_WAIT = 5.0


class Endpoint:
    """The sessions on an event loop, and the server that they share."""

    def __init__(self, events: asyncio.AbstractEventLoop) -> None:
        self.events = events
        self.sessions: dict[str, Session] = {}
        #: Drivers in threads ask for the address while others leave.
        self._changing = threading.Lock()
        self._port = 0
        self._server: QuietServer | None = None
        self._serving: asyncio.Task[None] | None = None

    def enter(self, session: Session) -> str:
        """Add a session; returns its key."""
        key = f"sk-{secrets.token_hex(16)}"
        self.sessions[key] = session
        return key

    async def leave(self, key: str) -> None:
        """Remove a session, and stop the server after the last one."""
        with self._changing:
            self.sessions.pop(key, None)
            if self.sessions:
                return
            _ENDPOINTS.pop(self.events, None)
            server, serving = self._server, self._serving
            self._server = self._serving = None
        if server is not None:
            server.should_exit = True
        if serving is not None:  # None: it has not begun, and ends as soon as it does
            await asyncio.wait({serving}, timeout=_STOP_WAIT)
            serving.cancel()

    def url(self) -> str:
        """The address for clients. May be called in any thread; starts the server."""
        with self._changing:
            if not self.sessions:
                raise SessionOver("the episode is over")
            if self._server is None:
                self._start()
        return f"http://127.0.0.1:{self._port}/v1"

    def _start(self) -> None:
        try:
            from scalerl.environments.endpoint.app import make_server
        except ModuleNotFoundError as error:
            raise InputError(
                f"an endpoint for drivers needs {error.name}: pip install 'scalerl[serve]'"
            ) from None
        server = self._server = make_server(self.sessions)
        # Clients may connect from now on: they wait until the server accepts them.
        listening = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._port = listening.getsockname()[1]

        def serve() -> None:
            self._serving = self.events.create_task(_serve(server, listening))

        self.events.call_soon_threadsafe(serve)


async def _serve(server: QuietServer, listening: socket.socket) -> None:
    try:
        await server.serve(sockets=[listening])
    finally:
        # A server that is stopped while it starts leaves its sockets open.
        for each in getattr(server, "servers", ()):
            each.close()
        listening.close()


#: Endpoints with sessions.
_ENDPOINTS: dict[asyncio.AbstractEventLoop, Endpoint] = {}


def endpoint_here() -> Endpoint:
    """The endpoint of the running event loop: an environment worker has one."""
    events = asyncio.get_running_loop()
    return _ENDPOINTS.setdefault(events, Endpoint(events))
