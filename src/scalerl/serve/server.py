"""`scalerl serve`: one process that listens on one port."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn

from scalerl.errors import InputError
from scalerl.serve.app import Site, make_app
from scalerl.serve.catalogue import Catalogue
from scalerl.serve.connections import Connection
from scalerl.serve.discovery import Roots
from scalerl.serve.guard import check_cors, check_origin, is_loopback, read_token
from scalerl.serve.threads import one_heap


class _Server(uvicorn.Server):
    """Closes event streams before it waits for open requests, which would otherwise never end."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    def handle_exit(self, sig: int, frame: object) -> None:
        super().handle_exit(sig, frame)  # type: ignore[arg-type]
        self._site.hub.close()


def serve(
    directories: Sequence[str | Path],
    port: int = 0,
    host: str = "127.0.0.1",
    token_file: str | Path | None = None,
    open_page: bool = False,
    origin: str | None = None,
    cors: Sequence[str] = (),
) -> bool:
    """Serve until interrupted. The first line on stdout is the address. `origin`: the page's
    address behind a proxy; `cors`: origins of other pages that may read the API. Returns whether
    threads are still running: a read may hang for ever."""
    token = None if token_file is None else read_token(token_file)
    origin = None if origin is None else check_origin(origin)
    opening = None if is_loopback(host) else f"--host {host}"
    opening = opening if origin is None else f"--origin {origin}"
    others = [check_cors(each) for each in cors]
    if others and token is None:
        raise InputError(
            f"--cors {others[0]} lets another page read the runs: give --token-file F as well, a "
            "file with the token that it has to send"
        )
    if opening is not None and token is None:
        raise InputError(
            f"{opening} lets other machines connect: give --token-file F as well, a file "
            "with the token that visitors need"
        )
    one_heap()
    roots = Roots(directories)
    listening = _bind(host, port)
    app, site = make_app(Catalogue(roots), host, token, origin, others)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=2,
        http=Connection,
        ws="none",
        # X-Forwarded-For could be forged by any client: addresses are not used for access.
        proxy_headers=False,
    )
    address = url(host, listening.getsockname()[1])
    print(address, flush=True)
    if token is not None:
        print(f"visitors need the token in {token_file}", file=sys.stderr)
    if open_page:
        # The port is bound already; the server answers a moment later.
        threading.Timer(0.5, webbrowser.open, [address]).start()
    # A fit holds the interpreter lock: other requests would wait Python's default of 5 ms at each
    # switch, dozens of times a response.
    sys.setswitchinterval(0.001)
    with listening, suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to end it
        _Server(config, site).run(sockets=[listening])
    return site.busy


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        # A restart need not wait until old connections have timed out.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot listen on {host} port {port}: {reason}; choose another --port (0: any)"
        ) from None
    return made


def url(host: str, port: int) -> str:
    """The address as a browser accepts it.

    >>> url("127.0.0.1", 8000), url("::1", 80), url("0.0.0.0", 8000)
    ('http://127.0.0.1:8000/', 'http://[::1]:80/', 'http://127.0.0.1:8000/')
    """
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"
