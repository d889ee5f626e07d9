"""Bodies of requests and of responses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from scalerl.files import to_json_bytes
from scalerl.serve import exports
from scalerl.text import one_line

#: Bytes of a request's body; the longest that the page sends has some hundred.
MAX_BODY = 64_000
#: Seconds that a request has to send its body.
BODY_SECONDS = 20.0


class RequestError(Exception):
    """A request that is refused: HTTP status and one line."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


async def request_body(request: Request) -> dict[str, Any]:
    """The JSON object of a request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, "send JSON, as application/json")
    data = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > MAX_BODY:
                    raise RequestError(413, f"at most {MAX_BODY} bytes")
    except TimeoutError:
        raise RequestError(408, f"the body did not come within {BODY_SECONDS:.0f} s") from None
    except ClientDisconnect:
        raise RequestError(400, "the connection was closed before the body ended") from None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise RequestError(400, "not JSON") from None
    if not isinstance(found, dict):
        raise RequestError(400, "send a JSON object")
    return found


def raw_json(text: bytes) -> Response:
    return Response(text, media_type="application/json")


def json_response(found: Any, status: int = 200) -> Response:
    return Response(to_json_bytes(found), status_code=status, media_type="application/json")


def download(data: bytes, kind: str, name: str) -> Response:
    to_file = {"content-disposition": f'attachment; filename="{name}.{kind}"'}
    return Response(data, media_type=exports.TYPES[kind], headers=to_file)


def error_response(status: int, why: str) -> Response:
    return json_response({"error": one_line(why, 600)}, status)
