"""The routes of the endpoint, over HTTP. Imported where a driver asks for the address: needs the
`serve` extra.

    GET  /v1/models              the one model
    POST /v1/chat/completions    a turn of the policy

vLLM's `/inference/v1/generate` (token ids in, token ids out) is left out: an environment worker has
no tokenizer, and the tokens of an episode are rendered where the model is.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scalerl.environments.endpoint.chat import (
    error_body,
    events_of,
    ignored_fields,
    read_request,
    whole_reply,
)
from scalerl.environments.endpoint.session import MODEL, ChatReply, Session, SessionOver
from scalerl.errors import InputError
from scalerl.text import listed, one_line

#: Longest body of a request: more text than any model here reads, with room for escapes.
MAX_BYTES = 16 * 2**20
#: Seconds within which a body must arrive. Clients are on this machine.
BODY_SECONDS = 30.0
#: Seconds that connections with a reply under way have when the server stops.
STOP_SECONDS = 1


class _Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class QuietServer(uvicorn.Server):
    """A server inside a process that has signal handlers of its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(sessions: Mapping[str, Session]) -> QuietServer:
    """A server for sessions by their key, to be run with a socket that listens."""
    routes = [
        Route("/v1/models", _guarded(sessions, _models)),
        Route("/v1/chat/completions", _guarded(sessions, _chat), methods=["POST"]),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes, exception_handlers={404: _not_found}),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        http="h11",
        ws="none",
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return QuietServer(config)


def _guarded(
    sessions: Mapping[str, Session],
    handler: Callable[[Request, Session], Coroutine[Any, Any, Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """A handler for requests with the key of a session; errors become responses."""

    async def respond(request: Request) -> Response:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        session = sessions.get(key.strip()) if scheme.lower() == "bearer" else None
        if session is None:
            why = "the API key is of no episode under way: use client.api_key"
            return JSONResponse(error_body(why, "authentication_error"), 401)
        session.refused = ""
        try:
            return await handler(request, session)
        except (_Refused, InputError) as error:
            session.refused = str(error)
            status = error.status if isinstance(error, _Refused) else 400
            return JSONResponse(error_body(str(error)), status)
        except SessionOver as error:
            # No 5xx: clients would try again.
            return JSONResponse(error_body(str(error), "episode_over"), 410)
        except ClientDisconnect:
            return Response(status_code=400)  # which nothing reads

    return respond


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse(error_body("there are /v1/models and /v1/chat/completions here only"), 404)


async def _models(request: Request, session: Session) -> Response:
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "scalerl"}
    return JSONResponse({"object": "list", "data": [model]})


async def _chat(request: Request, session: Session) -> Response:
    body = await _body(request)
    if body.get("model") != MODEL:
        shown = one_line(repr(body.get("model")), 80)
        raise _Refused(404, f"there is no model {shown} here: ask for {MODEL!r}")
    asked = read_request(body)
    ignored = listed(ignored_fields(body))
    if ignored:  # Python shows a warning with the same text once
        warnings.warn(
            f"requests of a driver set {ignored}: ignored, because the recipe decides how turns "
            "are sampled",
            stacklevel=1,
        )
    reply = await _unless_gone(request, session.ask(asked))
    notice = {"x-scalerl-ignored": ignored.encode("ascii", "replace").decode()} if ignored else {}
    if body.get("stream"):
        events = "".join(events_of(reply, body))
        return Response(events, media_type="text/event-stream", headers=notice)
    return JSONResponse(whole_reply(reply, body), headers=notice)


async def _body(request: Request) -> dict[str, Any]:
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BYTES:
                    raise _Refused(413, f"the request is longer than {MAX_BYTES} bytes: shorten it")
                parts.append(part)
        found = json.loads(b"".join(parts))
    except TimeoutError:
        raise _Refused(408, f"the request did not arrive in {BODY_SECONDS:g} s") from None
    except (ValueError, RecursionError) as error:
        raise _Refused(400, f"the body is not JSON: {str(error)[:100]}") from None
    if not isinstance(found, dict):
        raise _Refused(400, "the body must be a JSON object with model and messages")
    return found


async def _unless_gone(request: Request, asking: Coroutine[Any, Any, ChatReply]) -> ChatReply:
    """The reply; raises ClientDisconnect as soon as the client has hung up."""
    asked = asyncio.create_task(asking)
    gone = asyncio.create_task(_hung_up(request))
    try:
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise ClientDisconnect
        return asked.result()
    finally:
        asked.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
