"""Chat completions in OpenAI's form: requests, replies, and replies as a stream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scalerl.environments.endpoint.session import ChatMessage, ChatReply, ChatRequest, as_json
from scalerl.environments.replies import kind_of
from scalerl.errors import InputError
from scalerl.text import listed, one_line

#: Roles by the names that clients use.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
#: Fields of a request that are used, or that change nothing in the reply.
_USED = {
    "model",
    "messages",
    "tools",
    "stop",
    "stream",
    "stream_options",
    "logprobs",
    "return_token_ids",
    "metadata",
    "store",
    "user",
}
#: Fields that would change the form of the reply in a way that is not supported, with the values
#: that ask for nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "functions": ([],),
    "echo": (False,),
}


def read_request(body: Mapping[str, Any]) -> ChatRequest:
    """A request from its body; raises InputError in one line."""
    for field, harmless in _REFUSED.items():
        value = body.get(field)
        if value is not None and value not in harmless:
            shown = one_line(json.dumps(value), 60)
            raise InputError(f"{field} = {shown} is not supported by this endpoint: leave it out")
    options = body.get("stream_options") or {}
    if not isinstance(options, Mapping):
        raise InputError(f"stream_options must be an object, not {kind_of(options)}")
    stop = body.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stop, list | tuple) or not all(isinstance(s, str) and s for s in stop):
        raise InputError("stop must be a text or a list of texts")
    tools = () if body.get("tool_choice") == "none" else body.get("tools") or ()
    return make_request(body.get("messages"), tools, stop)


def make_request(messages: Any, tools: Any = (), stop: Iterable[str] = ()) -> ChatRequest:
    """A request from messages and tools in OpenAI's form; raises InputError in one line."""
    try:
        made = ChatRequest(_messages(messages), _tools(tools), tuple(stop))
        text = (f"{m.content}{m.name}{m.calls}" for m in made.messages)
        f"{''.join(text)}{as_json(made.tools)}".encode()
    except RecursionError:
        raise InputError("the arguments of a call or a tool are nested too deeply") from None
    except UnicodeEncodeError:
        raise InputError("a message has half a surrogate pair, which no tokenizer reads") from None
    return made


def ignored_fields(body: Mapping[str, Any]) -> list[str]:
    """Fields of a request that have no effect: how turns are sampled is the recipe's affair.

    >>> ignored_fields({"model": "policy", "temperature": 0.2, "seed": None, "n": 1})
    ['temperature']
    """
    used = {*_USED, *_REFUSED}
    if body.get("tool_choice") in ("auto", "none"):
        used.add("tool_choice")
    return sorted(field for field, value in body.items() if field not in used and value is not None)


def _messages(given: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise InputError(f"messages must be a list, not {kind_of(given)}")
    found: list[ChatMessage] = []
    names: dict[str, str] = {}  # of the tools, by the id of the call
    for message in given:
        if not isinstance(message, Mapping):
            raise InputError(f"a message must be an object, not {kind_of(message)}")
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise InputError(f"a message has the role {role!r}: give one of {listed(_ROLES)}")
        role, text = _ROLES[role], _text(message.get("content"))
        if role == "assistant":
            given_calls = message.get("tool_calls") or ()
            if not isinstance(given_calls, list | tuple):
                raise InputError(f"tool_calls must be a list, not {kind_of(given_calls)}")
            calls = tuple(_call(each, names) for each in given_calls)
            found.append(ChatMessage(role, text.strip(), calls=calls))
            continue
        called = names.get(str(message.get("tool_call_id")), "")
        name = str(message.get("name") or called) if role == "tool" else ""
        found.append(ChatMessage(role, text, name))
    if not found:
        raise InputError("messages is empty: give at least one")
    return tuple(found)


def _tools(given: Any) -> tuple[Mapping[str, Any], ...]:
    tools = tuple(given) if isinstance(given, list | tuple) else (given,)
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InputError('a tool must be {"type": "function", "function": {"name": …}}')
    return tools


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, list | tuple):
        content = "".join(map(_part, content))
    if not isinstance(content, str):
        raise InputError(f"the content of a message is {kind_of(content)}, not text")
    return content


def _part(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else kind_of(part)
        raise InputError(f"a message has a part of the type {kind!r}: only text is supported")
    return text


def _call(call: Any, names: dict[str, str]) -> tuple[str, str]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError("a tool call of a message has no function with a name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise InputError("the arguments of a tool call are not JSON") from None
    names[str(call.get("id"))] = function["name"]
    return function["name"], as_json(arguments)


# -- replies ------------------------------------------------------------------------------------


def whole_reply(reply: ChatReply, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a reply that is sent at once."""
    choice = {
        "index": 0,
        "message": reply.message,
        "logprobs": _logprobs(reply) if body.get("logprobs") else None,
        "finish_reason": reply.finish,
    }
    if body.get("return_token_ids"):
        choice["token_ids"] = list(reply.action.token_ids)
    return _envelope("chat.completion", body) | {"choices": [choice], "usage": _usage(reply)}


def events_of(reply: ChatReply, body: Mapping[str, Any]) -> Iterator[str]:
    """The reply as server-sent events. The turn is complete when it arrives here, so that its text
    is one event."""
    message = dict(reply.message)
    calls = [{"index": i, **call} for i, call in enumerate(message.pop("tool_calls", ()))]
    written: dict[str, Any] = {"index": 0, "delta": message, "finish_reason": None}
    written["logprobs"] = _logprobs(reply) if body.get("logprobs") else None
    if calls:
        message["tool_calls"] = calls
    if body.get("return_token_ids"):
        written["token_ids"] = list(reply.action.token_ids)
    last = {"index": 0, "delta": {}, "finish_reason": reply.finish, "logprobs": None}
    head = _envelope("chat.completion.chunk", body)
    for choice in (written, last):
        yield _event(head | {"choices": [choice]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _event(head | {"choices": [], "usage": _usage(reply)})
    yield "data: [DONE]\n\n"


def error_body(why: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"message": one_line(why), "type": kind, "param": None, "code": None}}


def _envelope(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    now = int(time.time())
    return {"id": f"chatcmpl-{now}", "object": kind, "created": now, "model": body.get("model")}


def _usage(reply: ChatReply) -> dict[str, int]:
    # The prompt is rendered and counted where the model is, not here.
    written = len(reply.action.token_ids)
    return {"prompt_tokens": 0, "completion_tokens": written, "total_tokens": written}


def _logprobs(reply: ChatReply) -> dict[str, Any]:
    # Tokens by their ids, as vLLM writes them on demand: there is no tokenizer here.
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(reply.action.token_ids, reply.action.logprobs, strict=False)
    ]
    return {"content": content, "refusal": None}


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"
