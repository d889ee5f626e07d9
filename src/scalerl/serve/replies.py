"""Bodies of requests, and answers as they are sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from scalerl.serve import exports
from scalerl.serve.catalogue import as_sent
from scalerl.text import one_line

#: Bytes of a request's body.
MAX_BODY = 64_000
#: Seconds that a request has to send its body.
BODY_SECONDS = 20.0


class NoAnswer(Exception):
    """An answer that is none: its status and one line."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


async def body(request: Request) -> dict[str, Any]:
    """The JSON object of a request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise NoAnswer(415, "send JSON, as application/json")
    data = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > MAX_BODY:
                    raise NoAnswer(413, f"at most {MAX_BODY} bytes")
    except TimeoutError:
        raise NoAnswer(408, f"the body did not come within {BODY_SECONDS:.0f} s") from None
    except ClientDisconnect:
        raise NoAnswer(400, "cut off") from None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise NoAnswer(400, "not JSON") from None
    if not isinstance(found, dict):
        raise NoAnswer(400, "send a JSON object")
    return found


def raw(text: bytes) -> Response:
    return Response(text, media_type="application/json")


def reply(found: Any, status: int = 200) -> Response:
    return Response(as_sent(found), status_code=status, media_type="application/json")


def download(data: bytes, kind: str, name: str) -> Response:
    to_file = {"content-disposition": f'attachment; filename="{name}.{kind}"'}
    return Response(data, media_type=exports.TYPES[kind], headers=to_file)


def said(status: int, why: str) -> Response:
    line = one_line(why, 600)
    return Response(
        as_sent({"error": line}),
        status_code=status,
        media_type="application/json",
    )
