"""What may change when a run goes on from a checkpoint: one rule.

A run that goes on is still one experiment: the same model is asked the same questions in the same
order, compute means the same before and after, and the checkpoint fits what reads it. What would
break that is refused, with the reason; everything else is a knob that may be turned on the way.
"""

from __future__ import annotations

from typing import Any

from scalerl.errors import InputError
from scalerl.recipe.diff import Difference, diff
from scalerl.recipe.schema import Recipe

#: Section or field → why it stays as it is.
FIXED = {
    "seed": "the order of the prompts and every random draw come from it",
    "model": "the checkpoint holds the weights of this model",
    "model.chat_date": "the chat template writes it into every prompt",
    "task": "pass rates before and after would be answers to different questions",
    "curriculum": "the checkpoint remembers which prompts were asked and retired by this rule",
    "compute.count_validation": "compute before and after would not be the same thing",
    "optimiser.name": "the checkpoint holds the state of this optimiser",
    "placement.trainer": "the checkpoint was written by this trainer",
    "schedule.name": "the rollouts under way were begun for this schedule",
}
#: The same for an off-policy run.
FIXED_PHASES = {
    "schedule.k": "an off-policy run counts its phases by it",
    "batch.prompts": "an off-policy phase has schedule.k batches of them",
    "sampling.max_prompt_tokens": "the prompts of the phase under way were chosen by it",
}


def allowed_changes(old: Recipe, new: Recipe) -> list[Difference]:
    """What differs, in the order of the schema; InputError if something must not.

    >>> tiny = Recipe.load("tiny")
    >>> [d.path for d in allowed_changes(tiny, tiny.replace({"optimiser.lr": 1e-6}))]
    ['optimiser.lr']
    >>> allowed_changes(tiny, tiny.replace({"seed": 1}))
    Traceback (most recent call last):
    scalerl.errors.InputError: seed cannot change from 0 to 1 while a run goes on: the order of \
the prompts and every random draw come from it; start a run of its own with --out
    """
    found = diff(old, new)
    fixed = FIXED | (FIXED_PHASES if old.schedule.name == "off-policy" else {})
    for d in found:
        reason = fixed.get(d.path) or fixed.get(d.path.partition(".")[0])
        if reason:
            raise InputError(
                f"{d.path} cannot change from {shown(d.a)} to {shown(d.b)} while a run goes on: "
                f"{reason}; start a run of its own with --out"
            )
    return found


def with_date_of(earlier: Recipe, recipe: Recipe) -> Recipe:
    """The recipe with the `model.chat_date` that a run has had so far, unless it sets its own."""
    if recipe.model.chat_date is not None or earlier.model.chat_date is None:
        return recipe
    return recipe.replace({"model.chat_date": earlier.model.chat_date})


def shown(value: Any) -> str:
    """A value as recipes write it."""
    from scalerl.recipe.toml import value as toml

    return "unset" if value is None else toml(value)
