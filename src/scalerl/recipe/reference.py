"""docs/reference/recipe.md, from the schema."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any, Literal, Union

from pydantic.fields import FieldInfo

from scalerl.recipe.fields import Section
from scalerl.recipe.load import presets
from scalerl.recipe.losses import LOSS_CONSTANTS, LossSection
from scalerl.recipe.schema import Recipe
from scalerl.recipe.toml import value

HEAD = """# Recipes

A recipe is everything that decides what a run does. It is TOML; what a file leaves out has the
default below, which is ScaleRL's. `scalerl recipe show` prints a recipe complete, `scalerl recipe
check` says whether one is possible, and unknown keys are errors.

```sh
scalerl recipe show scalerl tiny loss.ratio_cap=4
scalerl recipe diff scalerl minimax-m1
```

```python
from scalerl.recipe import Recipe, diff, forward, leave_one_out

recipe = Recipe.load("scalerl", "tiny", overrides=["loss.ratio_cap=4"])
recipe.batch.completions, recipe.to_toml()
[name for name, variant in leave_one_out(recipe)]
```

Presets and files are laid over each other key by key, then overrides, `dotted.key=value` with the
value as TOML (a bare word is a string; nothing after the `=` unsets a field that may be unset).
Where a layer chooses another loss, length control, curriculum or decay of the learning rate, the
constants of the old choice go with it. A file whose first line is `over = "tiny"` is laid over that
preset, which need not be named then.
"""
MARKS = """Each preset is a complete file that marks every number with where it comes from, as the
tables below do for the defaults: *paper* is the ScaleRL paper,
[arXiv 2510.13786](https://arxiv.org/abs/2510.13786); *derived* is arithmetic on it; *community* is
other projects' code; *not stated* means that the paper is silent and this is our choice; *ours* has
no counterpart in it.
"""
REFUSED = """## What is refused

Besides wrong types and values out of range:

- an FP32 head on one side only, unless `precision.one_sided` asks for it;
- constants of a loss, length control or curriculum that is not the chosen one; for a loss of your
  own, constants that its function does not take, or lacks (found when a run is put together);
- a `loss.ratio_cap` below 1: it is the cap itself, not an epsilon added to 1;
- `grpo` with two different clips (that is `dapo`), and `dr-grpo` without `loss.aggregation =
  "constant"` and `advantage.normalisation = "none"`;
- `schedule.name = "off-policy"` where the rollouts of a generation phase (`schedule.k` batches)
  cannot be split evenly among `placement.generators`, or with `filter.zero_variance = "refill"`;
- `length.max_tokens` under interruption, where `length.think_tokens_max` and
  `length.answer_tokens` limit a rollout, and its absence elsewhere;
- a length penalty without its two lengths, or one that would never act;
- `optimiser.decay` without an end (`budget.steps`, or `optimiser.decay_steps` for a run of open
  length) or with one before the warm-up is over, and constants of a decay at a constant rate;
- several `placement.trainers` with `placement.trainer = "local"`, which learns on one device;
- `placement.address` without `placement.backend = "ray"`;
- groups of one rollout, which have no advantage.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## Presets\n\n" + _presets(), MARKS]
    top = {n: i for n, i in Recipe.model_fields.items() if not _section(i)}
    parts.append("## Top level\n\n" + _table(top, ""))
    for name, info in Recipe.model_fields.items():
        section = _section(info)
        if section:
            about = inspect.cleandoc(section.__doc__ or "").replace("\n", " ")
            parts.append(f"## [{name}]\n\n{about}\n\n" + _table(section.model_fields, name))
            if section is LossSection:
                parts.append(_loss_constants())
    return "\n".join([*parts, REFUSED])


def _presets() -> str:
    rows = [f"| `{name}` | {summary} |" for name, summary in presets().items()]
    return "\n".join(["| preset | what it is |", "| --- | --- |", *rows]) + "\n"


HEADINGS = "key | type | default | meaning | default from"


def _table(fields: dict[str, FieldInfo], section: str) -> str:
    defaults = getattr(Recipe(), section) if section else Recipe()
    rows = []
    for name, info in fields.items():
        key = f"{section}.{name}" if section else name
        rows.append(_row(key, info, getattr(defaults, name)))
    return _lines(HEADINGS, rows)


def _loss_constants() -> str:
    rows = [
        [f"`{loss}`", *_row(f"loss.{name}", info, info.default)]
        for loss, constants in LOSS_CONSTANTS.items()
        for name, info in constants.model_fields.items()
    ]
    return _lines(f"loss | {HEADINGS}", rows)


def _row(key: str, info: FieldInfo, default: Any) -> list[str]:
    extra = info.json_schema_extra
    about: dict[str, Any] = extra if isinstance(extra, dict) else {}
    shown = "unset" if default is None else f"`{value(default)}`"
    return [f"`{key}`", kind(info), shown, meaning(info), str(about.get("source", ""))]


def meaning(info: FieldInfo) -> str:
    """What a field decides, and its unit.

    >>> meaning(Recipe.model_fields["seed"])
    'seed of every random choice'
    """
    extra = info.json_schema_extra
    unit = extra.get("unit") if isinstance(extra, dict) else None
    return (info.description or "") + (f" [{unit}]" if unit else "")


def _lines(headings: str, rows: list[list[str]]) -> str:
    lines = [f"| {headings} |", "| " + " | ".join(["---"] * len(headings.split(" | "))) + " |"]
    for cells in rows:
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def kind(info: FieldInfo) -> str:
    """The type of a field in words, with its limits."""
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
    return {str: "text", int: "whole number", float: "number", bool: "true, false"}[annotation]


def _section(info: FieldInfo) -> type[Section] | None:
    made = info.annotation
    return made if isinstance(made, type) and issubclass(made, Section) else None
