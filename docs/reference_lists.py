"""The lists of the reference pages: the keys of a recipe and the fields of the run record.

They come from the schema (`scalerl.recipe`) and from the types of the record
(`scalerl.runs.lines`); the rest of these pages is written by hand.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Literal, Union

from pydantic.fields import FieldInfo

from scalerl.recipe.choices import section_of
from scalerl.recipe.fields import kind, meaning, names_of, type_in_words
from scalerl.recipe.load import presets
from scalerl.recipe.losses import LOSS_CONSTANTS, LossSection
from scalerl.recipe.schema import Recipe
from scalerl.recipe.toml import value
from scalerl.runs.compute import Compute, LedgerLine
from scalerl.runs.fields import Record
from scalerl.runs.lines import (
    AnswerLine,
    AnswerSample,
    EpisodeLine,
    EvalAnswers,
    EvalLine,
    EventLine,
    Status,
    StepLine,
    SystemLine,
    ValidationEpisodeLine,
)

# -- docs/reference/recipe.md ---------------------------------------------------------------------


def recipe_presets() -> str:
    """Every preset and its summary."""
    return _lines(f"`{name}`: {summary}" for name, summary in presets().items())


def recipe_keys() -> str:
    """Every section of a recipe with its keys."""
    top = {n: i for n, i in Recipe.model_fields.items() if not section_of(i)}
    parts = ["## Top level\n", _keys(top, "")]
    for name, info in Recipe.model_fields.items():
        section = section_of(info)
        if section:
            about = " ".join((section.__doc__ or "").split())
            parts += [f"\n## [{name}]\n\n{about}\n", _keys(section.all_fields(), name)]
            if section is LossSection:
                parts += ["\nConstants of the built-in losses:\n", _loss_constants()]
    return "\n".join(parts)


def _keys(fields: dict[str, FieldInfo], section: str) -> str:
    defaults = getattr(Recipe(), section) if section else Recipe()
    items = []
    for name, info in fields.items():
        key = f"{section}.{name}" if section else name
        default = getattr(defaults, name, None)  # a constant of another choice has none
        if default is None:
            shown, takes = f"`{key}`", f"{kind(info)}, unset"
        else:
            shown, takes = f"`{key} = {value(default)}`", _limits(info)
        inside = "; ".join(filter(None, [takes, _source(info)]))
        items.append(f"{shown}{f' ({inside})' if inside else ''}: {meaning(info)}")
    return _lines(items)


def _loss_constants() -> str:
    """One item for each constant, with the default of every loss that has it."""
    items: dict[tuple[str, str, str], list[str]] = {}
    for loss, constants in LOSS_CONSTANTS.items():
        for name, info in constants.model_fields.items():
            default = "unset" if info.default is None else f"`{value(info.default)}`"
            item = items.setdefault((name, _limits(info), meaning(info)), [])
            item.append(", ".join(filter(None, [f"{loss} {default}", _source(info)])))
    return _lines(
        f"`loss.{name}` ({'; '.join([limits, *defaults])}): {about}"
        for (name, limits, about), defaults in items.items()
    )


def _source(info: FieldInfo) -> str:
    """The source of a default in a word or two; empty if it is the paper, as of most."""
    extra = info.json_schema_extra
    about: dict[str, Any] = extra if isinstance(extra, dict) else {}
    source = str(about.get("source", "")).partition(":")[0]  # its reason is in `--provenance`
    return "" if source == "paper" else source


def _limits(info: FieldInfo) -> str:
    """The values that a field takes; empty if these are all of its type: its default shows it."""
    word = type_in_words(info.annotation)
    if names_of(info):
        return kind(info)
    choices = word if typing.get_origin(info.annotation) is Literal else ""
    return kind(info).removeprefix(word).strip() or choices


def _lines(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


# -- docs/reference/run-record.md -----------------------------------------------------------------

#: In the order of the page; the two that others refer to have sections of their own.
RECORDS: dict[str, type[Record]] = {
    "evals.jsonl": EvalLine,
    "compute": Compute,
    "steps.jsonl": StepLine,
    "ledger": LedgerLine,
    "events.jsonl": EventLine,
    "episodes/training.jsonl": EpisodeLine,
    "episodes/validation.jsonl": ValidationEpisodeLine,
    "evals/step_N.json": EvalAnswers,
    "answers": AnswerSample,
    "answers/step_N.jsonl": AnswerLine,
    "status.json": Status,
    "system.jsonl": SystemLine,
}
_WORDS = {str: "text", int: "integer", float: "number", bool: "boolean"}


#: From so many fields that a type has in common with one before it, they are not listed again.
SHARED = 3


def run_record() -> str:
    """Every type of the record with its fields."""
    parts = []
    listed: dict[str, list[tuple[str, str, str]]] = {}
    for title, record in RECORDS.items():
        own, also = rows(record), ""
        for earlier, those in listed.items():
            shared = [row for row in own if row in those]
            if len(shared) >= SHARED:
                names = ", ".join(f"`{name}`" for name, _, _ in shared)
                anchor = re.sub(r"[^a-z0-9_-]", "", earlier)  # as GitHub makes one of a heading
                also = f"\n- {names}: as in [{earlier}](#{anchor})"
                own = [row for row in own if row not in those]
        listed[title] = own
        intro = inspect.cleandoc(record.__doc__ or "").replace("\n", " ")
        items = (f"`{name}`{_typed(word)}: {meaning}" for name, word, meaning in own)
        parts.append(f"## {title}\n\n{intro}\n\n{_lines(items)}{also}")
    return "\n\n".join(parts)


def _typed(word: str) -> str:
    """The type in brackets, unless it is a plain number, as of most fields."""
    return "" if word in ("integer", "number") else f" ({word})"


def rows(record: type[Record], under: str = "") -> list[tuple[str, str, str]]:
    """(name, type, meaning) of every field; of a record inside, those of its own fields after it,
    as `staleness.max`, unless they are listed already."""
    hints = typing.get_type_hints(record)
    found = []
    named: dict[type[Record], str] = {}  # tables by name, to list their fields once
    for each in fields(record):
        unit = each.metadata["unit"]
        meaning = each.metadata["meaning"] + (f" [{unit}]" if unit else "")
        name, hint = under + each.name, hints[each.name]
        inside, dots = _inside(hint)
        if inside in named:
            found.append((name, _word(hint), f"{meaning}. Fields as in `{named[inside]}`"))
            continue
        below = [] if inside is None else [field.name for field in fields(inside)]
        if dots and set(below) <= set(hints):
            fields_of_it = ", ".join(f"`{field}`" for field in below)
            meaning, below = f"{meaning}. Each has {fields_of_it}, as here", []
        found.append((name, _word(hint), meaning))
        if inside is not None and inside not in RECORDS.values():
            found += rows(inside, f"{name}{dots}.") if below else []
            named[inside] = name
    return found


def _inside(hint: Any) -> tuple[type[Record] | None, str]:
    """The record that a field holds, and how to get to it."""
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint, ""
    for part in typing.get_args(hint):
        inside, dots = _inside(part)
        if inside is not None:
            return inside, ".NAME" if typing.get_origin(hint) is dict else dots
    return None, ""


def _word(hint: Any) -> str:
    """A type in words."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inside)
    if origin in (Union, types.UnionType):
        return ", ".join(_word(p) if p is not type(None) else "null" for p in inside)
    if origin is tuple:
        return "list"
    if origin is dict or issubclass(hint, Record):
        return "table"
    return _WORDS[hint]
