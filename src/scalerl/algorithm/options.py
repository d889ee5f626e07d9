"""The options of the algorithm, as a recipe sets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from scalerl.algorithm.advantages import NORMALISATIONS, Normalisation, Population
from scalerl.algorithm.aggregation import AGGREGATIONS, Aggregation
from scalerl.algorithm.constants import check_call, check_constants, check_travels
from scalerl.algorithm.credit import CREDITS, Credit
from scalerl.algorithm.filters import FILTERS, Filter, Truncated, ZeroVariance
from scalerl.algorithm.losses import KL_ESTIMATORS, LOSSES, Loss
from scalerl.algorithm.losses.kl import Estimator
from scalerl.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices of a recipe that decide how a batch becomes a loss. There are no defaults here:
    the recipe's schema states them (`options_from_recipe`). What is found in a registry may be
    given by name or as the function itself: a worker process in which it was never registered can
    still call that."""

    loss: str | Loss
    #: Keyword arguments of the loss.
    constants: Mapping[str, Any]
    #: How token losses are averaged.
    aggregation: str | Aggregation
    #: Length that the aggregation "constant" divides by, in tokens.
    constant_length: float
    #: Whether forced tokens count in the length of an answer that the aggregation divides by.
    count_forced: bool
    #: Which rewards a token is credited with.
    credit: str | Credit
    #: What centred rewards are divided by: the std of the batch, of the prompt, or 1.
    normalisation: str | Normalisation
    #: Episodes that the std of the batch is taken over.
    population: Population
    #: Delta degrees of freedom of the std.
    ddof: int
    #: Added to the std before dividing, in units of reward.
    epsilon: float
    #: What happens to prompts with equal rewards.
    zero_variance: ZeroVariance
    #: What happens to episodes that were cut off.
    truncated: Truncated
    #: Further filters.
    filters: tuple[str | Filter, ...]
    #: Weight of the KL term towards the starting model; 0 is off.
    kl_coefficient: float
    kl_estimator: str | Estimator


def options_from_recipe(recipe: Recipe) -> Options:
    """The options of a recipe, with its functions found and their constants checked, so that an
    error in a user's own loss is reported before any process starts.

    >>> options = options_from_recipe(Recipe.load("scalerl"))
    >>> options.loss.__name__, options.constants, options.constant_length
    ('cispo', {'ratio_cap': 5.0}, 14336.0)
    """
    section, advantage = recipe.loss, recipe.advantage
    loss = LOSSES[section.name]
    check_constants("loss", section.name, loss, section.constants, ("logprobs", "batch"))
    filter_names = recipe.filter.further
    options = Options(
        loss=loss,
        constants=section.constants,
        aggregation=AGGREGATIONS[section.aggregation],
        constant_length=float(recipe.length.longest),
        count_forced=section.count_forced_tokens,
        credit=CREDITS[advantage.credit],
        normalisation=NORMALISATIONS[advantage.normalisation],
        population=advantage.population,
        ddof=advantage.ddof,
        epsilon=advantage.epsilon,
        zero_variance=recipe.filter.zero_variance,
        truncated=recipe.filter.truncated,
        filters=tuple(FILTERS[name] for name in filter_names),
        kl_coefficient=section.kl_coefficient,
        kl_estimator=KL_ESTIMATORS[section.kl_estimator],
    )
    check_travels(f"loss {section.name}", loss)
    for what, function, arguments in (
        (f"aggregation {section.aggregation}", options.aggregation, "batch counted_N length"),
        (f"credit rule {advantage.credit}", options.credit, "rewards"),
        (f"normalisation {advantage.normalisation}", options.normalisation,
         "values_K cell_K counted_K ddof epsilon"),
        (f"KL estimator {section.kl_estimator}", options.kl_estimator, "gap_N"),
        *((f"filter {name}", FILTERS[name], "candidates") for name in filter_names),
    ):  # fmt: skip
        check_call(what, cast(Callable[..., Any], function), *arguments.split())
        check_travels(what, function)
    return options
