"""TRL's GRPOConfig as a recipe. The fixtures are `GRPOConfig(...).to_dict()` of TRL 1.16."""

import dataclasses
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.recipe.importers import from_trl, import_config
from scalerl.recipe.importers.trl import NEUTRAL

FIXTURES = Path(__file__).parent / "fixtures"


def fixture(name="grpo_config"):
    return json.loads((FIXTURES / f"{name}.json").read_text())


def keys(notes):
    return {note.key for note in notes}


def test_a_scalerl_like_config_becomes_the_recipe_it_describes():
    found = import_config(FIXTURES / "grpo_config.json")
    recipe = found.recipe
    assert recipe.name == "scalerl-in-trl"
    assert recipe.loss.name == "cispo" and recipe.loss.ratio_cap == 5.0
    assert recipe.loss.aggregation == "token"  # TRL has no prompt average
    assert recipe.batch.prompts == 48 and recipe.batch.generations == 16
    assert (recipe.schedule.name, recipe.schedule.k) == ("off-policy", 8)
    assert recipe.advantage.normalisation == "batch" and recipe.advantage.ddof == 1
    assert recipe.precision.trainer_head == recipe.precision.generator_head == "fp32"
    assert recipe.optimiser.lr == 5e-7 and recipe.optimiser.eps == 1e-15
    assert recipe.optimiser.warmup_steps == 100 and recipe.optimiser.betas == (0.9, 0.999)
    assert recipe.length.control == "none" and recipe.length.max_tokens == 14336
    assert recipe.filter.truncated == "drop" and recipe.filter.zero_variance == "keep"
    assert recipe.curriculum.name == "uniform" and recipe.budget.steps == 1000
    assert found.unmapped == ()
    assert {"epsilon_high", "steps_per_generation", "scale_rewards"} <= keys(found.converted)


def test_trls_defaults_are_dapo_clipping_of_groups():
    found = import_config(FIXTURES / "grpo_config_defaults.json")
    recipe = found.recipe
    # loss_type "dapo" with one epsilon is the symmetric clip, averaged over tokens
    assert (recipe.loss.name, recipe.loss.aggregation) == ("grpo", "token")
    assert (recipe.loss.clip_low, recipe.loss.clip_high) == (0.2, 0.2)
    assert recipe.advantage.normalisation == "prompt" and recipe.advantage.epsilon == 1e-4
    assert (recipe.schedule.name, recipe.schedule.k) == ("off-policy", 1)
    assert keys(found.unmapped) == {"lr_scheduler_type", "num_train_epochs"}


def test_defaults_of_keys_left_out_are_trls_not_ours():
    """An empty YAML and GRPOConfig() describe the same run, but for mixed precision on a CPU."""
    left_out = from_trl({}).recipe.to_dict()
    written = import_config(FIXTURES / "grpo_config_defaults.json").recipe.to_dict()
    left_out["model"]["dtype"] = written["model"]["dtype"]
    left_out["placement"]["device"] = written["placement"]["device"]
    assert left_out == written


@pytest.mark.parametrize(
    ("config", "name", "aggregation", "clip"),
    [
        ({"loss_type": "grpo"}, "grpo", "sample", (0.2, 0.2)),
        ({"loss_type": "grpo", "epsilon_high": 0.28}, "dapo", "sample", (0.2, 0.28)),
        ({"loss_type": "dapo", "epsilon_high": 0.28}, "dapo", "token", (0.2, 0.28)),
        ({"loss_type": "bnpo"}, "grpo", "token", (0.2, 0.2)),
        ({"loss_type": "dr_grpo", "scale_rewards": False}, "dr-grpo", "constant", (0.2, 0.2)),
        ({"loss_type": "dr_grpo"}, "grpo", "constant", (0.2, 0.2)),
        (
            {
                "loss_type": "grpo",
                "importance_sampling_level": "sequence",
                "epsilon": 3e-4,
                "epsilon_high": 4e-4,
            },
            *("gspo", "sample", (3e-4, 4e-4)),
        ),
    ],
)
def test_loss_types_are_a_loss_and_an_aggregation(config, name, aggregation, clip):
    loss = from_trl(config).recipe.loss
    assert (loss.name, loss.aggregation) == (name, aggregation)
    assert (loss.clip_low, loss.clip_high) == clip


def test_the_cap_of_cispo_is_absolute_in_trl_and_missing_it_is_an_error():
    assert from_trl({"loss_type": "cispo", "epsilon_high": 5.0}).recipe.loss.ratio_cap == 5.0
    with pytest.raises(InputError, match=r"cap the ratio at epsilon = 0\.2"):
        from_trl({"loss_type": "cispo"})


def test_a_loss_without_counterpart_is_reported_not_dropped():
    found = from_trl({"loss_type": "sapo", "sapo_temperature_pos": 1.0})
    assert {"loss_type", "sapo_temperature_pos"} <= keys(found.unmapped)


def test_steps_per_generation_counts_micro_batches():
    config = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    found = from_trl({**config, "steps_per_generation": 16}, processes=2)
    assert found.recipe.batch.completions == 8 * 4 * 2
    assert found.recipe.schedule.k == 4
    assert from_trl({**config, "generation_batch_size": 128}, processes=2).recipe.schedule.k == 2
    with pytest.raises(InputError, match="would mix two generation phases"):
        from_trl({**config, "steps_per_generation": 6})
    with pytest.raises(InputError, match="no multiple of 7 per prompt"):
        from_trl({**config, "num_generations": 7})


def test_one_sided_fp32_of_trl_with_vllm_becomes_both_sides_and_says_so():
    found = from_trl({"cast_lm_head_to_fp32": True, "use_vllm": True})
    assert found.recipe.precision.generator_head == "fp32"
    assert "cast_lm_head_to_fp32" in keys(found.converted)
    assert found.recipe.placement.engine == "vllm"


def test_no_key_is_dropped_in_silence():
    """Every key that is set ends in the recipe, in a list, or was neutral or switched off."""
    config = {"min_p": 0.05, "num_iterations": 4, "delta": 4.0, "use_peft": True, "my_key": 3}
    config |= {"repetition_penalty": 1.1, "generation_kwargs": {"seed": 1}, "logging_steps": 10}
    found = from_trl(config)
    assert keys(found.unmapped) >= set(config) - {"generation_kwargs", "logging_steps"}
    assert "generation_kwargs.seed" in keys(found.unmapped)
    assert "logging_steps" in found.housekeeping


def test_yaml_numbers_that_yaml_leaves_as_text_are_read(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "grpo.yaml"
    path.write_text("learning_rate: 1e-6\nmodel_name_or_path: Qwen/Qwen3-0.6B\nbeta: 0.04\n")
    recipe = import_config(path).recipe
    assert recipe.optimiser.lr == 1e-6 and recipe.model.path == "Qwen/Qwen3-0.6B"
    assert recipe.loss.kl_coefficient == 0.04
    path.write_text("learning_rate: fast\n")
    with pytest.raises(InputError, match="is not a number"):
        import_config(path)
    path.write_text("a: [1\n")
    with pytest.raises(InputError, match="is not valid yaml") as caught:
        import_config(path)
    assert "\n" not in str(caught.value)


def test_without_pyyaml_a_yaml_file_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "grpo.yaml"
    path.write_text("beta: 0.04\n")
    with pytest.raises(InputError, match="pip install pyyaml"):
        import_config(path)


def test_files_that_are_no_config_say_so(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("[1, 2]")
    with pytest.raises(InputError, match="no keys and values"):
        import_config(path)
    path.write_text("{")
    with pytest.raises(InputError, match="is not valid json"):
        import_config(path)
    with pytest.raises(InputError, match="cannot be read"):
        import_config(tmp_path / "absent.yaml")


def test_the_fixtures_are_what_the_installed_trl_writes():
    """Only where TRL is installed: its fields are still called what we map."""
    try:
        version("trl")  # not importorskip, which would find the folder tests/trl
    except PackageNotFoundError:
        pytest.skip("TRL is not installed")
    import trl

    known = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    mapped = {
        *("loss_type", "epsilon", "epsilon_high", "scale_rewards", "num_generations", "beta"),
        *("steps_per_generation", "generation_batch_size", "max_completion_length"),
        *("importance_sampling_level", "mask_truncated_completions", "cast_lm_head_to_fp32"),
        *("temperature", "top_p", "top_k", "use_vllm", "num_iterations", "adam_epsilon"),
        *NEUTRAL,
    }
    assert mapped <= known
    config = trl.GRPOConfig(output_dir="out", use_cpu=True, bf16=False, report_to=[])
    found = from_trl(config.to_dict())
    assert found.recipe == from_trl(fixture("grpo_config_defaults")).recipe
    assert keys(found.unmapped) == {"lr_scheduler_type", "num_train_epochs"}


@pytest.mark.parametrize(
    ("config", "decay", "floor"),
    [
        ({"max_steps": 500}, "linear", 0.0),  # Transformers' default
        ({"max_steps": 500, "lr_scheduler_type": "cosine"}, "cosine", 0.0),
        ({"max_steps": 500, "lr_scheduler_type": "cosine_with_min_lr",
          "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}, "cosine", 0.1),
        ({"max_steps": 500, "lr_scheduler_type": "cosine_with_min_lr", "learning_rate": 1e-6,
          "lr_scheduler_kwargs": {"min_lr": 2e-7}}, "cosine", 0.2),
        ({"max_steps": 500, "lr_scheduler_type": "constant_with_warmup"}, "constant", 0.0),
    ],
)  # fmt: skip
def test_a_learning_rate_schedule_is_ours(config, decay, floor):
    found = from_trl({"warmup_steps": 20, **config})
    rate = found.recipe.with_decay_fixed().optimiser
    assert (rate.decay, rate.min_lr_ratio) == (decay, pytest.approx(floor))
    assert not keys(found.unmapped) & {"lr_scheduler_type", "lr_scheduler_kwargs.min_lr_rate"}
    if decay != "constant":
        assert (rate.decay_start, rate.decay_steps) == (20, 480)


def test_a_schedule_that_we_do_not_have_is_named():
    found = from_trl({"max_steps": 500, "lr_scheduler_type": "polynomial"})
    assert "lr_scheduler_type" in keys(found.unmapped)
    assert found.recipe.optimiser.decay == "constant"
