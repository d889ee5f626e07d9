"""How a route of the API and its parameters are declared, checked and documented."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scalerl.errors import InputError
from scalerl.serve.api.schema import Schema

#: Path of version 1.
PREFIX = "/api/v1"
#: Characters in the value of a parameter.
MAX_VALUE = 2000
#: Values of a parameter that may be repeated.
MAX_VALUES = 64

ParameterKind = Literal["string", "integer", "number", "boolean", "strings", "numbers"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a request: in the path, or in the query."""

    name: str
    meaning: str
    #: `strings`: may be repeated; `numbers`: separated by commas.
    kind: ParameterKind = "string"
    place: Literal["query", "path"] = "query"
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    required: bool = False

    def read(self, given: list[str]) -> Any:
        """The value in a query; InputError where it is not of its kind.

        >>> Parameter("limit", "runs", "integer", default=50, high=500).read(["20"])
        20
        """
        if self.kind == "strings":
            if len(given) > MAX_VALUES:
                raise InputError(f"{self.name}: at most {MAX_VALUES} at a time")
            return given
        if len(given) > 1:
            raise InputError(f"{self.name} is given twice")
        (word,) = given
        if len(word) > MAX_VALUE:
            raise InputError(f"{self.name}: at most {MAX_VALUE} characters")
        if self.choices and word not in self.choices:
            raise InputError(f"{self.name} is one of {', '.join(self.choices)}")
        if self.kind == "numbers":
            return [self._number(each) for each in word.split(",")]
        if self.kind in ("integer", "number"):
            return self._number(word)
        if self.kind == "boolean":
            return _flag(self.name, word)
        return word

    def _number(self, word: str) -> float | int:
        whole = self.kind == "integer"
        try:
            found = int(word) if whole else float(word)
        except ValueError:
            found = math.nan
        # The ends of a range refuse nan as well.
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not (math.isfinite(found) and low <= found <= high):
            kind = "a whole number" if whole else "a number"
            ends = [f"from {self.low:g}"] if self.low is not None else []
            ends += [f"up to {self.high:g}"] if self.high is not None else []
            raise InputError(" ".join([f"{self.name} is {kind}", *ends]))
        return found

    def to_dict(self) -> dict[str, Any]:
        """The parameter as OpenAPI has it."""
        found: dict[str, Any] = {
            "name": self.name,
            "in": self.place,
            "description": self.meaning,
            "required": self.required or self.place == "path",
            "schema": self._schema(),
        }
        if self.kind in ("strings", "numbers"):
            found |= {"style": "form", "explode": self.kind == "strings"}
        return found

    def _schema(self) -> Schema:
        if self.kind in ("strings", "numbers"):
            return {"type": "array", "items": {"type": self.kind.removesuffix("s")}}
        found: Schema = {"type": self.kind}
        limits = {"default": self.default, "minimum": self.low, "maximum": self.high}
        found |= {name: value for name, value in limits.items() if value is not None}
        return found | ({"enum": list(self.choices)} if self.choices else {})


def _flag(name: str, word: str) -> bool:
    if word not in ("1", "true", "0", "false"):
        raise InputError(f"{name} is 1 or 0")
    return word in ("1", "true")


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A route of the API; all are GET."""

    path: str
    #: Name of the operation, and of the method of `handlers.Api` (or of `serve.episodes`).
    handler: str
    summary: str
    response: Schema
    parameters: tuple[Parameter, ...] = ()

    @property
    def whole_path(self) -> str:
        return PREFIX + self.path

    def read(self, given: Mapping[str, list[str]]) -> dict[str, Any]:
        """The values of all parameters of a query; InputError names one that is unknown, missing
        or wrong."""
        known = {p.name: p for p in self.parameters if p.place == "query"}
        unknown = sorted(given.keys() - known)
        if unknown:
            has = f"has {', '.join(known)}" if known else "has none"
            raise InputError(f"no parameter {unknown[0][:40]!r}: {self.path} {has}")
        missing = [p.name for p in known.values() if p.required and not given.get(p.name)]
        if missing:
            raise InputError(f"{self.path} needs the parameter {missing[0]}")
        return {
            name: p.read(given[name]) if name in given else _default(p) for name, p in known.items()
        }


def _default(p: Parameter) -> Any:
    return [] if p.kind in ("strings", "numbers") and p.default is None else p.default
