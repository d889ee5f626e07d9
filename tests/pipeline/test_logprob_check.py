"""The log-prob check: a run does not start when generator and trainer disagree."""

import dataclasses

import pytest
from pieces import turn

from scalerl.errors import PipelineError
from scalerl.pipeline import logprob_check
from scalerl.pipeline.setup import RunSetup
from scalerl.recipe import Recipe


@pytest.fixture(scope="module")
def setup():
    small = ["task.options.prompts=50", "validation.prompts=4"]
    return RunSetup.from_recipe(Recipe.load("scalerl", "tiny", overrides=small))


def with_recipe(setup, *overrides):
    recipe = Recipe.load("scalerl", "tiny", overrides=list(overrides))
    return dataclasses.replace(setup, recipe=recipe)


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
def test_a_gap_that_would_poison_the_ratios_names_the_likely_culprit(setup, overrides, culprit):
    with pytest.raises(PipelineError, match=culprit):
        logprob_check.check_mismatch(with_recipe(setup, *overrides), [0.5, 0.1])


def test_a_gap_that_the_recipe_asks_for_is_a_note(setup):
    one_sided = ["precision.one_sided=true", "precision.generator_head=bf16-emulated"]
    said = logprob_check.check_mismatch(with_recipe(setup, *one_sided), [0.05, 0.1])
    assert "beyond 0.02 as the recipe asks" in said
    with pytest.raises(PipelineError):
        logprob_check.check_mismatch(with_recipe(setup, *one_sided), [float("nan")])


def test_the_check_is_without_the_noise_of_training_rollouts(setup):
    noisy = dataclasses.replace(setup, sampling=dataclasses.replace(setup.sampling, noise=0.5))
    assert logprob_check.request(noisy).sampling == setup.sampling


def test_of_a_mixture_the_first_suspect_is_its_routing_unless_it_is_replayed(setup):
    mixture = dataclasses.replace(setup, experts=True)
    with pytest.raises(PipelineError, match=r"different experts .* set precision.routing=replay"):
        logprob_check.check_mismatch(with_recipe(mixture, "model.dtype=bfloat16"), [0.5, 0.1])
    assert "each side chooses them by itself" in logprob_check.check_mismatch(mixture, [1e-6])
    replayed = with_recipe(mixture, "precision.routing=replay")
    with pytest.raises(PipelineError, match="chat template"):
        logprob_check.check_mismatch(replayed, [0.5, 0.1])
    assert "experts" not in logprob_check.check_mismatch(replayed, [1e-6])


def test_a_nan_does_not_pass(setup):
    with pytest.raises(PipelineError):
        logprob_check.check_mismatch(setup, [0.0, float("nan")])


def test_a_small_gap_passes(setup):
    assert "mean 1e-06" in logprob_check.check_mismatch(setup, [1e-6, 1e-6])


def test_both_sides_are_asked_about_the_same_rollouts_of_a_held_out_prompt(setup):
    asked = logprob_check.request(setup)
    assert len(asked.seeds) == logprob_check.ROLLOUTS
    group = logprob_check.group(setup, [turn(3), turn(0), turn(5)])
    for episode in group.episodes:
        assert tuple(episode.rows[0].prompt.tolist()) == asked.prompt_token_ids
    assert [len(e) for e in group.episodes] == [3, 5]  # one without tokens has none to compare
