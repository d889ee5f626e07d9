"""The recipes of the listed runs: what tells them apart, and which runs are seeds of one recipe.

A recipe is kept flat, `optimiser.lr` → 0.0002, because a thousand of them are compared key by key.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.files import to_json, to_json_bytes
from scalerl.recipe import Recipe
from scalerl.runs.interventions import SAME_CURVE
from scalerl.text import shorten

#: Keys of a recipe that are kept; the largest known, of a mixture, has about two hundred.
MAX_KEYS = 500
#: Characters of a value that are kept: a cell of the list shows about twenty.
MAX_VALUE = 120
#: Characters of a key that are kept.
MAX_KEY = 120
#: Keys in which seeds of one recipe may differ, besides those that change neither what a step
#: learns nor what is measured.
SEED_KEYS = ("seed", "name", "description", "source")


@dataclass(frozen=True, slots=True)
class FlatRecipe:
    """The values of a recipe by dotted key."""

    #: The same tuple for all recipes of one version, which saves memory.
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    seed: int | None
    #: The same for seeds of one recipe.
    id: str

    @staticmethod
    def from_values(recipe: Mapping[str, Any]) -> FlatRecipe | None:
        """The flat form of what `recipe.json` or `recipe.toml` holds; None for an empty one.

        >>> first, second, third = (
        ...     FlatRecipe.from_values({"seed": s, "loss": {"name": n}})
        ...     for s, n in ((0, "cispo"), (1, "cispo"), (0, "gspo")))
        >>> first.id == second.id, first.id == third.id, second.seed, third.values
        (True, False, 1, (0, 'gspo'))

        A key with its default is the same as none: an earlier version may not have had it.

        >>> kept = {"seed": 0, "loss": {"name": "cispo"}, "precision": {"routing": "own"}}
        >>> changed = kept | {"precision": {"routing": "replay"}}
        >>> [FlatRecipe.from_values(each).id == first.id for each in (kept, changed)]
        [True, False]
        """
        found = dict(_leaves(recipe, "", MAX_KEYS))
        if not found:
            return None
        keys = tuple(sys.intern(key) for key in found)
        same = {k: v for k, v in found.items() if not k.startswith(SAME_CURVE)}
        for key in SEED_KEYS:
            same.pop(key, None)
        # A key that an earlier version did not have yet is what it is by default, and the seeds of
        # a recipe may have been trained by several versions.
        same = {k: v for k, v in same.items() if not _is_default(k, v)}
        text = to_json(sorted(same.items()))
        seed = found.get("seed")
        return FlatRecipe(
            _SCHEMAS.setdefault(keys, keys) if len(_SCHEMAS) < MAX_SCHEMAS else keys,
            tuple(found.values()),
            seed if type(seed) is int else None,
            hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12],
        )


@functools.cache
def _defaults() -> Mapping[str, Any]:
    """The values of ScaleRL's recipe by dotted key."""
    return dict(_leaves(Recipe().to_dict(), "", MAX_KEYS))


def _is_default(key: str, value: Any) -> bool:
    default = _defaults().get(key, _ABSENT)
    # By type as well: 1, 1.0 and true are equal to Python.
    return type(default) is type(value) and bool(default == value)


#: Sets of keys that are shared between recipes: recipes of one version have the same.
MAX_SCHEMAS = 200
_SCHEMAS: dict[tuple[str, ...], tuple[str, ...]] = {}


def _leaves(values: Mapping[str, Any], start: str, left: int) -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if left <= 0:
            return
        left -= 1
        key = f"{start}{name}"[:MAX_KEY]
        # Four levels: the deepest section of a recipe has three.
        if isinstance(value, Mapping) and value and start.count(".") < 4:
            yield from _leaves(value, f"{key}.", left)
        elif value is None or isinstance(value, bool | int | float):
            yield key, value
        else:
            text = value if isinstance(value, str) else to_json(value, compact=True)
            yield key, sys.intern(shorten(text, MAX_VALUE))


def recipe_table(recipes: Sequence[tuple[str, FlatRecipe]]) -> bytes:
    """The recipes of runs, given with their ids, as JSON: keys with one value for all of them, and
    the others with their distinct values and for each run the number of its value.

    >>> made = [("a", {"seed": 0, "k": 8}), ("b", {"seed": 1, "k": 8})]
    >>> recipe_table([(name, FlatRecipe.from_values(values)) for name, values in made]).decode()
    '{"runs": ["a", "b"], "same": {"k": 8}, "differ": {"seed": {"values": [0, 1], "of": [0, 1]}}}'
    """
    keys = dict.fromkeys(key for each in {r.keys for _, r in recipes} for key in each)
    rows = [dict(zip(r.keys, r.values, strict=True)) for _, r in recipes]
    same: dict[str, Any] = {}
    differ: dict[str, Any] = {}
    for key in keys:
        # By type as well: 1, 1.0 and true are equal to Python.
        numbers: dict[tuple[type, Any], int] = {}
        of = []
        for row in rows:
            value = row.get(key, _ABSENT)
            of.append(numbers.setdefault((type(value), value), len(numbers)))
        if len(numbers) == 1:
            same[key] = next(iter(numbers))[1]
            continue
        values = [None if v is _ABSENT else v for _, v in numbers]
        differ[key] = {"values": values, "of": of}
    return to_json_bytes({"runs": [name for name, _ in recipes], "same": same, "differ": differ})


#: The value of a key that a recipe lacks.
_ABSENT = object()
