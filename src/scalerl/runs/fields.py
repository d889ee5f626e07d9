"""Records as types: frozen dataclasses that go to JSON and come back.

Writing is strict, reading is lenient. Code that makes a record gives every field without a default,
which mypy checks. A record that is read may be of another version, or damaged: unknown keys are
ignored, and a value that is missing or of the wrong type becomes the field's default, or the empty
value of its type (nan, 0, "", None, an empty list). Without a field that is `needed`, or one of a
few words without a default, there is no record.

    written by a later version     {"step": 3, "loss": null, "mood": "fine"}
    read                           StepLine(step=3, loss=nan, grad_norm=nan, ...)
    read, without its step         None
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, dataclass_transform

T = TypeVar("T")
#: Returned by a reader for a value that is not of its type.
_WRONG = object()


def about(
    meaning: str,
    *,
    unit: str = "",
    needed: bool = False,
    default: Any = MISSING,
    default_factory: Any = MISSING,
) -> Any:
    """A field with its meaning, as docs/reference/run-record.md shows it."""
    metadata = {"meaning": meaning, "unit": unit, "needed": needed}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, field_specifiers=(about,))
def record(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass with slots, its fields made by `about`."""
    return dataclass(frozen=True, slots=True)(cls)


class Record:
    """Base class of records: conversion to and from JSON values."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values; a field that is None, and None by default, is left out."""
        found = {}
        kind: Any = type(self)
        for name, shown_as_none in _written(kind):
            value = getattr(self, name)
            if value is not None or shown_as_none:
                found[name] = _plain(value)
        return found

    @classmethod
    def from_dict(cls, found: Any) -> Self | None:
        """The record in a JSON value, by the rules above; None where a needed field is missing.
        Never raises."""
        if not isinstance(found, dict):
            return None
        values = []
        kind: Any = cls
        for name, read, default, needed in _readers(kind):
            value = read(found[name]) if name in found else _WRONG
            if value is _WRONG:
                if needed:
                    return None
                value = default()
            values.append(value)
        return cls(*values)


#: Types that JSON has, by exact type: what an episode has most of, its tokens, takes no call each.
_SCALARS = frozenset({int, float, str, bool, type(None)})


@cache
def _written(cls: Any) -> tuple[tuple[str, bool], ...]:
    """For every field: its name, and whether it is written when it is None."""
    return tuple((each.name, each.default is not None) for each in fields(cls))


def _plain(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        if _SCALARS.issuperset(map(type, value)):
            return list(value)
        return [_plain(v) for v in value]
    return value


# -- reading --------------------------------------------------------------------------------------


@cache
def _readers(
    cls: Any,
) -> tuple[tuple[str, Callable[[Any], Any], Callable[[], Any], bool], ...]:
    """For every field: its name, reader, default and whether it is needed."""
    # Cached by type, because working out the hints takes longer than reading a line, and a run has
    # a hundred thousand lines.
    hints = typing.get_type_hints(cls)
    return tuple(
        (f.name, _reader(hints[f.name]), _default(f, hints[f.name]), _is_needed(f, hints[f.name]))
        for f in fields(cls)
    )


def _is_needed(each: Field[Any], kind: Any) -> bool:
    # One of a few words has no empty value.
    has_default = each.default is not MISSING or each.default_factory is not MISSING
    return bool(each.metadata["needed"]) or (typing.get_origin(kind) is Literal and not has_default)


def _default(each: Field[Any], kind: Any) -> Callable[[], Any]:
    if each.default_factory is not MISSING:
        return each.default_factory
    if each.default is not MISSING:
        return lambda: each.default
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return lambda: None
    if isinstance(kind, type) and issubclass(kind, Record):
        return lambda: kind.from_dict({})
    if kind is float:
        return lambda: math.nan
    empty: Callable[[], Any] = origin or kind  # int() is 0, dict() is {} ...
    return empty


def _reader(kind: Any) -> Callable[[Any], Any]:
    """How a value of JSON becomes one of this type, or `_WRONG`."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        (one,) = [part for part in inside if part is not type(None)]
        read = _reader(one)
        return lambda value: None if value is None else read(value)
    if origin is Literal:
        return lambda value: value if isinstance(value, str) and value in inside else _WRONG
    if origin is tuple:
        return _sequence(_reader(inside[0]))
    if origin is dict:
        return _mapping(_reader(inside[1]), whole=inside[0] is int)
    if issubclass(kind, Record):
        return lambda value: _WRONG if (made := kind.from_dict(value)) is None else made
    if issubclass(kind, tuple):  # a NamedTuple of whole numbers
        return _named(kind)
    return {float: _number, int: _whole}.get(kind, _exactly(kind))


def _exactly(kind: type) -> Callable[[Any], Any]:
    return lambda value: value if type(value) is kind else _WRONG


def _number(value: Any) -> Any:
    # By exact type, here and below, because true and false are integers to isinstance.
    if type(value) is float:
        return value
    try:
        return float(value) if type(value) is int else _WRONG
    except OverflowError:
        return _WRONG


def _whole(value: Any) -> Any:
    if type(value) is int:
        return value
    return int(value) if type(value) is float and value.is_integer() else _WRONG


def _sequence(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def items(value: Any) -> Any:
        if not isinstance(value, list):
            return _WRONG
        return tuple(found for found in map(read, value) if found is not _WRONG)

    return items


def _mapping(read: Callable[[Any], Any], *, whole: bool) -> Callable[[Any], Any]:
    """A reader of objects; `whole`: keys, which are text in JSON, become integers again."""

    def items(value: Any) -> Any:
        if not isinstance(value, dict):
            return _WRONG
        found = {_key(k) if whole else k: read(v) for k, v in value.items()}
        return {k: v for k, v in found.items() if k is not _WRONG and v is not _WRONG}

    return items


def _key(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return _WRONG


def _named(kind: Any) -> Callable[[Any], Any]:
    def made(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(kind._fields):
            return _WRONG
        numbers = [_whole(v) for v in value]
        return _WRONG if _WRONG in numbers else kind(*numbers)

    return made
