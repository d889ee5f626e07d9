"""What a recipe selects among the parts of the algorithm, and the selection of a given recipe."""

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
    """The selection; the defaults are ScaleRL's."""

    #: By name, or the function itself: a process that never saw it registered can still call it.
    loss: str | Loss = "cispo"
    constants: Mapping[str, Any] | None = None
    aggregation: str | RowWeight = "prompt"
    #: Length that aggregation "constant" divides by, in tokens.
    constant_length: float = 0.0
    #: Whether tokens forced by the length control count as length in the aggregation.
    count_forced: bool = False
    normalisation: Normalisation = "batch"
    population: Population = "kept"
    ddof: int = 0
    epsilon: float = 1e-6
    zero_variance: ZeroVariance = "drop"
    truncated: Truncated = "keep"
    kl_coefficient: float = 0.0
    kl_estimator: str = "k3"


def options_from_recipe(recipe: Recipe) -> Options:
    """The algorithm that a recipe selects, its functions found and their constants checked: what is
    wrong with a loss of one's own is said here, before any process starts.

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
    """Functions reach the trainer's process by the name of their module and their own."""
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"{what} cannot be sent to another process ({error}): define it at the top level of a "
            "module, as a function with a name"
        ) from None
