"""Tools: Python functions that the model may call.

The JSON schema that the model is shown comes from a function's type hints and docstring (in
Google's, NumPy's or Sphinx' style). What goes wrong in a call becomes text for the model: it wrote
the call, and may write a better one.

>>> def add(a: int, b: int = 1) -> int:
...     '''Add two numbers.
...
...     Args:
...         a: The first.
...         b: The second.
...     '''
...     return a + b
>>> schema_of(add)["function"]["parameters"]["properties"]["a"]
{'type': 'integer', 'description': 'The first.'}
>>> import asyncio
>>> asyncio.run(ToolBox([add]).call(ToolCall("add", {"a": "2"})))
ToolReply(text='3', failed=False)
>>> asyncio.run(ToolBox([add]).call(ToolCall("add", {"a": "two"})))
ToolReply(text="error: add: argument a must be an integer, not 'two'", failed=True)
"""

from __future__ import annotations

import enum
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from scalerl.environments.docstrings import read_docstring
from scalerl.environments.interface import ToolCall, ToolSchema
from scalerl.environments.threads import OwnThread
from scalerl.errors import InputError
from scalerl.tasks.task import Message, named
from scalerl.text import listed, one_line

#: Types without parts, as JSON schemas call them, and in words for the model.
_SIMPLE: dict[Any, tuple[str, str]] = {
    str: ("string", "text"),
    int: ("integer", "an integer"),
    float: ("number", "a number"),
    bool: ("boolean", "true or false"),
}
_LISTS = (list, tuple, set, Sequence, Iterable)
_MAPPINGS = (dict, Mapping)


class _Unfit(Exception):
    """A value is not of the type; the text says what it must be."""


@dataclass(frozen=True, slots=True)
class ToolReply:
    """What a call of a tool gave."""

    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    schema: ToolSchema
    #: Called with the arguments by name; may be async.
    function: Callable[..., Any]
    #: Types of the arguments; None: they are passed as they are, and checked elsewhere.
    hints: Mapping[str, Any] | None = None

    @staticmethod
    def from_function(function: Callable[..., Any]) -> Tool:
        """A tool from a function with type hints; raises InputError without them."""
        schema = schema_of(function)
        return Tool(schema["function"]["name"], schema, function, _hints(function))


class ToolBox:
    """The tools of an environment. Blocking ones run in a thread, one call after another: in a
    thread of their own unless one is given."""

    def __init__(
        self, tools: Iterable[Callable[..., Any] | Tool], thread: OwnThread | None = None
    ) -> None:
        made = [t if isinstance(t, Tool) else Tool.from_function(t) for t in tools]
        self.tools = {tool.name: tool for tool in made}
        if len(self.tools) < len(made):
            names = [tool.name for tool in made]
            twice = next(n for n in names if names.count(n) > 1)
            raise InputError(f"two tools are named {twice}: rename one")
        #: Calls that failed so far.
        self.failures = 0
        self._thread = thread or OwnThread()

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """The schemas of all tools, for `Observation.tools`."""
        return tuple(tool.schema for tool in self.tools.values())

    async def run(self, calls: Iterable[ToolCall]) -> tuple[tuple[Message, ...], int]:
        """The replies to the calls of a turn as messages, in order, and how many failed."""
        messages, failed = [], 0
        for call in calls:
            reply = await self.call(call)
            messages.append({"role": "tool", "name": call.name, "content": reply.text})
            failed += reply.failed
        return tuple(messages), failed

    async def call(self, call: ToolCall) -> ToolReply:
        """The reply to one call. Never raises because of what the model wrote."""
        try:
            return ToolReply(_text(await self._called(call)))
        except _Unfit as why:
            text = one_line(str(why))
        except (Exception, SystemExit) as error:
            text = one_line(f"{call.name} raised {named(error)}")
        self.failures += 1
        return ToolReply(f"error: {text}", failed=True)

    async def _called(self, call: ToolCall) -> Any:
        if call.problem is not None:
            raise _Unfit(call.problem)
        tool = self.tools.get(call.name)
        if tool is None:
            raise _Unfit(f"there is no tool {call.name!r}, only {listed(self.tools)}")
        return await self._thread.run(tool.function, **_arguments(tool, call.arguments))

    def close(self) -> None:
        """End the thread in which blocking tools run."""
        self._thread.stop()


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a function, as chat templates take it; raises InputError in one line
    where a type hint is missing or cannot be a schema."""
    name = getattr(function, "__name__", type(function).__name__)
    about, described = read_docstring(inspect.getdoc(function) or "")
    hints = _hints(function)
    properties: dict[str, Any] = {}
    required = []
    for parameter in _parameters(function):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InputError(
                f"tool {name} takes *{parameter.name}: name each parameter, for the model to see"
            )
        if parameter.name not in hints:
            raise InputError(
                f"tool {name} has no type hint for {parameter.name}: write "
                f"`{parameter.name}: str` or another type"
            )
        try:
            found = _type_schema(hints[parameter.name])
        except _Unfit as why:
            raise InputError(
                f"tool {name}: {parameter.name} has the type {why}, which is none of str, int, "
                "float, bool, list, dict, Literal, an Enum, or one of these or None: change it"
            ) from None
        if parameter.name in described:
            found["description"] = described[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif isinstance(parameter.default, str | int | float | bool):
            found["default"] = parameter.default
        properties[parameter.name] = found
    takes = {"type": "object", "properties": properties, "required": required}
    facts = {"name": name, "description": about, "parameters": takes}
    return {"type": "function", "function": facts}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target)
    except Exception as error:  # a hint may name anything
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(
            f"tool {name} has type hints that cannot be read ({one_line(named(error))}): import "
            "what they name"
        ) from None


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union; empty for other types."""
    return get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else ()


def _type_schema(hint: Any) -> dict[str, Any]:
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint][0]}
    if hint is Any:
        return {}
    if hint is type(None):
        return {"type": "null"}
    if _options(hint):
        kinds = [_type_schema(part) for part in parts if part is not type(None)]
        nullable = {"nullable": True} if type(None) in parts else {}
        return {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}), **nullable}
    if origin is Literal:
        return _values(parts)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _values([member.value for member in hint])
    if origin is typing.Annotated:
        return _type_schema(parts[0])
    if hint in _LISTS or origin in _LISTS:
        items = {"items": _type_schema(parts[0])} if parts else {}
        return {"type": "array", **items}
    if hint in _MAPPINGS or origin in _MAPPINGS:
        values = {"additionalProperties": _type_schema(parts[1])} if parts else {}
        return {"type": "object", **values}
    raise _Unfit(getattr(hint, "__name__", str(hint)))


def _values(values: Sequence[Any]) -> dict[str, Any]:
    kinds = {type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return ({"type": _SIMPLE[kind][0]} if kind in _SIMPLE else {}) | {"enum": list(values)}


def _arguments(tool: Tool, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, converted to their types."""
    if tool.hints is None:
        return dict(given)
    known = {p.name: p for p in _parameters(tool.function)}
    # Arguments that were written without a name are numbered (`scalerl.environments.parsers`).
    given = {argument_name(key, list(known)): value for key, value in given.items()}
    for key in given:
        if key not in known:
            raise _Unfit(f"{tool.name} has no argument {key!r}, only {listed(known)}")
    for key, parameter in known.items():
        if key not in given and parameter.default is parameter.empty:
            raise _Unfit(f"{tool.name}: argument {key} is missing")
    found = {}
    for key, value in given.items():
        try:
            found[key] = _convert(value, tool.hints[key])
        except _Unfit as what:
            shown = one_line(repr(value), 80)
            raise _Unfit(f"{tool.name}: argument {key} must be {what}, not {shown}") from None
    return found


def argument_name(key: str, known: Sequence[str]) -> str:
    """The name of an argument, which is numbered if the model wrote none."""
    return known[int(key)] if key.isdecimal() and int(key) < len(known) else key


def _convert(value: Any, hint: Any) -> Any:
    """The value as the type asks; raises `_Unfit`."""
    if _options(hint):
        return _first_that_fits(value, get_args(hint))
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return _simple(value, hint)
    if hint is type(None):
        if value is None:
            return None
        raise _Unfit("nothing")
    if origin is typing.Annotated:
        return _convert(value, parts[0])
    if origin is Literal:
        if value in parts:
            return value
        raise _Unfit(f"one of {listed(map(repr, parts))}")
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        for member in hint:
            if value in (member.value, member.name):
                return member
        raise _Unfit(f"one of {listed(repr(m.value) for m in hint)}")
    if hint in _LISTS or origin in _LISTS:
        if not isinstance(value, list | tuple):
            raise _Unfit("a list")
        made = [_convert(each, parts[0]) for each in value] if parts else list(value)
        kind = origin or hint
        return kind(made) if kind in (tuple, set) else made
    if hint in _MAPPINGS or origin in _MAPPINGS:
        if not isinstance(value, Mapping):
            raise _Unfit("an object")
        return {k: _convert(v, parts[1]) for k, v in value.items()} if parts else dict(value)
    return value


def _first_that_fits(value: Any, hints: Sequence[Any]) -> Any:
    # A type that the value has already wins over one that it could be converted to.
    exact = [h for h in hints if isinstance(h, type) and type(value) is h]
    wanted = []
    for hint in (*exact, *hints):
        try:
            return _convert(value, hint)
        except _Unfit as what:
            wanted.append(str(what))
    raise _Unfit(" or ".join(dict.fromkeys(wanted)))


def _simple(value: Any, kind: type) -> Any:
    if type(value) is kind and kind is not float:
        return value
    try:
        if kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if kind is str and isinstance(value, int | float):
            return json.dumps(value)
        if not isinstance(value, bool) and isinstance(value, int | float | str):
            number = float(value)
            if kind is float and math.isfinite(number):
                return number
            if kind is int and (isinstance(value, str) or number.is_integer()):
                return int(value)
    except (ValueError, KeyError, OverflowError):
        pass
    raise _Unfit(_SIMPLE[kind][1])


def _text(found: Any) -> str:
    """What a tool returned, as the model is shown it."""
    if isinstance(found, str):
        return found
    if isinstance(found, bytes | bytearray):
        raise _Unfit(f"the tool returned {type(found).__name__}, not text")
    if found is None:
        return ""
    try:
        return json.dumps(found, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(found)
