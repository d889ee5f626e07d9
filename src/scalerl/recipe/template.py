"""The recipe file that `scalerl init` writes: the keys that are often changed, each explained.

The comments are the descriptions in the schema. All other keys are those of the preset in `over`.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scalerl.errors import InputError
from scalerl.recipe.choices import section_of
from scalerl.recipe.diff import diff, flat
from scalerl.recipe.fields import kind, meaning
from scalerl.recipe.load import load
from scalerl.recipe.problems import fields_of
from scalerl.recipe.schema import Recipe
from scalerl.recipe.toml import line

WIDTH = 96
#: Models that come with scalerl. Each has a preset of the same name.
TINY = ("tiny", "tiny-noisy", "tiny-tools", "tiny-guess")
#: Sizes for a small model on one machine, with which a first run takes hours, not weeks.
ONE_MACHINE = {
    "model.dtype": "bfloat16",
    "sampling.max_prompt_tokens": 512,
    "batch.prompts": 16,
    "batch.generations": 8,
    "length.think_tokens_min": 1024,
    "length.think_tokens_max": 1792,
    "length.answer_tokens": 256,
    "optimiser.lr": 1e-6,
    "optimiser.warmup_steps": 10,
    "validation.prompts": 100,
    "validation.k": 4,
    "validation.every": 20,
    "budget.steps": 400,
    "placement.generators": 1,
    "placement.trainers": 1,
    "placement.device": "auto",
    "placement.backend": "local",
    "placement.engine": "local",
    "placement.trainer": "local",
    "placement.checkers": 16,
}
#: Keys that are written even if they have the value of the preset.
SHOWN = (
    *("model.path", "model.dtype", "task.name", "task.dataset", "task.system_prompt"),
    *("schedule.k", "length.control", "optimiser.decay", "checkpoint.every", *ONE_MACHINE),
)


def start(model: str, changes: Mapping[str, Any], name: str) -> tuple[str, Recipe]:
    """The preset to build on, and the recipe: for a user's own model, with sizes for one machine.
    `changes` are dotted keys that override these.

    >>> start("tiny", {"budget.steps": 50}, "mine")[1].budget.steps
    50
    """
    over = model if model in TINY else "scalerl"
    sizes: dict[str, Any] = {} if model in TINY else dict(ONE_MACHINE)
    changes = {"name": name, "model.path": model, **sizes, **changes}
    return over, load(over).replace(changes)


def template(over: str, recipe: Recipe, also: Iterable[str] = ()) -> str:
    """The text of the file: the keys in SHOWN and `also`, in the order of the schema."""
    about = fields_of(recipe)
    values = flat(recipe, about)
    further = {".".join(path.split(".")[:2]) for path in also}  # task.options.size: the table
    # Unset keys cannot be written in TOML.
    wanted = {p for p in {*SHOWN, *further} if p in about and values[p] is not None}
    lines = [
        f"# `scalerl train FILE --dry-run` checks this file; `scalerl recipe show {over}` prints",
        "# all keys, and docs/reference/recipe.md explains them.",
        line("over", over, "the preset with the values of all keys that are not here"),
        line("name", recipe.name, None),
        line("seed", recipe.seed, None),
    ]
    section = ""
    for path, info in about.items():
        home, _, key = path.rpartition(".")
        if path not in wanted or not home:
            continue
        if home != section:
            section = home
            made = section_of(Recipe.model_fields[home])
            summary = "" if made is None else made.__doc__ or ""
            lines += ["", *_comment(" ".join(summary.split())), f"[{home}]"]
        lines += [*_comment(f"{meaning(info)} ({kind(info)})"), line(key, values[path], None)]
    text = "\n".join(lines) + "\n"
    # TOML cannot express "unset": a key that the preset sets would come back.
    lost = diff(recipe, load(tomllib.loads(text)))
    if lost:
        raise InputError(
            f"{lost[0].path} cannot be unset in a file over the preset {over}, which sets it: "
            "leave it, or unset it on the command line of `scalerl train`"
        )
    return text


def _comment(text: str) -> Iterator[str]:
    for each in textwrap.wrap(text, WIDTH):
        yield f"# {each}"
