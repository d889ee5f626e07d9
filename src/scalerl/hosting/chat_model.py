"""A chat model that is served by one of our engines: one thread steps the engine, and each request
has a thread that waits."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from scalerl.algorithm.length import Limit
from scalerl.engine.interface import Engine, EngineSpec, Request, Sampling, TurnResult
from scalerl.engine.registry import ENGINES
from scalerl.errors import InputError
from scalerl.hosting.server import chat_completion, messages_from
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


class ChatModel:
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
        read, finish = len(asked.request.prompt_token_ids), turn.finish
        finish = finish if finish == "stop" else "length"
        return chat_completion(self.name, text, finish, read, len(turn), asked.device_seconds)

    def _request(self, body: Any) -> Request:
        messages = messages_from(body)
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
            except Exception as error:  # pending requests get an error, and later ones may succeed
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


def load_chat_model(
    path: str, *, engine: str, dtype: str, device: str, columns: int, slots: int, devices: int,
    name: str, trust_remote_code: bool = False,
) -> ChatModel:  # fmt: skip
    """The model of a path, a hub id or a name that comes with scalerl, in an engine."""
    path, device = model_path(path), resolve_device(device)
    tokenizer = load_tokenizer_fast(path, trust_remote_code=trust_remote_code)
    shape = meta_model_fast(path, dtype, trust_remote_code=trust_remote_code)
    config = shape.config.get_text_config()
    most = context_length(config)
    columns = columns if most is None else min(columns, most)
    spec = EngineSpec(path, dtype, "model", slots, slots, columns, device, trust_remote_code,
                      devices=devices)  # fmt: skip
    stops = stop_tokens(tokenizer, load_generation_config_fast(path), config)
    return ChatModel(name, ENGINES[engine](spec), tokenizer, columns=columns, devices=devices,
                       stop_ids=stops)  # fmt: skip
