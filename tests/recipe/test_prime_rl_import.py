"""prime-rl's rl.toml as a recipe."""

from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.recipe.importers import from_prime_rl, import_config

FIXTURE = Path(__file__).parent / "fixtures" / "prime_rl_scalerl.toml"


def keys(notes):
    return {note.key for note in notes}


def test_the_scalerl_fork_becomes_the_recipe_it_describes():
    found = import_config(FIXTURE)
    recipe = found.recipe
    assert recipe.name == "scalerl-math" and recipe.model.path == "Qwen/Qwen3-8B"
    assert (recipe.batch.prompts, recipe.batch.generations) == (16, 16)
    assert recipe.loss.name == "cispo" and recipe.loss.ratio_cap == 4.0
    assert recipe.loss.aggregation == "prompt"
    assert recipe.advantage.normalisation == "batch"
    assert (recipe.schedule.name, recipe.schedule.k) == ("pipeline", 8)
    assert recipe.curriculum.name == "no-positive-resampling"
    assert recipe.curriculum.history == "mean"
    assert recipe.precision.trainer_head == recipe.precision.generator_head == "fp32"
    assert recipe.optimiser.eps == 1e-15 and recipe.optimiser.warmup_steps == 100
    assert recipe.length.max_tokens == 6144 and recipe.sampling.max_prompt_tokens == 2048
    assert recipe.validation.every == 50 and recipe.validation.k == 4
    assert recipe.validation.temperature == 0.6
    assert (recipe.placement.generators, recipe.placement.trainers) == (4, 4)
    assert keys(found.unmapped) == {
        "orchestrator.train.env",
        "orchestrator.buffer.easy_threshold",
        "trainer.matmul_precision",
        "trainer.model.lora.rank",
    }
    assert {"output_dir", "trainer.model.attn"} <= set(found.housekeeping)


def test_upstreams_own_loss_has_no_counterpart_and_is_reported():
    config = {"orchestrator": {"batch_size": 128, "group_size": 8}}
    found = from_prime_rl(config)
    assert "trainer.loss.type" in keys(found.unmapped)
    assert found.recipe.advantage.normalisation == "none"
    assert found.recipe.loss.aggregation == "token"
    assert found.recipe.filter.zero_variance == "drop"


@pytest.mark.parametrize(
    ("async_keys", "schedule"),
    [
        ({}, ("pipeline", 8)),  # max_off_policy_steps defaults to 8
        ({"max_off_policy_steps": 3}, ("pipeline", 3)),
        ({"max_async_level": 4}, ("pipeline", 4)),
        ({"max_async_level": 2, "max_off_policy_steps": 10**9}, ("pipeline", 2)),
        ({"max_async_level": 0}, ("off-policy", 1)),
    ],
)
def test_whichever_bound_on_staleness_binds_becomes_k(async_keys, schedule):
    config = {"orchestrator": {"batch_size": 128, "group_size": 8, **async_keys}}
    recipe = from_prime_rl(config).recipe
    assert (recipe.schedule.name, recipe.schedule.k) == schedule


def test_one_sided_fp32_becomes_both_sides_and_says_so():
    config = {"orchestrator": {"group_size": 8}, "inference": {"model": {"fp32_lm_head": True}}}
    found = from_prime_rl(config)
    assert found.recipe.precision.trainer_head == "fp32"
    assert "inference.model.fp32_lm_head" in keys(found.converted)


def test_batches_that_do_not_divide_and_groups_of_one_are_refused():
    with pytest.raises(InputError, match="no multiple of 7 per prompt"):
        from_prime_rl({"orchestrator": {"group_size": 7}})
    with pytest.raises(InputError, match="single rollout"):
        from_prime_rl({})


def test_linear_falls_at_the_end_and_cosine_from_the_warm_up_on():
    """As prime-rl's setup_linear_scheduler and setup_cosine_scheduler have it."""
    trainer, group = {"optim": {"lr": 1e-6}}, {"group_size": 8}
    linear = {"type": "linear", "warmup_steps": 20, "decay_steps": 100, "min_lr": 1e-7}
    config = {"max_steps": 500, "orchestrator": group, "trainer": trainer | {"scheduler": linear}}
    found = from_prime_rl(config)
    rate = found.recipe.optimiser
    assert (rate.decay, rate.decay_start, rate.decay_steps) == ("linear", 400, 100)
    assert rate.min_lr_ratio == pytest.approx(0.1)
    cosine = {"type": "cosine", "warmup_steps": 20}
    found = from_prime_rl(config | {"trainer": trainer | {"scheduler": cosine}})
    rate = found.recipe.with_decay_fixed().optimiser
    assert (rate.decay, rate.decay_start, rate.decay_steps) == ("cosine", 20, 480)
    found = from_prime_rl({"orchestrator": group, "trainer": trainer | {"scheduler": cosine}})
    assert "trainer.scheduler.type" in {note.key for note in found.unmapped}
