"""Generates docs/reference/recipe.md from the schema."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from typing import Any, Literal, Union

from pydantic.fields import FieldInfo

from scalerl.recipe.fields import Section
from scalerl.recipe.load import presets
from scalerl.recipe.losses import LOSS_CONSTANTS, LossSection
from scalerl.recipe.schema import Recipe
from scalerl.recipe.toml import value

HEAD = """# Recipes

A recipe is the complete description of a run, as TOML. Keys that a file leaves out have the
defaults below, which are ScaleRL's; unknown keys are errors.

```sh
scalerl recipe show scalerl tiny loss.ratio_cap=4   # the complete recipe
scalerl recipe show minimax-m1 --provenance         # with the source of every number
scalerl recipe diff scalerl minimax-m1
scalerl recipe check my.toml
```

```python
from scalerl.recipe import Recipe, diff, forward, leave_one_out

recipe = Recipe.load("scalerl", "tiny", overrides=["loss.ratio_cap=4"])
recipe.batch.completions, recipe.to_toml()
[name for name, variant in leave_one_out(recipe)]
```

Later presets and files override earlier ones, key by key; overrides come last. An override is
`dotted.key=value` with a TOML value; a bare word is a string, and an empty value unsets the key. A
layer that chooses another loss, length control, curriculum or decay drops the constants of the old
choice. A file with `over = "tiny"` brings that preset along.
"""
MARKS = """Each key is listed with its default. In brackets are the values that it takes, if limited
(of an unset key, the type), and the source of the default: *paper* is the ScaleRL paper,
[arXiv 2510.13786](https://arxiv.org/abs/2510.13786); *derived*: arithmetic on it; *community*:
other projects' code; *not stated*: the paper is silent, and we chose; *ours*: the paper has no such
setting.
"""
REFUSED = """## What is refused

Besides wrong types and values out of range:

- an FP32 head on one side only, without `precision.one_sided`;
- constants of a loss, length control, curriculum or decay that was not chosen; for your own loss,
  constants that its function does not take, or needs (found when a run is prepared);
- a `loss.ratio_cap` below 1: it is the cap itself, not an epsilon added to 1;
- `grpo` with two different clips (that is `dapo`); `dr-grpo` without `loss.aggregation =
  "constant"` and `advantage.normalisation = "none"`;
- `off-policy` if the rollouts of a phase (`schedule.k` batches) cannot be split evenly among
  `placement.generators`, or with `filter.zero_variance = "refill"`;
- `length.max_tokens` under interruption, and its absence otherwise;
- a length penalty without its two lengths, or one that would never act;
- `optimiser.decay` without an end (`budget.steps` or `optimiser.decay_steps`), or with one before
  the warm-up is over;
- `placement.trainer = "local"` with several `placement.trainers`;
- `placement.address` without `placement.backend = "ray"`;
- one rollout per prompt: its advantage is always 0.
"""


def page() -> str:
    """The reference page, as Markdown."""
    parts = [HEAD, "## Presets\n\n" + _presets(), MARKS]
    top = {n: i for n, i in Recipe.model_fields.items() if not _section(i)}
    parts.append("## Top level\n\n" + _list(top, ""))
    for name, info in Recipe.model_fields.items():
        section = _section(info)
        if section:
            about = " ".join((section.__doc__ or "").split())
            parts.append(f"## [{name}]\n\n{about}\n\n" + _list(section.model_fields, name))
            if section is LossSection:
                parts.append("Constants of the built-in losses:\n\n" + _loss_constants())
    return "\n".join([*parts, REFUSED])


def _presets() -> str:
    return _lines([f"`{name}`: {summary}" for name, summary in presets().items()])


def _list(fields: dict[str, FieldInfo], section: str) -> str:
    # Of a recipe, not of the field: there the constants of the chosen length control are filled in.
    defaults = getattr(Recipe(), section) if section else Recipe()
    items = []
    for name, info in fields.items():
        key, default = f"{section}.{name}" if section else name, getattr(defaults, name)
        if default is None:
            shown, takes = f"`{key}`", f"{kind(info)}, unset"
        else:
            shown, takes = f"`{key} = {value(default)}`", _limits(info)
        inside = "; ".join(filter(None, [takes, _source(info)]))
        items.append(f"{shown} ({inside}): {meaning(info)}")
    return _lines(items)


def _loss_constants() -> str:
    """One item for each constant, with the default of every loss that has it."""
    items: dict[tuple[str, str, str], list[str]] = {}
    for loss, constants in LOSS_CONSTANTS.items():
        for name, info in constants.model_fields.items():
            default = "unset" if info.default is None else f"`{value(info.default)}`"
            item = items.setdefault((name, _limits(info), meaning(info)), [])
            item.append(f"{loss} {default}, {_source(info)}")
    return _lines(
        f"`loss.{name}` ({'; '.join([limits, *defaults])}): {about}"
        for (name, limits, about), defaults in items.items()
    )


def _source(info: FieldInfo) -> str:
    extra = info.json_schema_extra
    about: dict[str, Any] = extra if isinstance(extra, dict) else {}
    return str(about.get("source", "")).partition(":")[0]  # its reason is in `--provenance`


def _limits(info: FieldInfo) -> str:
    """The values that a field takes; empty if these are all of its type: its default shows it."""
    return kind(info).removeprefix(_type(info.annotation)).strip() or _choices(info.annotation)


def _choices(annotation: Any) -> str:
    return _type(annotation) if typing.get_origin(annotation) is Literal else ""


def _lines(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items) + "\n"


def meaning(info: FieldInfo) -> str:
    """The meaning of a field, with its unit unless the meaning names it.

    >>> meaning(Recipe.model_fields["seed"])
    'seed of every random choice'
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
    return " ".join([_type(info.annotation), ", ".join(limits)]).strip()


def _type(annotation: Any) -> str:
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inside)
    if origin in (Union, types.UnionType):
        names = [_type(part) for part in inside if part is not type(None)]
        return " or ".join(dict.fromkeys(names))
    if origin is tuple:
        return "numbers"
    if origin is dict:
        return "table"
    if origin is typing.Annotated:
        return _type(inside[0])
    return {str: "text", int: "integer", float: "number", bool: "boolean"}[annotation]


def _section(info: FieldInfo) -> type[Section] | None:
    made = info.annotation
    return made if isinstance(made, type) and issubclass(made, Section) else None
