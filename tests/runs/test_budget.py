"""How much of a budget is used, and when it is used up."""

from types import SimpleNamespace

import pytest

from scalerl.recipe import Recipe
from scalerl.runs.compute import BudgetUse, Compute, budget_use


def limits(steps=None, gpu_hours=None, minutes=None):
    return SimpleNamespace(steps=steps, gpu_hours=gpu_hours, minutes=minutes)


SPENT = Compute(device_hours=1.2, steps=5, minutes=2.0)


@pytest.mark.parametrize(
    ("budget", "share", "text"),
    [
        (limits(steps=20), 0.25, "step 5 of 20"),
        (limits(minutes=4.0), 0.5, "2.0 of 4 minutes"),
        (limits(gpu_hours=4.8), 0.25, "1.2 of 4.8 device-hours"),
        (limits(steps=20, gpu_hours=1.6, minutes=4.0), 0.75, "1.2 of 1.6 device-hours"),
        (limits(steps=20, gpu_hours=16.0, minutes=4.0), 0.5, "2.0 of 4 minutes"),
    ],
)
def test_the_limit_that_will_end_the_run_counts(budget, share, text):
    assert budget_use(budget, SPENT) == BudgetUse(pytest.approx(share), text, None)


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (limits(steps=5), "budget of 5 steps"),
        (limits(minutes=2.0), "budget of 2 minutes"),
        (limits(gpu_hours=1.2, steps=100), "budget of 1.2 device-hours"),
        (limits(gpu_hours=1.25), None),
        (limits(steps=6), None),
    ],
)
def test_a_budget_that_is_used_up_says_which(budget, reason):
    assert budget_use(budget, SPENT).reason == reason


def test_a_budget_without_limits_is_never_used():
    assert budget_use(limits(), SPENT) is None


def test_a_recipe_has_such_a_budget():
    recipe = Recipe.load("scalerl", "tiny", overrides=["budget.steps=10", "budget.minutes=8"])
    assert budget_use(recipe.budget, SPENT).text == "step 5 of 10"
