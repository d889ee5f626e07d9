"""The HTTP server of a model, in the form of OpenAI's chat completions.

POST /v1/chat/completions    messages in, one reply out; `usage` has the tokens and the seconds
                             of the devices that it took
GET  /v1/models              the one model
"""

from __future__ import annotations

import hmac
import json
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from scalerl.errors import InputError
from scalerl.text import one_line

#: Longest body of a request, in bytes.
MAX_BYTES = 16 << 20


class Model(Protocol):
    """What is served."""

    #: Its name in requests and replies.
    name: str

    def reply(self, body: Any) -> dict[str, Any]:
        """The reply to the body of a request; InputError where it cannot be one, RuntimeError where
        the model has failed."""
        ...

    def close(self) -> None:
        """End its threads."""
        ...


def messages_from(body: Any) -> list[dict[str, str]]:
    """The messages of a request; InputError in one line where there are none."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise InputError("the body must be a JSON object with model and messages")
    if body.get("stream") or body.get("n") not in (None, 1):
        raise InputError("stream and n > 1 are not supported here: leave them out")
    return [
        {"role": str(m.get("role")), "content": str(m.get("content") or "")}
        for m in body["messages"]
        if isinstance(m, dict)
    ]


def chat_completion(
    model: str, text: str, finish: str, read: int, written: int, device_seconds: float
) -> dict[str, Any]:
    """The body of a reply."""
    now = int(time.time())
    return {
        "id": f"chatcmpl-{now}",
        "object": "chat.completion",
        "created": now,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text},
                     "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": read, "completion_tokens": written,
                  "total_tokens": read + written, "device_seconds": device_seconds},
    }  # fmt: skip


class ModelServer(ThreadingHTTPServer):
    """The HTTP server of a model. With a key, requests must carry it as a bearer token."""

    daemon_threads = True
    #: Connections that may wait to be accepted: all checks of a run may begin at once.
    request_queue_size = 1024

    def __init__(self, model: Model, host: str, port: int, key: str = "") -> None:
        self.model, self.key = model, key
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """No line for every request."""

    def do_GET(self) -> None:
        if self._allowed() and self.path == "/v1/models":
            model = {"id": self.server.model.name, "object": "model", "owned_by": "scalerl"}
            self._send(HTTPStatus.OK, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        if not self._allowed():
            return
        if self.path != "/v1/chat/completions":
            self._refuse(HTTPStatus.NOT_FOUND, "there is /v1/chat/completions here only")
            return
        length = int(self.headers.get("content-length") or 0)
        if not 0 < length <= MAX_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MAX_BYTES} bytes, please")
            return
        try:
            reply = self.server.model.reply(json.loads(self.rfile.read(length)))
        except (InputError, ValueError, TypeError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except RuntimeError as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception as error:  # a tokenizer may raise anything
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        else:
            self._send(HTTPStatus.OK, reply)

    def _allowed(self) -> bool:
        given = self.headers.get("authorization", "").removeprefix("Bearer ").encode()
        if not self.server.key or hmac.compare_digest(given, self.server.key.encode()):
            return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "the API key is not the one of this server")
        return False

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # a body that was not read would be taken for a request
        self._send(status, {"error": {"message": one_line(why), "type": "invalid_request_error"}})

    def _send(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
