"""Access control of the live page, and the security headers of every response.

- *Host*: refused unless it names this server. A foreign page with a DNS name that was made to
  resolve to this machine (DNS rebinding) sends its own name.
- *Origin*: requests from pages of another origin are refused, and no CORS headers let them read a
  response. https and http are different origins, unless `--origin` names the address of a proxy.
  Pages at the origins of `--cors` may read `/api/v1/…` (GET), and have to send the token in a
  header: cookies are not taken from them.
- *Token*: required where other machines can connect; in a cookie, or for programs in the header
  `Authorization: Bearer TOKEN`; compared in constant time.
- *Content-Security-Policy*: scripts and styles from our own files only.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scalerl.errors import InputError
from scalerl.files import read_limited

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
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: Start of the paths that pages of other origins may read.
SHARED = "/api/v1/"
#: The origin that browsers send for a page from a file. Frames in a sandbox send it too, so that
#: any website could: it is safe only because the token has to come with each request.
FILE_ORIGIN = "null"
#: Seconds for which a browser remembers that it may ask: the longest that Chromium keeps.
MAX_AGE = "7200"


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


def check_cors(given: str) -> str:
    """An origin of `--cors`: as in `check_origin`, or `null` for pages from files."""
    if given.lower() == FILE_ORIGIN:
        return FILE_ORIGIN
    try:
        return check_origin(given)
    except InputError:
        raise InputError(
            f"--cors {given}: give scheme, name and port of the other page, for example "
            "https://dashboards.example.org, or null for pages from files"
        ) from None


def _host_of(origin: str) -> str:
    return re.sub(r":\d+$", "", origin.partition("://")[2]).strip("[]")


class Guard:
    """ASGI middleware that refuses requests by host, origin or token before they reach the app."""

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        token: str | None = None,
        origin: str | None = None,
        cors: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._token = token
        self._cors = frozenset(cors)
        self._everywhere = not is_loopback(host)
        self._names = {*LOOPBACK, host.lower()}
        self._origin = origin
        if origin is not None:
            self._names.add(_host_of(origin))
        if self._everywhere:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        request = HTTPConnection(scope)
        shared = self._shared_with(request)
        more = {} if shared is None else _cors_headers(shared)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in (HEADERS | more).items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(request, shared) or self._app
        await answer(scope, receive, with_headers)

    def _shared_with(self, request: HTTPConnection) -> str | None:
        """The origin of another page that may read this path; None for any other request."""
        origins = [origin.lower() for origin in request.headers.getlist("origin")]
        if len(origins) != 1 or origins[0] not in self._cors:
            return None
        scope = request.scope
        allowed = scope["path"].startswith(SHARED) and scope["method"] in ("GET", "OPTIONS")
        return origins[0] if allowed else None

    def _refusal(self, request: HTTPConnection, shared: str | None) -> Response | None:
        hosts, path = request.headers.getlist("host"), request.scope["path"]
        # With two Host headers, a proxy and this check might each read another one.
        if len(hosts) != 1 or not self.knows(hosts[0]):
            why = "this server has another name: open the address that it printed"
            return _refused(path, why, 403)
        if shared is not None and request.scope["method"] == "OPTIONS":
            return Response(status_code=204)  # a browser's question, which carries no token
        if shared is None and not self._same_origin(request, hosts[0]):
            return _refused(path, "requests from other pages are refused", 403)
        is_open = path in OPEN or any(path.startswith(o) for o in OPEN if o.endswith("/"))
        if self._token is None or is_open or self._has_token(request, shared is not None):
            return None
        if path == "/" and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/login", 303)
        return _refused(path, "a token is needed", 401)

    def _has_token(self, request: HTTPConnection, from_elsewhere: bool) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return same_token(given.strip(), self._token or "")
        # A browser sends the cookie by itself, whichever page asks.
        cookie = "" if from_elsewhere else request.cookies.get(COOKIE, "")
        return same_token(cookie, self._token or "")

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

    def _same_origin(self, request: HTTPConnection, host: str) -> bool:
        mine = (f"http://{host.lower()}", self._origin)
        headers, scope = request.headers, request.scope
        if any(origin.lower() not in mine for origin in headers.getlist("origin")):
            return False
        if headers.get("sec-fetch-site", "") in ("", "same-origin", "none"):
            return True
        # A link on another site may open the page; the page then makes its own requests.
        opens = headers.get("sec-fetch-mode") == "navigate"
        return opens and scope["method"] == "GET" and scope["path"] in ("/", "/login")


def _refused(path: str, why: str, status: int) -> Response:
    """A refusal in the form that the path answers in: JSON from the API, else text."""
    if path.startswith(SHARED):
        return JSONResponse({"error": why}, status)
    return PlainTextResponse(f"{why}\n", status)


def _cors_headers(origin: str) -> dict[str, str]:
    """The headers by which a browser lets a page of this origin read a response."""
    return {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "GET",
        "access-control-allow-headers": "authorization",
        "access-control-max-age": MAX_AGE,
        "vary": "Origin",
        "cross-origin-resource-policy": "cross-origin",
    }


def same_token(given: str, token: str) -> bool:
    """Whether a token is right; never, where there is none."""
    # In constant time: the time of a comparison would otherwise tell how much of it is right.
    return bool(token) and hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), token.encode()
    )
