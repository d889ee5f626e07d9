"""The mismatch gate: nothing is learnt from ratios that mean nothing."""

import dataclasses

import pytest
from pieces import rollout

from scalerl.errors import PipelineError
from scalerl.pipeline import gate
from scalerl.pipeline.plan import Plan
from scalerl.recipe import Recipe


@pytest.fixture(scope="module")
def plan():
    small = ["task.options.prompts=50", "validation.prompts=4"]
    return Plan.of(Recipe.load("scalerl", "tiny", overrides=small))


def with_recipe(plan, *overrides):
    recipe = Recipe.load("scalerl", "tiny", overrides=list(overrides))
    return dataclasses.replace(plan, recipe=recipe)


@pytest.mark.parametrize(
    ("overrides", "culprit"),
    [
        (["precision.trainer_head=model", "precision.generator_head=model"], "set both to fp32"),
        (["model.dtype=bfloat16"], "precision"),
        (["sampling.top_p=0.9"], "truncated distribution"),
        (["sampling.temperature=0.7"], "temperature of 0.7"),
        ([], "chat template"),
    ],
)
def test_a_gap_that_would_poison_the_ratios_names_the_likely_culprit(plan, overrides, culprit):
    with pytest.raises(PipelineError, match=culprit):
        gate.verdict(with_recipe(plan, *overrides), [0.5, 0.1])


def test_of_a_mixture_the_first_suspect_is_its_routing_unless_it_is_replayed(plan):
    mixture = dataclasses.replace(plan, experts=True)
    with pytest.raises(PipelineError, match=r"different experts .* set precision.routing=replay"):
        gate.verdict(with_recipe(mixture, "model.dtype=bfloat16"), [0.5, 0.1])
    assert "each side chooses them by itself" in gate.verdict(mixture, [1e-6])
    replayed = with_recipe(mixture, "precision.routing=replay")
    with pytest.raises(PipelineError, match="chat template"):
        gate.verdict(replayed, [0.5, 0.1])
    assert "experts" not in gate.verdict(replayed, [1e-6])


def test_a_nan_does_not_pass_the_gate(plan):
    with pytest.raises(PipelineError):
        gate.verdict(plan, [0.0, float("nan")])


def test_a_small_gap_passes(plan):
    assert "mean 1e-06" in gate.verdict(plan, [1e-6, 1e-6])


def test_both_sides_are_asked_about_the_same_rollouts_of_a_held_out_prompt(plan):
    asked = gate.request(plan)
    assert len(asked.seeds) == gate.ROLLOUTS
    group = gate.group(plan, [rollout(3), rollout(0), rollout(5)])
    assert tuple(group.prompt_token_ids.tolist()) == asked.prompt_token_ids
    assert [len(r) for r in group.rollouts] == [3, 5]  # one without tokens has none to compare
