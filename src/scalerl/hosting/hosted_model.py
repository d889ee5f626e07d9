"""A model at an OpenAI-compatible address, served by one of our engines (`scalerl host`): a judge
for any number of runs. One thread steps the engine; each request has a thread that waits.

    POST /v1/chat/completions    messages in, one reply out; `usage` has the tokens and the seconds
                                 of the devices that it took
    GET  /v1/models              the one model
"""

from __future__ import annotations

import hmac
import itertools
import json
import queue
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scalerl.algorithm.length import Limit
from scalerl.engine.interface import Engine, EngineSpec, Request, Sampling, TurnResult
from scalerl.engine.registry import ENGINES
from scalerl.errors import InputError
from scalerl.models.chat import Chat
from scalerl.models.load import (
    load_generation_config_fast,
    load_tokenizer_fast,
    meta_model_fast,
    model_path,
    resolve_device,
)
from scalerl.models.meta_model import context_length
from scalerl.models.tokens import stop_tokens
from scalerl.text import one_line

#: Longest body of a request, in bytes.
MAX_BYTES = 16 << 20
#: Seconds for which the engine's thread waits for a request.
IDLE_SECONDS = 0.5
#: Tokens of a reply where the request does not say how many.
DEFAULT_TOKENS = 512


@dataclass(slots=True, eq=False)
class _Asked:
    """A request under way."""

    request: Request
    over: threading.Event = field(default_factory=threading.Event)
    result: TurnResult | None = None
    #: Why there is no result.
    error: str = ""
    #: Seconds of the engine's devices: its steps are shared equally by the requests in them.
    device_seconds: float = 0.0


class HostedModel:
    """An engine that answers chats, in a thread of its own until `close`."""

    def __init__(
        self, name: str, engine: Engine, tokenizer: Any, *, columns: int, devices: int,
        stop_ids: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.name, self.engine, self.columns, self.devices = name, engine, columns, devices
        self.tokenizer, self.chat, self._stop_ids = tokenizer, Chat(tokenizer), stop_ids
        self._new: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._under_way: dict[str, _Asked] = {}
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._new.put(None)
        self._thread.join()

    def reply(self, body: Any) -> dict[str, Any]:
        """The reply to the body of a request; InputError where it cannot be one."""
        asked = _Asked(self._request(body))
        self._new.put(asked)
        asked.over.wait()
        if asked.result is None:
            raise RuntimeError(asked.error)
        turn = asked.result.turn
        text = self.tokenizer.decode(turn.token_ids.tolist(), skip_special_tokens=True)
        read, written = len(asked.request.prompt_token_ids), len(turn)
        finish = "stop" if turn.finish == "stop" else "length"
        return {
            "id": f"chatcmpl-{asked.request.id}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.name,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text},
                         "finish_reason": finish, "logprobs": None}],
            "usage": {"prompt_tokens": read, "completion_tokens": written,
                      "total_tokens": read + written, "device_seconds": asked.device_seconds},
        }  # fmt: skip

    def _request(self, body: Any) -> Request:
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise InputError("the body must be a JSON object with model and messages")
        if body.get("stream") or body.get("n") not in (None, 1):
            raise InputError("stream and n > 1 are not supported here: leave them out")
        messages = [
            {"role": str(m.get("role")), "content": str(m.get("content") or "")}
            for m in body["messages"]
            if isinstance(m, dict)
        ]
        if self.chat.exists:
            ids = self.chat.tokens(messages)
        else:
            ids = list(self.tokenizer("\n".join(m["content"] for m in messages))["input_ids"])
        room = self.columns - len(ids)
        if not ids or room < 1:
            raise InputError(f"the messages have {len(ids)} tokens, of at most {self.columns - 1}")
        most = min(int(body.get("max_tokens") or DEFAULT_TOKENS), room)
        sampling = Sampling(float(body.get("temperature", 1.0)), float(body.get("top_p", 1.0)))
        number = next(self._numbers)
        seed = int(body.get("seed") or number)
        return Request(str(number), tuple(ids), Limit(most, self._stop_ids), {0: seed}, sampling)

    def _work(self) -> None:
        while self._take():
            if not self._under_way:
                continue
            began, running = time.perf_counter(), list(self._under_way.values())
            try:
                written = self.engine.step().written
            except Exception as error:  # those who wait are answered, and the next may succeed
                self._fail(one_line(f"{type(error).__name__}: {error}"))
                continue
            each = (time.perf_counter() - began) * self.devices / len(running)
            for asked in running:
                asked.device_seconds += each
            for result in written:
                asked = self._under_way.pop(result.request)
                asked.result = result
                asked.over.set()

    def _take(self) -> bool:
        """Submit new requests; False when there will be none."""
        try:
            asked = self._new.get(timeout=0.0 if self._under_way else IDLE_SECONDS)
            while asked is not None:
                self._under_way[asked.request.id] = asked
                self.engine.submit([asked.request])
                asked = self._new.get_nowait()
        except queue.Empty:
            return True
        self._fail("the server is ending")
        return False

    def _fail(self, why: str) -> None:
        self.engine.abort(list(self._under_way))
        for asked in self._under_way.values():
            asked.error = why
            asked.over.set()
        self._under_way.clear()


class ModelServer(ThreadingHTTPServer):
    """The HTTP server of a model. With a key, requests must carry it as a bearer token."""

    daemon_threads = True
    #: Connections that may wait to be accepted: all checks of a run may begin at once.
    request_queue_size = 1024

    def __init__(self, model: HostedModel, host: str, port: int, key: str = "") -> None:
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


def host_model(
    path: str, *, engine: str, dtype: str, device: str, columns: int, slots: int, devices: int,
    name: str, trust_remote_code: bool = False,
) -> HostedModel:  # fmt: skip
    """The model at a path, a hub id or a name that comes with scalerl, served by an engine."""
    path, device = model_path(path), resolve_device(device)
    tokenizer = load_tokenizer_fast(path, trust_remote_code=trust_remote_code)
    shape = meta_model_fast(path, dtype, trust_remote_code=trust_remote_code)
    config = shape.config.get_text_config()
    most = context_length(config)
    columns = columns if most is None else min(columns, most)
    spec = EngineSpec(path, dtype, "model", slots, slots, columns, device, trust_remote_code,
                      devices=devices)  # fmt: skip
    stops = stop_tokens(tokenizer, load_generation_config_fast(path), config)
    return HostedModel(name, ENGINES[engine](spec), tokenizer, columns=columns, devices=devices,
                       stop_ids=stops)  # fmt: skip
