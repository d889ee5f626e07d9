"""Definition of a field of a recipe: default, meaning, unit, and where the default comes from."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

Scalar = str | bool | int | float
#: The value of an option that scalerl passes on (to a task, or to a loss of your own).
Option = Scalar | list[Scalar]

#: Where a number comes from. "paper" is arXiv 2510.13786 (ScaleRL); "derived" is arithmetic on it;
#: "community" is another project's code; "not stated" means that the paper is silent and we chose.
MARKS = ("paper", "derived", "community", "not stated", "ours")


#: A constant without a default: the user has to set it.
REQUIRED = object()
#: Why a choice does not use a constant, where the reason helps: (key, choice) → reason.
REASONS = {
    ("length.max_tokens", "interruption"): "length.think_tokens_max and length.answer_tokens limit "
    "a rollout",
}


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


def _empty(info: FieldInfo) -> Any:
    kind = get_origin(info.annotation) or info.annotation
    return kind() if kind in (str, tuple, dict) else None


def field(default: Any, meaning: str, source: str, *, unit: str = "", **limits: Any) -> Any:
    """A field with its one-line meaning, its unit, and the source of its default."""
    if not source.startswith(MARKS):
        raise ValueError(f"{source!r} must start with one of {', '.join(MARKS)}")
    about: dict[str, Any] = {"unit": unit, "source": source}
    return Field(default, description=meaning, json_schema_extra=about, **limits)


def with_constants(data: Any, path: str, table: dict[str, dict[str, Any]], default: str) -> Any:
    """`data` with the constants of its choice filled in; ValueError for those of other choices."""
    if not isinstance(data, dict):
        return data
    section, switch = path.split(".")
    # None is an unset key: it gets the default of the choice.
    data = {key: value for key, value in data.items() if value is not None}
    choice = data.get(switch, default)
    # The field of the choice refuses a wrong one, with the list of those that exist.
    if not isinstance(choice, str) or choice not in table:
        return data
    others = {k for constants in table.values() for k in constants} - set(table[choice])
    # Sorted, since a set has no order: the same error for the same recipe.
    for key in sorted(others):
        if key in data:
            users = " and ".join(name for name, constants in table.items() if key in constants)
            why = REASONS.get((f"{section}.{key}", choice))
            raise ValueError(
                f"{section}.{key} is not used by {choice}, only by {users}: leave it out"
                + (f" ({why})" if why else "")
            )
    constants = {**table[choice], **data}
    missing = [f"{section}.{key}" for key, value in constants.items() if value is REQUIRED]
    if missing:
        raise ValueError(f'{path} = "{choice}" needs {" and ".join(missing)}: set them')
    return constants


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


def kind(info: FieldInfo) -> str:
    """The type of a field, with its limits."""
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
        return "numbers"
    if origin is dict:
        return "table"
    if origin is Annotated:
        return type_in_words(inside[0])
    return {str: "text", int: "integer", float: "number", bool: "boolean"}[annotation]
