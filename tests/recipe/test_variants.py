"""Leave-one-out and forward variants differ in exactly what they say."""

import pytest

from scalerl.recipe import Recipe, diff, forward, leave_one_out

LOO = {
    "loo-plan": {"advantage.normalisation": "prompt"},
    "loo-lp": {
        "length.control": "penalty",
        "length.phrase": None,
        "length.think_tokens_min": None,
        "length.think_tokens_max": None,
        "length.answer_tokens": None,
        "length.max_tokens": 14336,
        "length.penalty_max": 14336,
        "length.penalty_cache": 2048,
    },
    "loo-batch": {"filter.zero_variance": "keep"},
    "loo-8op": {"schedule.name": "off-policy"},
    "loo-fp32": {"precision.trainer_head": "model", "precision.generator_head": "model"},
    "loo-savg": {"loss.aggregation": "sample"},
    "loo-dapo": {
        "loss.name": "dapo",
        "loss.ratio_cap": None,
        "loss.clip_low": 0.2,
        "loss.clip_high": 0.26,
    },
    "loo-uniform": {
        "curriculum.name": "uniform",
        "curriculum.threshold": None,
        "curriculum.history": None,
        "curriculum.return_after": None,
    },
}


def changes(a, b):
    return {d.path: d.b for d in diff(a, b)}


def test_leave_one_out_changes_exactly_the_declared_fields():
    recipe = Recipe.load("scalerl")
    found = {name: changes(recipe, variant) for name, variant in leave_one_out(recipe)}
    assert found == LOO
    assert [v.name for _, v in leave_one_out(recipe)] == [f"scalerl-{name}" for name in LOO]


def test_leave_one_out_of_a_tiny_run_scales_with_it():
    recipe = Recipe.load("scalerl", "tiny")
    found = {name: changes(recipe, variant) for name, variant in leave_one_out(recipe)}
    assert found.keys() == LOO.keys()
    assert found["loo-lp"]["length.max_tokens"] == 70
    assert found["loo-lp"]["length.penalty_max"] == 70
    assert found["loo-lp"]["length.penalty_cache"] == 6
    # float32 weights: without emulation, leaving FP32 heads out would change nothing
    assert found["loo-fp32"]["precision.trainer_head"] == "bf16-emulated"


def test_what_a_recipe_lacks_cannot_be_left_out():
    assert [name for name, _ in leave_one_out(Recipe.load("base"))] == ["loo-lp"]


def test_forward_ablations_move_one_axis_of_the_baseline():
    base = Recipe.load("base")
    axes = {
        "off-policy-1": {"schedule.k"},
        "pipeline-8": {"schedule.name"},
        "pipeline-4": {"schedule.name", "schedule.k"},
        "cispo": {"loss.name", "loss.ratio_cap", "loss.clip_low", "loss.clip_high"},
        "cispo-4": {"loss.name", "loss.ratio_cap", "loss.clip_low", "loss.clip_high"},
        "cispo-8": {"loss.name", "loss.ratio_cap", "loss.clip_low", "loss.clip_high"},
        "gspo": {"loss.name", "loss.clip_low", "loss.clip_high"},
        "gspo-4e-3": {"loss.name", "loss.clip_low", "loss.clip_high"},
        "fp32": {"precision.trainer_head", "precision.generator_head"},
        "zero-variance": {"filter.zero_variance"},
        "no-positive-resampling": {
            "curriculum.name",
            "curriculum.threshold",
            "curriculum.history",
            "curriculum.return_after",
        },
        "prompt-average": {"loss.aggregation"},
        "token-average": {"loss.aggregation"},
        "batch-norm": {"advantage.normalisation"},
        "no-norm": {"advantage.normalisation"},
    }
    found = {name: set(changes(base, variant)) for name, variant in forward(base)}
    assert found == {f"forward-{name}": fields for name, fields in axes.items()}


@pytest.mark.parametrize("name", ["base", "scalerl", "magistral", "scalerl-32k"])
def test_every_variant_differs_from_its_recipe(name):
    recipe = Recipe.load(name, "tiny")
    for _, variant in [*leave_one_out(recipe), *forward(recipe)]:
        assert diff(recipe, variant)


def test_constants_of_a_loss_of_ones_own_are_differences_too():
    recipe = Recipe.load("scalerl", overrides=["loss.name=mine.losses:soft", "loss.floor=0.1"])
    assert changes(Recipe.load("scalerl"), recipe) == {
        "loss.name": "mine.losses:soft",
        "loss.ratio_cap": None,
        "loss.floor": 0.1,
    }
    [difference] = diff(recipe, recipe.replace({"loss.floor": 0.2}))
    assert (difference.path, difference.a, difference.b) == ("loss.floor", 0.1, 0.2)
    assert difference.meaning == "constant of the loss mine.losses:soft"


def test_every_difference_has_a_meaning():
    for difference in diff(Recipe.load("scalerl"), Recipe.load("base", "tiny")):
        assert difference.meaning and "\n" not in difference.meaning
        assert difference.to_dict()["path"] == difference.path
