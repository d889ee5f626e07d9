"""verl's config as a recipe: a YAML file, and the overrides of a launch script."""

from pathlib import Path

import pytest

from scalerl.cli import main
from scalerl.errors import InputError
from scalerl.recipe.importers import from_verl, import_config
from scalerl.recipe.importers.hydra import read_overrides
from scalerl.recipe.load import nest

FIXTURES = Path(__file__).parent / "fixtures"
DAPO = FIXTURES / "verl_dapo.yaml"
CISPO = FIXTURES / "verl_cispo.sh"
ACTOR = "actor_rollout_ref.actor."
#: The least that is one of verl's configs with a counterpart.
LEAST = {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 8}


def keys(notes):
    return {note.key for note in notes}


def imported(**changes):
    return from_verl(nest({**LEAST, **{k.replace("__", "."): v for k, v in changes.items()}}))


def of_actor(**changes):
    return from_verl(nest({**LEAST, **{ACTOR + key: value for key, value in changes.items()}}))


def test_dapo_becomes_the_recipe_it_describes():
    found = import_config(DAPO)
    recipe = found.recipe
    assert recipe.name == "dapo-32b" and recipe.model.path == "Qwen/Qwen2.5-32B"
    assert (recipe.batch.prompts, recipe.batch.generations) == (32, 16)
    assert (recipe.schedule.name, recipe.schedule.k) == ("off-policy", 16)
    assert (recipe.loss.name, recipe.loss.clip_low, recipe.loss.clip_high) == ("dapo", 0.2, 0.28)
    assert recipe.loss.aggregation == "token" and recipe.loss.kl_coefficient == 0
    assert recipe.advantage.normalisation == "prompt" and recipe.advantage.ddof == 1
    assert recipe.advantage.epsilon == 1e-6
    assert recipe.filter.zero_variance == "drop"  # a phase cannot be refilled
    assert recipe.length.control == "penalty" and recipe.length.max_tokens == 20480
    assert (recipe.length.penalty_max, recipe.length.penalty_cache) == (20480, 4096)
    assert recipe.sampling.max_prompt_tokens == 2048 and recipe.sampling.top_k == 0
    assert recipe.optimiser.lr == 1e-6 and recipe.optimiser.weight_decay == 0.1
    # verl counts phases of 16 optimiser steps.
    assert recipe.optimiser.warmup_steps == 160 and recipe.budget.steps == 6400
    assert recipe.validation.every == 80 and recipe.checkpoint.every == 160
    assert recipe.validation.k == 32 and recipe.validation.temperature == 1.0
    assert recipe.placement.engine == "vllm"
    assert keys(found.unmapped) == {
        "data.train_files",
        "data.val_files",
        "data.gen_batch_size",
        "actor_rollout_ref.rollout.val_kwargs.top_p",
    }
    assert f"{ACTOR}clip_ratio_c" in keys(found.converted)
    assert "algorithm.rollout_is" in keys(found.converted)
    assert {"trainer.logger", "actor_rollout_ref.rollout.tensor_model_parallel_size"} <= set(
        found.housekeeping
    )


def test_a_launch_script_is_read_by_its_overrides_and_the_cap_is_an_offset():
    found = import_config(CISPO)
    recipe = found.recipe
    assert recipe.model.path == "Qwen/Qwen3-8B"
    assert (recipe.batch.prompts, recipe.batch.generations, recipe.schedule.k) == (64, 8, 4)
    assert recipe.loss.name == "cispo" and recipe.loss.ratio_cap == 5.0
    assert (recipe.loss.kl_coefficient, recipe.loss.kl_estimator) == (0.002, "k2")
    assert recipe.advantage.normalisation == "none"
    assert recipe.sampling.max_prompt_tokens == 2048
    assert recipe.validation.temperature == 0 and recipe.validation.k == 1
    assert {"trainer.total_epochs", "data.train_files"} == keys(found.unmapped)
    assert "actor_rollout_ref.rollout.name" in keys(found.converted)


def test_the_shell_is_not_run(tmp_path):
    trace = tmp_path / "ran"
    config = read_overrides(f"a.b=$(touch {trace}) a.c=`touch {trace}` a.d=$((1; 2))", "x.sh")
    assert not trace.exists() and set(config["a"]) == {"b", "c", "d"}


@pytest.mark.parametrize(
    ("changes", "clips"),
    [
        ({"clip_ratio": 0.3}, (0.2, 0.2)),  # the others have a default of their own
        ({"clip_ratio": 0.3, "clip_ratio_low": None, "clip_ratio_high": None}, (0.3, 0.3)),
        ({"clip_ratio_high": "0.28"}, (0.2, 0.28)),
    ],
)
def test_a_clip_that_is_null_is_clip_ratio(changes, clips):
    loss = of_actor(**changes).recipe.loss
    assert (loss.clip_low, loss.clip_high) == clips


@pytest.mark.parametrize(
    ("changes", "loss"),
    [
        ({}, ("grpo", "token")),
        ({"policy_loss.loss_mode": "gspo", "clip_ratio_low": 3e-4}, ("gspo", "sample")),
        ({"loss_agg_mode": "seq-mean-token-mean"}, ("grpo", "sample")),
        ({"policy_loss.loss_mode": "gpg"}, ("reinforce", "token")),
    ],
)
def test_losses_and_averages(changes, loss):
    recipe = of_actor(**changes).recipe
    assert (recipe.loss.name, recipe.loss.aggregation) == loss


def test_dr_grpo_is_known_by_its_parts():
    config = {"algorithm.norm_adv_by_std_in_grpo": False}
    config[f"{ACTOR}loss_agg_mode"] = "seq-mean-token-sum-norm"
    assert from_verl(nest(LEAST | config)).recipe.loss.name == "dr-grpo"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("algorithm.adv_estimator", "gae", "without a critic: use grpo"),
        ("algorithm.adv_estimator", None, "adv_estimator = gae"),
        (f"{ACTOR}policy_loss.loss_mode", "clip_cov", "clip_cov is no loss here"),
        (f"{ACTOR}loss_agg_mode", "median", "median is no average here"),
        (f"{ACTOR}ppo_mini_batch_size", 300, "no multiple of ppo_mini_batch_size"),
        (f"{ACTOR}optim.lr", "fast", "is not a number"),
        ("actor_rollout_ref.rollout.n", 1, "generations"),
        ("trainer.nnodes", 1e15, "more than 1,000,000 devices"),
    ],
)
def test_what_is_unknown_is_refused_with_what_would_do(key, value, message):
    with pytest.raises(InputError, match=message) as caught:
        from_verl(nest(LEAST | {key: value}))
    assert "\n" not in str(caught.value)


def test_keys_without_a_counterpart_are_listed():
    config = {
        f"{ACTOR}entropy_coeff": 0.01,
        f"{ACTOR}ppo_epochs": 2,
        f"{ACTOR}optim.lr_scheduler_type": "cosine",
        "actor_rollout_ref.model.lora_rank": 32,
        "actor_rollout_ref.rollout.multi_turn.enable": True,
        "algorithm.use_kl_in_reward": True,
        "algorithm.surprise": 3,
        "custom_reward_function.path": "reward.py",
        "reward_model.enable": True,
    }
    found = from_verl(nest(LEAST | config))
    assert set(config) <= keys(found.unmapped)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "model:\n  type: resnet\nepochs: 3\n"),
        ("a.json", '{"image_size": 224}'),
        ("b.json", "{}"),
        ("a.toml", "[tool.black]\nline-length = 100\n"),
        ("a.sh", "echo hello\n"),
    ],
)
def test_a_file_that_maps_to_nothing_is_an_error(name, text, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(text)
    assert main(["recipe", "import", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert "num_generations" in said.err or "actor_rollout_ref" in said.err


def test_a_verl_file_is_not_taken_for_trl(capsys):
    assert main(["recipe", "import", str(DAPO)]) == 0
    assert "imported from a verl config" in capsys.readouterr().out
    assert main(["recipe", "import", str(DAPO), "--from", "trl"]) == 2
