"""How a field of a recipe is written down: default, meaning, unit, and source of the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

Scalar = str | bool | int | float
#: What an option that scalerl itself knows nothing of may be.
Option = Scalar | list[Scalar]

#: Where a number comes from. "paper" is arXiv 2510.13786 (ScaleRL); "derived" is arithmetic on it;
#: "community" is another project's code; "not stated" means that the paper is silent and we chose.
MARKS = ("paper", "derived", "community", "not stated", "ours")


class Section(BaseModel):
    """A part of a recipe: frozen, strict about types, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _unset(cls, data: Any) -> Any:
        """A key that is unset (`task.dataset=` on the command line) is empty, where its kind has
        something empty: text, a list, a table."""
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
