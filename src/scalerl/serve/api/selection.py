"""Which runs a request for the list asks for, and the fields that the contract documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalerl.errors import InputError
from scalerl.serve.api.schema import Schema

#: Fields of a run that `where` compares, besides the keys of its recipe.
RUN_FIELDS = ("name", "where", "kind", "status", "group", "recipe", "study", "x", "step", "points")
#: Start of a reference to a component.
_COMPONENT = "#/components/schemas/"


# -- filters --------------------------------------------------------------------------------------


def parse_where(given: Sequence[str]) -> list[tuple[str, bool, str]]:
    """(key, whether it has to be equal, value) of each KEY=VALUE or KEY!=VALUE.

    >>> parse_where(["optimiser.lr=1e-4", "status!=failed"])
    [('optimiser.lr', True, '1e-4'), ('status', False, 'failed')]
    """
    found = []
    for text in given:
        key, equals, wanted = text.partition("=")
        if not equals or not key.strip("! "):
            raise InputError(
                f"where is KEY=VALUE, for example optimiser.lr=1e-4, not {text[:60]!r}"
            )
        found.append((key.rstrip("!").strip(), not key.endswith("!"), wanted.strip()))
    return found


def matches(
    where: Sequence[tuple[str, bool, str]], run: Mapping[str, Any], recipe: Mapping[str, Any]
) -> bool:
    """Whether a run has these values. A run without the key has no value that is equal."""
    for key, wants_equal, wanted in where:
        value = recipe.get(key)
        if value is None and key in RUN_FIELDS:
            value = run.get(key)
        if same_value(value, wanted) != wants_equal:
            return False
    return True


def same_value(value: Any, wanted: str) -> bool:
    """Whether a value of a recipe is what a person typed.

    >>> same_value(0.0001, "1e-4"), same_value(True, "true"), same_value("dapo", "cispo")
    (True, True, False)
    """
    if isinstance(value, bool):
        return wanted.lower() == str(value).lower()
    if isinstance(value, int | float):
        try:
            return float(wanted) == value
        except ValueError:
            return False
    if value is None:
        return wanted in ("", "null")
    if isinstance(value, list):
        return any(same_value(each, wanted) for each in value)
    return bool(str(value) == wanted)


def has_words(run: Mapping[str, Any], words: str) -> bool:
    """Whether a run's name, path, recipe or status contain all words."""
    fields = ("name", "where", "group", "recipe", "status")
    text = " ".join(str(run.get(field) or "") for field in fields).lower()
    return all(word in text for word in words.lower().split())


def dotted(values: Mapping[str, Any], under: str = "") -> dict[str, Any]:
    """The values of a recipe by dotted key.

    >>> dotted({"seed": 1, "optimiser": {"lr": 0.1}})
    {'seed': 1, 'optimiser.lr': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= dotted(value, f"{under}{key}.")
        else:
            found[under + key] = value
    return found


# -- the documented fields ------------------------------------------------------------------------


def documented(value: Any, schema: Schema, components: Mapping[str, Schema]) -> Any:
    """A value with the fields that its schema documents, and no others: what the page's own routes
    have beyond them is no part of the contract."""
    if "$ref" in schema:
        return documented(value, components[schema["$ref"].removeprefix(_COMPONENT)], components)
    for choice in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        if value is not None and choice != {"type": "null"}:
            return documented(value, choice, components)
    if isinstance(value, Mapping):
        if "properties" in schema:
            known = schema["properties"].items()
            return {k: documented(value[k], each, components) for k, each in known if k in value}
        inner = schema.get("additionalProperties")
        if isinstance(inner, dict):
            return {k: documented(v, inner, components) for k, v in value.items()}
    if isinstance(value, list | tuple) and "items" in schema:
        return [documented(each, schema["items"], components) for each in value]
    return value
