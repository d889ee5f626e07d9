"""Access control of the live page, and the security headers of every response.

- *Host*: refused unless it names this server. A foreign page with a DNS name that was made to
  resolve to this machine (DNS rebinding) sends its own name.
- *Origin*: requests from pages of another origin are refused, and no CORS headers let them read a
  response. https and http are different origins, unless `--origin` names the address of a proxy.
- *Token*: required where other machines can connect; kept in a cookie, compared in constant time.
- *Content-Security-Policy*: scripts and styles from our own files only.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.files import read_limited

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

COOKIE = "scalerl_token"
#: Bytes of the token file. A token has at most 256 characters; the rest is room for line ends.
MAX_TOKEN_FILE = 4096
ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d{1,5})?")
TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,256}")
#: Paths that need no token: the health check, and the login page with its files.
OPEN = ("/healthz", "/api/login", "/login", "/static/")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: str | Path) -> str:
    """Read the token from a file."""
    try:
        text = read_limited(path, MAX_TOKEN_FILE).decode().strip()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"{path}: {reason}: give a file that holds a token") from None
    if not TOKEN.fullmatch(text):
        raise InputError(
            f"{path}: a token is one line of 16 to 256 letters, digits, '-', '_', '.' or '~'; make "
            f"one: python -c 'import secrets; print(secrets.token_urlsafe())' > {path}"
        )
    return text


def check_origin(given: str) -> str:
    """An origin in the form that browsers send; InputError for anything else.

    >>> check_origin("https://Runs.example.org/")
    'https://runs.example.org'
    """
    origin = given.lower().removesuffix("/")
    if not ORIGIN.fullmatch(origin):
        raise InputError(
            f"--origin {given}: give the scheme, the name and the port of the page, for example "
            "https://runs.example.org"
        )
    return origin


def _host_of(origin: str) -> str:
    return re.sub(r":\d+$", "", origin.partition("://")[2]).strip("[]")


class Guard:
    """ASGI middleware that refuses requests by host, origin or token before they reach the app."""

    def __init__(
        self,
        app: App,
        host: str = "127.0.0.1",
        token: str | None = None,
        origin: str | None = None,
    ) -> None:
        self._app = app
        self._token = token
        self._everywhere = not is_loopback(host)
        self._names = {*LOOPBACK, host.lower()}
        self._origin = origin
        if origin is not None:
            self._names.add(_host_of(origin))
        if self._everywhere:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                extra = [*HEADERS, (b"cache-control", b"no-store")]
                message["headers"] = [
                    *message["headers"], *((n, v) for n, v in extra if n not in given)
                ]  # fmt: skip
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, with_headers)
            return
        status, why = refusal
        text = why.encode()
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        page = (b"text/html" in _header(scope, b"accept")) and scope["path"] == "/"
        if status == 401 and page:
            status, text = 303, b""
            headers.append((b"location", b"/login"))
        headers.append((b"content-length", str(len(text)).encode()))
        await with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        # With two Host headers, a proxy and this check might each read another one.
        if len(hosts) != 1 or not self.knows(hosts[0].decode("latin-1")):
            return 403, "this server has another name: open the address that it printed\n"
        if not self._same_origin(scope, hosts[0].decode("latin-1")):
            return 403, "requests from other pages are refused\n"
        path = scope["path"]
        is_open = path in OPEN or any(path.startswith(o) for o in OPEN if o.endswith("/"))
        if self._token is not None and not is_open and not self.holds_token(scope):
            return 401, "a token is needed\n"
        return None

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server; with any port, since ports may be forwarded."""
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/@\s]+)(?::\d{1,5})?", host)
        if match is None:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        if name in self._names:
            return True
        if not self._everywhere:
            return False
        try:  # a plain address cannot be a DNS name that was made to point here
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _same_origin(self, scope: MutableMapping[str, Any], host: str) -> bool:
        mine = (f"http://{host.lower()}", self._origin)
        for name, value in scope["headers"]:
            if name == b"origin" and value.decode("latin-1").lower() not in mine:
                return False
        site = _header(scope, b"sec-fetch-site")
        if site in (b"", b"same-origin", b"none"):
            return True
        # A link on another site may open the page; the page then makes its own requests.
        opens = _header(scope, b"sec-fetch-mode") == b"navigate"
        return opens and scope["method"] == "GET" and scope["path"] in ("/", "/login")

    def holds_token(self, scope: MutableMapping[str, Any]) -> bool:
        given = ""
        for name, value in scope["headers"]:
            if name == b"cookie":
                try:
                    found = SimpleCookie(value.decode("latin-1")).get(COOKIE)
                except CookieError:
                    continue
                given = found.value if found is not None else given
        return same_token(given, self._token or "")


def same_token(given: str, token: str) -> bool:
    """Whether a token is right; never, where there is none."""
    # In constant time: the time of a comparison would otherwise tell how much of it is right.
    return bool(token) and hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), token.encode()
    )


def _header(scope: MutableMapping[str, Any], name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")
