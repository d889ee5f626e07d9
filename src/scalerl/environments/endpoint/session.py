"""Sessions: the requests of one driver to the model, as observations of an episode.

A driver sends whole conversations. One that repeats the last one, with the model's turn as it was
returned, and adds messages for the model gives an observation of the new messages only: the tokens
before them stay as they were sampled. Any other conversation (an earlier prefix that goes on
otherwise, a rewritten history, other tools) is given whole, and the episode forks.

Requests that arrive while another one waits for its turn are answered one after the other.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.environments.interface import Action, Observation, ToolSchema
from scalerl.environments.parsers import TOOL_FORMATS
from scalerl.environments.tools import argument_name
from scalerl.tasks.task import Message

#: Name of the one model that drivers may ask for.
MODEL = "policy"
#: Seconds that a request waits for the policy's turn. A run may stop generating for minutes (a
#: validation, a checkpoint, a generator that is replaced), and hardly for an hour.
REPLY_SECONDS = 3600.0


class SessionOver(RuntimeError):
    """The episode of a request is over. The text says why, in one line."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation, in a form in which equal ones compare equal."""

    role: str
    #: Text. White space around a turn of the assistant is left out: many programs strip it.
    content: str
    #: Tool that a message of the role "tool" replies for; empty if unknown.
    name: str = ""
    #: Calls of an assistant's turn: (name, arguments as JSON with sorted keys).
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation that the policy is asked to continue."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSchema, ...] = ()
    #: Texts at which the reply is cut off.
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A turn of the policy, for the driver."""

    #: The turn without its tool calls.
    text: str
    #: Calls of the turn: (id, name, arguments).
    calls: tuple[tuple[str, str, Mapping[str, Any]], ...]
    #: The turn as the policy wrote it. Its token ids are empty in a replay.
    action: Action

    @property
    def finish(self) -> str:
        """Why the turn ended, as OpenAI's API says it."""
        if self.action.truncated:
            return "length"
        return "tool_calls" if self.calls else "stop"

    @property
    def message(self) -> dict[str, Any]:
        """The turn as a message of OpenAI's API."""
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            found["content"] = self.text or None
            found["tool_calls"] = [
                {
                    "id": key,
                    "type": "function",
                    "function": {"name": name, "arguments": as_json(arguments)},
                }
                for key, name, arguments in self.calls
            ]
        return found


@dataclass(slots=True, eq=False)
class _Pending:
    request: ChatRequest
    answered: asyncio.Future[ChatReply]
    #: Number of callers that wait for the reply; 0 once a client has hung up.
    waiting: int = 0
    delivered: bool = False


class Session:
    """The requests of one driver. All methods are called on one event loop."""

    def __init__(self) -> None:
        self._queue: deque[_Pending] = deque()
        self._current: _Pending | None = None
        self._arrived = asyncio.Event()
        self._over = ""
        #: Why the endpoint refused the last request; empty if it did not.
        self.refused = ""
        #: The last conversation, with the policy's turn, and its tools.
        self._shown: tuple[ChatMessage, ...] = ()
        self._tools: tuple[ToolSchema, ...] = ()
        #: Text of each turn, by the message that the driver got.
        self._written: dict[ChatMessage, str] = {}
        self._calls = 0

    # -- the driver's side ----------------------------------------------------------------------

    async def ask(self, request: ChatRequest) -> ChatReply:
        """The policy's turn after a conversation; raises SessionOver if there will be none."""
        if self._over:
            raise SessionOver(self._over)
        pending = self._again(request)
        if pending is None:
            pending = _Pending(request, asyncio.get_running_loop().create_future())
            self._queue.append(pending)
            self._arrived.set()
        pending.waiting += 1
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                reply = await asyncio.shield(pending.answered)
        except TimeoutError:
            raise SessionOver(f"the policy wrote no turn in {REPLY_SECONDS:g} s") from None
        finally:
            pending.waiting -= 1
        pending.delivered = True
        return reply

    def _again(self, request: ChatRequest) -> _Pending | None:
        """The same request, if its client hung up before the reply: clients retry after a timeout,
        and must not make the policy write the turn twice."""
        known = [*self._queue, *([self._current] if self._current else [])]
        lost = (p for p in known if not p.waiting and not p.delivered and p.request == request)
        return next(lost, None)

    # -- the environment's side -----------------------------------------------------------------

    async def observe(self) -> Observation:
        """Wait for the next request, and return what the model is shown for it."""
        while True:
            while self._queue:
                pending = self._queue.popleft()
                if pending.waiting:
                    self._current = pending
                    return self._observation(pending.request)
            self._arrived.clear()
            await self._arrived.wait()

    def answer(self, action: Action) -> None:
        """Answer the request of the last observation."""
        pending = self._current
        assert pending is not None, "a turn without a request"
        request = pending.request
        reply = self._reply(action, request)
        calls = tuple((name, as_json(arguments)) for _, name, arguments in reply.calls)
        turn = ChatMessage("assistant", reply.text.strip(), calls=calls)
        self._written[turn] = action.text
        self._shown, self._tools = (*request.messages, turn), request.tools
        if not pending.answered.done():
            pending.answered.set_result(reply)

    def end(self, why: str) -> None:
        """Refuse all requests, those that wait and those to come."""
        self._over = self._over or why
        known = [*self._queue, *([self._current] if self._current else [])]
        self._queue.clear()
        for pending in known:
            if pending.answered.done():
                continue
            if pending.waiting:
                pending.answered.set_exception(SessionOver(self._over))
            else:
                pending.answered.cancel()

    def _observation(self, request: ChatRequest) -> Observation:
        known = len(self._shown)
        new = request.messages[known:]
        follows = known > 0 and request.messages[:known] == self._shown
        if (
            follows
            and new
            and request.tools == self._tools
            and all(m.role in ("user", "tool") for m in new)
        ):
            return Observation(tuple(map(self._plain, new)))
        whole = tuple(map(self._plain, request.messages))
        return Observation(conversation=whole, tools=request.tools)

    def _plain(self, message: ChatMessage) -> Message:
        """A message for the chat template; an assistant's turn as the text that the policy wrote
        (in the form of Hermes, if the driver made the turn up)."""
        text = message.content
        if message.role == "assistant":
            calls = (
                f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
                for name, arguments in message.calls
            )
            text = self._written.get(message, "\n".join(filter(None, [text, *calls])))
        name = {"name": message.name} if message.name else {}
        return {"role": message.role, "content": text, **name}

    def _reply(self, action: Action, request: ChatRequest) -> ChatReply:
        text, calls = action.text, action.tool_calls
        # As vLLM does: a turn with a call that cannot be read is text as a whole.
        if not request.tools or any(call.problem for call in calls):
            calls = ()
        if calls:
            parsed = (TOOL_FORMATS[name](text) for name in TOOL_FORMATS)
            text = next((kept for kept, found in parsed if found == calls), text)
        for stop in request.stop:
            text = text.partition(stop)[0]
        named = []
        for call in calls:
            # Nine letters and digits, as Mistral's template asks for; the same in a replay.
            key = f"call{self._calls:05d}"
            self._calls += 1
            known = _parameters(request.tools, call.name)
            given = {argument_name(k, known): v for k, v in call.arguments.items()}
            named.append((key, call.name, given))
        return ChatReply(text, tuple(named), action)


def as_json(arguments: Any) -> str:
    """Arguments of a call as JSON that is the same whatever the order of the keys.

    >>> as_json({"b": 1, "a": "x"})
    '{"a": "x", "b": 1}'
    """
    # A call in Python's form may have values that JSON does not know, as sets.
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False, default=str)


def _parameters(tools: tuple[ToolSchema, ...], name: str) -> list[str]:
    """Names of a tool's parameters, in order."""
    for tool in tools:
        if tool["function"]["name"] == name:
            return list((tool["function"].get("parameters") or {}).get("properties") or ())
    return []
