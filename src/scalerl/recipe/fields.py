"""Definition of a field of a recipe: default, meaning, unit, and where the default comes from."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from scalerl.recipe.names import Names

Scalar = str | bool | int | float
#: The value of an option that scalerl passes on (to a task, or to a loss of your own).
Option = Scalar | list[Scalar]

#: Where a number comes from. "paper" is arXiv 2510.13786 (ScaleRL); "derived" is arithmetic on it;
#: "community" is another project's code; "not stated" means that the paper is silent and we chose.
MARKS = ("paper", "derived", "community", "not stated", "ours")


class Section(BaseModel):
    """A section of a recipe: frozen, strict about types; unknown keys are errors."""

    # strict: TOML has types, so "8" for 8 is a mistake. No inf or nan: JSON cannot hold them.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _unset(cls, data: Any) -> Any:
        """An unset key (`task.dataset=` on the command line) becomes the empty text, list or table;
        a key of another type stays None."""
        if not isinstance(data, Mapping):
            return data
        unset = {k: i for k, i in cls.model_fields.items() if k in data and data[k] is None}
        return {**data, **{name: _empty(info) for name, info in unset.items()}}

    @classmethod
    def all_fields(cls) -> dict[str, FieldInfo]:
        """The fields by name; of a section with a type for each choice (`Choice`), those of all."""
        return dict(cls.model_fields)


def _empty(info: FieldInfo) -> Any:
    kind = get_origin(info.annotation) or info.annotation
    return kind() if kind in (str, tuple, dict) else None


def field(default: Any, meaning: str, source: str, *, unit: str = "", **limits: Any) -> Any:
    """A field with its one-line meaning, its unit, and the source of its default."""
    if not source.startswith(MARKS):
        raise ValueError(f"{source!r} must start with one of {', '.join(MARKS)}")
    about: dict[str, Any] = {"unit": unit, "source": source}
    return Field(default, description=meaning, json_schema_extra=about, **limits)


# -- fields in words, for the recipe that `scalerl init` writes and for the docs -------------------


def meaning(info: FieldInfo) -> str:
    """The meaning of a field, with its unit unless the meaning names it.

    >>> meaning(field(1, "length of a prompt", "ours", unit="tokens"))
    'length of a prompt [tokens]'
    """
    extra = info.json_schema_extra
    unit = extra.get("unit") if isinstance(extra, dict) else None
    about = info.description or ""
    return f"{about} [{unit}]" if unit and str(unit) not in about else about


def names_of(info: FieldInfo) -> list[str]:
    """The names that a field takes, besides import paths; empty if it is not a field of names."""
    return [name for names in info.metadata if isinstance(names, Names) for name in names]


def kind(info: FieldInfo) -> str:
    """The type of a field, with its limits."""
    if names := names_of(info):
        return ", ".join(f"`{name}`" for name in names) + " or `package.module:name`"
    limits = []
    for limit in info.metadata:
        for attribute, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
            bound = getattr(limit, attribute, None)
            if bound is not None:
                limits.append(f"{sign} {bound}")
    return " ".join([type_in_words(info.annotation), ", ".join(limits)]).strip()


def type_in_words(annotation: Any) -> str:
    """The type of a field in words: the choices, or what TOML calls it."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inside)
    if origin in (Union, types.UnionType):
        names = [type_in_words(part) for part in inside if part is not type(None)]
        return " or ".join(dict.fromkeys(names))
    if origin is tuple:
        return "names" if type_in_words(inside[0]) == "text" else "numbers"
    if origin is dict:
        return "table"
    if origin is Annotated:
        return type_in_words(inside[0])
    return {str: "text", int: "integer", float: "number", bool: "boolean"}[annotation]
