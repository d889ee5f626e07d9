"""The paper's scaling axes by name: what is changed, and to which values.

Values are of the paper where the model is real, and smaller ones where it is the tiny one that
comes with scalerl. Other sizes of the tiny model are made (models.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.recipe.length import InterruptionLength, PenaltyLength
from scalerl.study.models import SIZES, TEACHERS, is_size, size_path

HERE = Path()
Changes = dict[str, Any]
#: Generations per prompt that the paper compares at a fixed total batch.
GENERATIONS = (8, 16, 24, 32)
#: The tasks that the tiny model can be asked; both have the same ceiling.
MIXTURE = "running-sums+carry-sums"


def axis_changes(
    base: Recipe, axis: str, values: Sequence[Any], learning_rate: str = "kept", home: Path = HERE
) -> Iterator[tuple[str, Changes]]:
    """Name and changes of every variant on an axis; `home` is the directory of the study.

    >>> tiny = Recipe.load("scalerl", "tiny")
    >>> list(axis_changes(tiny, "generations", (8, 32)))
    [('generations-8', {'batch.generations': 8, 'batch.prompts': 64}),
     ('generations-32', {'batch.generations': 32, 'batch.prompts': 16})]
    """
    for value in values or _defaults(base, axis):
        changes = AXES[axis](base, value)
        if axis == "model" and is_size(value):
            changes = {"model.path": size_path(base, value, home)}
        if axis == "batch" and learning_rate == "sqrt":
            growth = value / base.batch.completions
            changes["optimiser.lr"] = base.optimiser.lr * math.sqrt(growth)
        yield f"{axis}-{value}", changes


def _defaults(base: Recipe, axis: str) -> Sequence[Any]:
    tiny, completions = base.model.path in TEACHERS, base.batch.completions
    if axis == "batch":
        return (completions // 2, completions * 2) if tiny else (512, 2048)
    if axis == "generations":
        return [g for g in GENERATIONS if completions % g == 0]
    if axis == "length":
        length = base.length
        now = length.think_tokens_max if isinstance(length, InterruptionLength) else length.longest
        return (now * 3 // 4, now * 5 // 4) if tiny else (32768,)
    if axis == "model":
        return SIZES if tiny else (Recipe.load("scalerl-scout").model.path,)
    return (MIXTURE,) if tiny else ("math+code",)


def _batch(base: Recipe, completions: Any) -> Changes:
    """Completions per step, with as many generations per prompt as before."""
    if not isinstance(completions, int) or completions % base.batch.generations:
        raise InputError(
            f"axis batch: {completions} completions are no multiple of the "
            f"{base.batch.generations} generations per prompt"
        )
    return {"batch.prompts": completions // base.batch.generations}


def _generations(base: Recipe, generations: Any) -> Changes:
    """Generations per prompt, with as many completions per step as before."""
    total = base.batch.completions
    if not isinstance(generations, int) or generations < 2 or total % generations:
        raise InputError(
            f"axis generations: {generations} do not divide the {total} completions of a step"
        )
    return {"batch.generations": generations, "batch.prompts": total // generations}


def _length(base: Recipe, tokens: Any) -> Changes:
    """Thinking budget: the largest; the smallest stays as far below it. Without interruption, the
    whole length, and a penalty that ends there."""
    length = base.length
    if not isinstance(tokens, int) or tokens < 1:
        raise InputError(f"axis length: {tokens!r} is no number of tokens")
    if isinstance(length, InterruptionLength):
        spread = length.think_tokens_max - length.think_tokens_min
        lowest = max(tokens - spread, 1)
        return {"length.think_tokens_max": tokens, "length.think_tokens_min": lowest}
    changes: Changes = {"length.max_tokens": tokens}
    if isinstance(length, PenaltyLength):
        changes["length.penalty_max"] = tokens
    return changes


def _model(base: Recipe, path: Any) -> Changes:
    return {"model.path": str(path)}


def _mixture(base: Recipe, tasks: Any) -> Changes:
    """`math+code`, or with shares `math+code@0.8/0.2`."""
    names, _, shares = str(tasks).partition("@")
    try:
        weights = [float(share) for share in shares.split("/")] if shares else []
    except ValueError:
        raise InputError(f"axis mixture: {tasks!r} is not of the form a+b@0.8/0.2") from None
    return {"task.name": names, "task.weights": weights}


AXES: dict[str, Callable[[Recipe, Any], Changes]] = {
    "model": _model,
    "length": _length,
    "batch": _batch,
    "generations": _generations,
    "mixture": _mixture,
}
