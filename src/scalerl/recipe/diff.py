"""What differs between two recipes, and which differences a resumed run may have.

A run that continues from a checkpoint is still one experiment: the same model gets the same prompts
in the same order, compute means the same before and after, and the checkpoint fits what reads it.
`allowed_changes` refuses what would break that, with the reason; any other field may change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.recipe.problems import fields_of
from scalerl.recipe.schema import IDENTITY, Recipe
from scalerl.recipe.toml import value as toml_value

#: Section or field that a resumed run cannot change → the reason.
FIXED = {
    "seed": "the order of the prompts and every random draw come from it",
    "model": "the checkpoint holds the weights of this model",
    **dict.fromkeys(
        ("adapter.rank", "adapter.alpha", "adapter.targets", "adapter.experts", "adapter.head"),
        "the checkpoint holds an adapter of this kind",
    ),
    "model.chat_date": "the chat template writes it into every prompt",
    "task": "pass rates before and after would be for different questions",
    "curriculum": "the checkpoint holds which prompts were asked and dropped by this rule",
    "compute.count_validation": "compute before and after would not be comparable",
    "optimiser.name": "the checkpoint holds the state of this optimiser",
    "placement.trainer": "the checkpoint was written by this trainer",
    "schedule.name": "the rollouts in progress were started for this schedule",
}
#: The same, for off-policy runs only.
FIXED_PHASES = {
    "schedule.k": "an off-policy run counts its phases with it",
    "batch.prompts": "an off-policy phase has schedule.k batches of them",
    "sampling.max_prompt_tokens": "the prompts of the current phase were chosen by it",
}


@dataclass(frozen=True)
class Difference:
    """One field that two recipes set differently."""

    path: str  #: dotted key, as in batch.prompts
    a: Any  #: value in the first recipe; None where it is unset
    b: Any  #: value in the second
    meaning: str  #: what the field decides, in one line

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def flat(recipe: Recipe, paths: Iterable[str]) -> dict[str, Any]:
    """Dotted path → value; None where this recipe has no such field."""
    data = recipe.to_dict()
    values = {}
    for path in paths:
        section, _, leaf = path.rpartition(".")
        # `get`: the other recipe may have a loss with constants that this one lacks.
        values[path] = data[section].get(leaf) if section else data[path]
    return values


def diff(a: Recipe, b: Recipe) -> list[Difference]:
    """Every field in which two recipes differ, in the order of the schema, without name,
    description and source.

    >>> [d] = diff(Recipe(), Recipe().replace({"batch.prompts": 80}))
    >>> d.path, d.a, d.b
    ('batch.prompts', 48, 80)
    """
    about = fields_of(a, b)
    left, right = flat(a, about), flat(b, about)
    found = []
    for path in about:
        if path in IDENTITY or left[path] == right[path]:
            continue
        meaning = about[path].description or ""
        if path.startswith("batch."):
            meaning += f" ({a.batch.completions} and {b.batch.completions} completions a step)"
        found.append(Difference(path, left[path], right[path], meaning))
    return found


def allowed_changes(old: Recipe, new: Recipe) -> list[Difference]:
    """The differences, in the order of the schema; InputError if one of them is not allowed.

    >>> tiny = Recipe.load("tiny")
    >>> [d.path for d in allowed_changes(tiny, tiny.replace({"optimiser.lr": 1e-6}))]
    ['optimiser.lr']
    >>> allowed_changes(tiny, tiny.replace({"seed": 1}))
    Traceback (most recent call last):
    scalerl.errors.InputError: seed cannot change from 0 to 1 when a run is resumed: the order of \
the prompts and every random draw come from it; start a new run with --out
    """
    found = [d for d in diff(old, new) if not _moved(d)]
    fixed = FIXED | (FIXED_PHASES if old.schedule.name == "off-policy" else {})
    for d in found:
        reason = fixed.get(d.path) or fixed.get(d.path.partition(".")[0])
        if reason:
            raise InputError(
                f"{d.path} cannot change from {shown(d.a)} to {shown(d.b)} when a run is resumed: "
                f"{reason}; start a new run with --out"
            )
    return found


def _moved(d: Difference) -> bool:
    """Whether two paths of models differ only in where their study lies: it keeps the models that
    it makes in `models/`."""
    if d.path != "model.path":
        return False
    a, b = Path(str(d.a)), Path(str(d.b))
    return a.parent.name == b.parent.name == "models" and a.name == b.name


def with_date_of(earlier: Recipe, recipe: Recipe) -> Recipe:
    """The recipe with the `model.chat_date` of the earlier one, unless it sets its own."""
    if recipe.model.chat_date is not None or earlier.model.chat_date is None:
        return recipe
    return recipe.replace({"model.chat_date": earlier.model.chat_date})


def shown(value: Any) -> str:
    """A value as TOML, or "unset"."""
    return "unset" if value is None else toml_value(value)
