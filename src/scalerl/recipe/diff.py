"""What differs between two recipes, and what each difference means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from scalerl.recipe.problems import fields_of
from scalerl.recipe.schema import IDENTITY, Recipe


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
        values[path] = data[section].get(leaf) if section else data[path]
    return values


def diff(a: Recipe, b: Recipe) -> list[Difference]:
    """Every field in which two recipes differ, in the order of the schema. Their names,
    descriptions and sources are not differences.

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
