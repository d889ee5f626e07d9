"""How models write tool calls: parsers from the text of a turn to its calls, by name.

| name | form |
|---|---|
| `hermes` | `<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>` (Qwen, Hermes, …) |
| `llama3` | `{"name": "add", "parameters": {"a": 1}}`, also after `<|python_tag|>` |
| `plain` | `<tool_call>add(1, b=2)</tool_call>`, for models without a template |

A call that cannot be read has a `problem`, a line for the model. Parsing executes nothing, and its
time grows with the length of the text and no faster.

>>> hermes('Sure. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
('Sure.', (ToolCall(name='add', arguments={'a': 1}, problem=None),))
>>> plain("<tool_call>look(blue whale, n=2)</tool_call>")[1][0].arguments
{'0': 'blue whale', 'n': 2}
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from scalerl.environments.interface import ToolCall
from scalerl.registry import Registry
from scalerl.text import one_line

#: A parser: from the text of a turn to the text without calls, and the calls.
ToolFormat: TypeAlias = Callable[[str], tuple[str, tuple[ToolCall, ...]]]
TOOL_FORMATS: Registry[ToolFormat] = Registry("tool format")

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
#: Special token behind which Llama 3 writes calls.
PYTHON_TAG = "<|python_tag|>"
#: Longest argument of a plain call, in characters: Python's parser takes its time over long
#: nonsense, and more memory than the text has.
_LONGEST_LITERAL = 10_000
_CALL = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\(")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)")


@TOOL_FORMATS.register("hermes")
def hermes(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Calls as JSON between `<tool_call>` and `</tool_call>`."""
    return _tagged(text, _json_call)


@TOOL_FORMATS.register("plain")
def plain(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Calls as Python writes them, between the tags of `hermes`. Values are Python literals; words
    without quotes are text. Arguments without a name are numbered from "0"."""
    return _tagged(text, _plain_call)


@TOOL_FORMATS.register("llama3")
def llama3(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Calls as JSON that is the whole turn, several separated by semicolons. Behind
    `<|python_tag|>` nothing but calls is allowed."""
    before, tag, rest = text.partition(PYTHON_TAG)
    source = (rest if tag else text).strip()
    if not tag and not (source.startswith("{") and '"name"' in source):
        return text.strip(), ()
    calls: list[ToolCall] = []
    decoder = json.JSONDecoder()
    at = 0
    while at < len(source):
        try:
            found, at = decoder.raw_decode(source, at)
        except (ValueError, RecursionError):
            if not tag and not calls:
                # An answer in JSON, or a broken call: only what looks like a call is one.
                looks = '"parameters"' in source or '"arguments"' in source
                return ("", (_broken("it is not JSON"),)) if looks else (text.strip(), ())
            calls.append(_broken("it is not JSON"))
            break
        if not tag and not (isinstance(found, dict) and _is_call(found)):
            return text.strip(), ()
        calls.append(_from_object(found))
        at = _next_call(source, at)
    return (before if tag else "").strip(), tuple(calls)


def detect(chat_template: str | None) -> str:
    """The name of the format that a chat template asks the model to write calls in.

    >>> detect("… within <tool_call></tool_call> XML tags"), detect(None)
    ('hermes', 'plain')
    """
    template = chat_template or ""
    if _OPEN in template:
        return "hermes"
    if PYTHON_TAG in template or ("ipython" in template and '"parameters": ' in template):
        return "llama3"
    return "plain"


def _tagged(text: str, read: Callable[[str], ToolCall]) -> tuple[str, tuple[ToolCall, ...]]:
    kept: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    while (start := text.find(_OPEN, at)) >= 0:
        kept.append(text[at:start])
        begin = start + len(_OPEN)
        end = text.find(_CLOSE, begin)
        if end < 0:
            calls.append(_broken(f"{_CLOSE} is missing"))
            at = len(text)
            break
        calls.append(read(text[begin:end]))
        at = end + len(_CLOSE)
    kept.append(text[at:])
    return "".join(kept).strip(), tuple(calls)


def _broken(why: str, name: str = "") -> ToolCall:
    return ToolCall(name, problem=one_line(f"the tool call cannot be read: {why}"))


def _json_call(source: str) -> ToolCall:
    try:
        return _from_object(json.loads(source))
    except (ValueError, RecursionError) as error:
        return _broken(f"it is not JSON ({str(error)[:100]})")


def _is_call(found: Mapping[str, Any]) -> bool:
    return "name" in found and ("parameters" in found or "arguments" in found)


def _from_object(found: Any) -> ToolCall:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return _broken('it must be an object with a "name"')
    name = found["name"]
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # as OpenAI's API writes them
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return _broken('"arguments" is text, not an object', name)
    if not isinstance(arguments, dict):
        return _broken('"arguments" must be an object', name)
    return ToolCall(name, arguments)


def _next_call(source: str, at: int) -> int:
    while at < len(source) and (source[at].isspace() or source[at] == ";"):
        at += 1
    return at


def _plain_call(source: str) -> ToolCall:
    match = _CALL.match(source)
    if match is None or not source.rstrip().endswith(")"):
        return _broken("write it as name(argument, key=value)")
    name, inside = match[1], source[match.end() : source.rindex(")")]
    arguments: dict[str, Any] = {}
    try:
        for number, part in enumerate(_parts(inside)):
            key = _KEY.match(part)
            arguments[key[1] if key else str(number)] = _literal(part[key.end() :] if key else part)
    except ValueError as why:
        return _broken(str(why), name)
    return ToolCall(name, arguments)


def _parts(inside: str) -> Iterator[str]:
    """The arguments between the commas that are in no quotes and no brackets."""
    begin, depth, quote, escaped = 0, 0, "", False
    before = ""  # the last letter of this argument that is no space
    for i, letter in enumerate(inside):
        if quote:
            if escaped:
                escaped = False
            elif letter == "\\":
                escaped = True
            elif letter == quote:
                quote = ""
        # A quote opens a text at the beginning of a value only: the apostrophe of a bare word.
        elif letter in "\"'" and (depth or before in ("", "=")):
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and not depth:
            yield inside[begin:i]
            begin, before = i + 1, ""
            continue
        if not letter.isspace():
            before = letter
    if quote or depth:
        raise ValueError("a quote or a bracket is not closed")
    if inside[begin:].strip():
        yield inside[begin:]


def _literal(text: str) -> Any:
    text = text.strip()
    if len(text) > _LONGEST_LITERAL:
        raise ValueError(f"an argument is longer than {_LONGEST_LITERAL} characters")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if text[:1] in "\"'([{" or not text:
            raise ValueError(f"{text[:40]!r} is not a value") from None
        return {"true": True, "false": False, "null": None}.get(text, text)
