"""JSON schemas of the API, made by small functions or from the types of the run record.

A schema here is a plain dict, as OpenAPI 3.1 has it. Units are in the extension `x-unit`.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Collection
from dataclasses import fields
from typing import Any, Literal, Union

from scalerl.runs.fields import Record

Schema = dict[str, Any]
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def value(kind: str, meaning: str, unit: str = "", *, null: bool = False, **limits: Any) -> Schema:
    """The schema of a plain value: `number`, `integer`, `string` or `boolean`.

    >>> value("number", "the loss", null=True)["type"]
    ['number', 'null']
    """
    found: Schema = {"type": [kind, "null"] if null else kind, "description": meaning}
    return found | ({"x-unit": unit} if unit else {}) | limits


def number(meaning: str, unit: str = "", *, null: bool = False, **limits: Any) -> Schema:
    return value("number", meaning, unit, null=null, **limits)


def integer(meaning: str, unit: str = "", *, null: bool = False, **limits: Any) -> Schema:
    return value("integer", meaning, unit, null=null, **limits)


def text(meaning: str, *, null: bool = False, **limits: Any) -> Schema:
    return value("string", meaning, null=null, **limits)


def flag(meaning: str) -> Schema:
    return value("boolean", meaning)


def array(items: Schema, meaning: str = "", *, null: bool = False) -> Schema:
    found: Schema = {"type": ["array", "null"] if null else "array", "items": items}
    return found | ({"description": meaning} if meaning else {})


def mapping(values: Schema, meaning: str) -> Schema:
    """An object with any names, whose values all have one schema."""
    return {"type": "object", "description": meaning, "additionalProperties": values}


def anything(meaning: str) -> Schema:
    """A value of any type."""
    return {"description": meaning}


def fields_of(
    meaning: str, properties: dict[str, Schema], *, optional: Collection[str] = (),
    null: bool = False,
) -> Schema:  # fmt: skip
    """An object with exactly these fields; those in `optional` may be left out.

    >>> fields_of("a point", {"x": number("place")})["required"]
    ['x']
    """
    return {
        "type": ["object", "null"] if null else "object",
        "description": meaning,
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def ref(name: str) -> Schema:
    """A schema among the components of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


# -- the types of the run record ------------------------------------------------------------------


def record_schemas(*records: type[Record]) -> dict[str, Schema]:
    """Schemas of these types of the record and of all that they hold, by the type's name."""
    found: dict[str, Schema] = {}
    for each in records:
        _add(each, found)
    return found


def _add(kind: type[Record], found: dict[str, Schema]) -> None:
    if kind.__name__ in found:
        return
    hints = typing.get_type_hints(kind)
    schema = found[kind.__name__] = fields_of(_in_one_line(kind), {})
    for each in fields(kind):
        made = _schema_of(hints[each.name], found)
        # A reference cannot carry a description of its own in every tool, so it gets a wrapper.
        made = {"allOf": [made]} if "$ref" in made else made
        made["description"] = each.metadata["meaning"]
        if each.metadata["unit"]:
            made["x-unit"] = each.metadata["unit"]
        schema["properties"][each.name] = made
        # `to_dict` leaves out what is None where None is the default.
        if each.default is not None:
            schema["required"].append(each.name)


def _in_one_line(kind: type) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split())


def _schema_of(hint: Any, found: dict[str, Schema]) -> Schema:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        (one,) = [part for part in inside if part is not type(None)]
        return or_null(_schema_of(one, found))
    if origin is Literal:
        return {"type": "string", "enum": list(inside)}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(inside[0], found)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(inside[1], found)}
    if issubclass(hint, Record):
        _add(hint, found)
        return ref(hint.__name__)
    if issubclass(hint, tuple):  # a NamedTuple of whole numbers
        return {"type": "array", "items": {"type": "integer"}}
    # A number that is not finite is null in JSON.
    return {"type": ["number", "null"] if hint is float else _JSON_TYPES[hint]}
