"""The result of an import, and a reader of configs that reports every key it did not use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from scalerl.errors import InputError
from scalerl.recipe.load import merge, nest
from scalerl.recipe.schema import Recipe

#: Keys about logging and the like that are named on a terminal; more would hide the other notes.
SHOWN = 8


@dataclass(frozen=True)
class Note:
    """A remark about one key of an imported config."""

    key: str  #: as the other framework writes it
    value: Any
    why: str


@dataclass(frozen=True)
class Imported:
    """A recipe made from another framework's config, and remarks about what differs."""

    recipe: Recipe
    converted: tuple[Note, ...]  #: mapped, with another convention or only approximately
    unmapped: tuple[Note, ...]  #: set in the config, may matter, and has no counterpart
    housekeeping: tuple[str, ...]  #: logging, saving and the like: not part of a recipe
    read: tuple[str, ...] = ()  #: keys of the config that the recipe was made from

    def lines(self) -> list[str]:
        """The remarks as text, one line each."""
        lines = [f"not mapped: {note.key} = {note.value}: {note.why}" for note in self.unmapped]
        lines += [f"converted: {note.key} = {note.value}: {note.why}" for note in self.converted]
        shown, more = self.housekeeping[:SHOWN], len(self.housekeeping) - SHOWN
        if shown:
            rest = f" and {more} more (--json lists all)" if more > 0 else ""
            lines.append("not part of a recipe: " + ", ".join(shown) + rest)
        return lines

    def to_dict(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.to_dict(),
            "converted": [asdict(note) for note in self.converted],
            "unmapped": [asdict(note) for note in self.unmapped],
            "housekeeping": list(self.housekeeping),
        }


class Reader:
    """A flat config that records which of its keys were read, and the recipe made from them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = dict(config)
        self.left = dict(config)
        self.changes: dict[str, Any] = {}
        self.converted: list[Note] = []
        self.unmapped: list[Note] = []

    def take(self, *keys: str, default: Any = None) -> Any:
        """The value of the first of these keys that is set; all of them count as read."""
        # All keys are taken out: aliases that were not used must not be reported as unmapped.
        values = [self.left.pop(key, None) for key in keys]
        return next((value for value in values if value is not None), default)

    def number(self, *keys: str, default: Any = None) -> Any:
        """As `take`, but a number; YAML leaves 1e-6 a string, which is read as one as well."""
        value = given = self.take(*keys, default=default)
        if value is None:
            return None
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                value = None
        # bool is a kind of int in Python, but true is not a number in a config.
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise InputError(f"{keys[0]} = {given!r} is not a number; give one")
        return value

    def whole(self, *keys: str, default: Any = None, least: int | None = None) -> Any:
        """As `number`, but a whole one, and at least this."""
        value = self.number(*keys, default=default)
        if value is None:
            return None
        if value != int(value) or (least is not None and value < least):
            wanted = "a whole number" + ("" if least is None else f" from {least}")
            raise InputError(f"{keys[0]} = {value} is not {wanted}; give one")
        return int(value)

    def set(self, path: str, value: Any) -> None:
        """Set a key of the recipe, unless there is nothing to set."""
        if value is not None:
            self.changes[path] = value

    def set_float(self, path: str, *keys: str, default: float | None = None) -> None:
        """Set a key of the recipe to the number under one of these keys."""
        value = self.number(*keys, default=default)
        self.set(path, None if value is None else float(value))

    def set_heads(self, fp32: bool) -> None:
        """Set the precision of both heads."""
        for side in ("trainer_head", "generator_head"):
            self.set(f"precision.{side}", "fp32" if fp32 else "model")

    def set_trainers(self, devices: int) -> None:
        """Set the number of training devices, and the trainer that fits it."""
        self.set("placement.trainers", devices)
        self.set("placement.trainer", "local" if devices == 1 else "fsdp")

    def leave_out(self, neutral: Mapping[str, Any]) -> None:
        """Drop keys with a value that changes nothing."""
        for key, value in neutral.items():
            if self.left.get(key) == value:
                del self.left[key]

    def forget(self, *starts: str) -> None:
        """Drop keys that start with one of these, without a note."""
        self.left = {key: v for key, v in self.left.items() if not key.startswith(starts)}

    def convert(self, key: str, why: str) -> None:
        """Note that a key was mapped with another convention."""
        self.converted.append(Note(key, self.config.get(key, "(default)"), why))

    def drop(self, key: str, why: str) -> None:
        """Note that a key has no counterpart."""
        self.left.pop(key, None)
        self.unmapped.append(Note(key, self.config.get(key, "(default)"), why))

    def drop_given(self, why: str, *keys: str) -> None:
        """`drop` those of these keys that are set to something."""
        for key in keys:
            if self.left.get(key):
                self.drop(key, why)

    def finish(self, name: str, source: str, housekeeping: Callable[[str], bool]) -> Imported:
        """The recipe, and every key that was not read: housekeeping, or without a counterpart."""
        quiet = []
        read = tuple(key for key in self.config if key not in self.left)
        for key, value in self.left.items():
            if housekeeping(key):
                quiet.append(key)
            elif not switched_off(value):
                self.unmapped.append(Note(key, value, "no counterpart in a recipe"))
        data = merge({"name": name, "source": source}, nest(self.changes))
        recipe = Recipe.from_dict(data)
        return Imported(recipe, tuple(self.converted), tuple(self.unmapped), tuple(quiet), read)


def switched_off(value: Any) -> bool:
    """Whether a value says "not used": nothing, false, or an empty collection."""
    return value is None or value is False or value in ("", [], {}, ())


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys.

    >>> flatten({"a": {"b": 1}, "c": [2]})
    {'a.b': 1, 'c': [2]}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        # An empty table stays as a value: flattened, its key would be lost.
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def prompts_of(completions: int, generations: int, what: str) -> int:
    """Prompts of a batch of completions, or why there is no whole number of them."""
    if generations < 1 or completions % generations:
        raise InputError(
            f"{what} gives {completions} completions a step, which is no multiple of "
            f"{generations} per prompt: change one of them"
        )
    return completions // generations
