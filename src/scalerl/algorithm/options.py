"""The options of the algorithm, as a recipe sets them."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.algorithm.advantages import Normalisation, Population
from scalerl.algorithm.aggregation import AGGREGATIONS, RowWeight
from scalerl.algorithm.filters import Truncated, ZeroVariance
from scalerl.algorithm.losses import LOSSES, Loss
from scalerl.algorithm.losses.registry import check_constants
from scalerl.errors import InputError
from scalerl.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices of a recipe that decide how a batch becomes a loss. There are no defaults here:
    the recipe's schema states them (`options_from_recipe`)."""

    #: The loss by name, or the function itself: a worker process in which it was never registered
    #: can still call it.
    loss: str | Loss
    #: Keyword arguments of the loss.
    constants: Mapping[str, Any]
    #: How token losses are averaged: a name, or the function itself.
    aggregation: str | RowWeight
    #: Length that the aggregation "constant" divides by, in tokens.
    constant_length: float
    #: Whether forced tokens count in the length of an answer that the aggregation divides by.
    count_forced: bool
    #: What centred rewards are divided by: the std of the batch, of the prompt, or 1.
    normalisation: Normalisation
    #: Rollouts that the std of the batch is taken over.
    population: Population
    #: Delta degrees of freedom of the std.
    ddof: int
    #: Added to the std before dividing, in units of reward.
    epsilon: float
    #: What happens to prompts with equal rewards.
    zero_variance: ZeroVariance
    #: What happens to rollouts that were cut off.
    truncated: Truncated
    #: Weight of the KL term towards the starting model; 0 is off.
    kl_coefficient: float
    kl_estimator: str


def options_from_recipe(recipe: Recipe) -> Options:
    """The options of a recipe, with its functions found and their constants checked, so that an
    error in a user's own loss is reported before any process starts.

    >>> options = options_from_recipe(Recipe.load("scalerl"))
    >>> options.loss.__name__, options.constants, options.constant_length
    ('cispo', {'ratio_cap': 5.0}, 14336.0)
    """
    section = recipe.loss
    loss = LOSSES[section.name]
    check_constants(section.name, loss, section.constants)
    aggregation = AGGREGATIONS[section.aggregation]
    _check_aggregation(section.aggregation, aggregation)
    _check_travels(f"loss {section.name}", loss)
    _check_travels(f"aggregation {section.aggregation}", aggregation)
    return Options(
        loss=loss,
        constants=section.constants,
        aggregation=aggregation,
        constant_length=float(recipe.length.longest),
        count_forced=section.count_forced_tokens,
        normalisation=recipe.advantage.normalisation,
        population=recipe.advantage.population,
        ddof=recipe.advantage.ddof,
        epsilon=recipe.advantage.epsilon,
        zero_variance=recipe.filter.zero_variance,
        truncated=recipe.filter.truncated,
        kl_coefficient=section.kl_coefficient,
        kl_estimator=section.kl_estimator,
    )


def _check_aggregation(name: str, function: RowWeight) -> None:
    try:
        inspect.signature(function).bind(None, None, 1.0)
    except TypeError as error:
        raise InputError(
            f"aggregation {name} cannot be called with (tokens_B, prompt_B, length): {error}"
        ) from None


def _check_travels(what: str, function: Callable[..., Any]) -> None:
    """Check that a function can be pickled: it is sent to the trainer's process by the names of its
    module and its own."""
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"{what} cannot be sent to another process ({error}): define it at the top level of a "
            "module, as a function with a name"
        ) from None
