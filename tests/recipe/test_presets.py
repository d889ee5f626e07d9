"""Presets: complete, in step with what generates them, and saying what the paper says."""

import tomllib

import pytest

from scalerl.recipe import Recipe, diff, presets
from scalerl.recipe.load import PRESETS
from scalerl.recipe.make_presets import PRESETS as DEFINITIONS
from scalerl.recipe.make_presets import main
from scalerl.recipe.problems import fields_of

OVERLAYS = {"tiny", "tiny-noisy"}
COMPLETE = [name for name in presets() if name not in OVERLAYS]


def raw(name):
    return tomllib.loads((PRESETS / f"{name}.toml").read_text(encoding="utf-8"))


def differences(a, b):
    return {d.path: (d.a, d.b) for d in diff(Recipe.load(a), Recipe.load(b))}


def test_the_presets_that_were_promised_exist():
    promised = (
        "scalerl deepseek-grpo qwen-dapo magistral minimax-m1 base scalerl-32k scalerl-bs512 "
        "scalerl-bs2048 scalerl-8gen scalerl-24gen scalerl-32gen scalerl-scout tiny "
        "tiny-noisy"
    )
    assert set(presets()) == set(promised.split())
    assert set(COMPLETE) == set(DEFINITIONS)


def test_files_are_what_the_definitions_generate(capsys):
    assert main(["--check"]) == 0, "run python -m scalerl.recipe.make_presets"


@pytest.mark.parametrize("name", COMPLETE)
def test_a_preset_lists_every_field_and_round_trips(name):
    recipe = Recipe.load(name)
    data = raw(name)
    text = (PRESETS / f"{name}.toml").read_text(encoding="utf-8")
    for path in fields_of(recipe):
        section, _, leaf = path.rpartition(".")
        given = (data[section] if section else data).get(leaf)
        value = getattr(getattr(recipe, section), leaf) if section else getattr(recipe, leaf)
        assert (given is None) == (value is None), path
        assert given is not None or f"# {leaf} is unset" in text
    assert tomllib.loads(recipe.to_toml()) == data
    assert Recipe.load(tomllib.loads(recipe.to_toml())) == recipe
    assert recipe.name == name and "2510.13786" in recipe.source


@pytest.mark.parametrize("name", COMPLETE)
def test_every_number_of_a_preset_says_where_it_comes_from(name):
    text = (PRESETS / f"{name}.toml").read_text(encoding="utf-8")
    for line in text.split("\n\n", 1)[1].splitlines():
        if line and not line.startswith(("#", "[", "name = ", "description = ", "source = ")):
            marks = ("paper", "derived", "community", "not stated", "ours")
            assert line.rpartition("  # ")[2].startswith(marks), line


@pytest.mark.parametrize("name", COMPLETE)
def test_presets_differ_only_in_declared_fields(name):
    declared = set(DEFINITIONS[name].changes)
    found = set(differences("scalerl", name))
    # A change of loss or curriculum takes the constants of the old one with it.
    follow = {"loss.ratio_cap", "curriculum.threshold", "curriculum.history"}
    assert found - follow <= declared


@pytest.mark.parametrize("name", COMPLETE)
def test_tiny_turns_any_preset_into_a_laptop_run(name):
    recipe = Recipe.load(name, "tiny")
    assert recipe.name == f"{name}+tiny"
    assert recipe.model.path == "tiny" and recipe.placement.device == "cpu"
    assert recipe.batch.completions == 512 and recipe.budget.steps == 300
    below = Recipe.load(name)
    assert recipe.loss == below.loss and recipe.precision == below.precision
    assert recipe.advantage == below.advantage and recipe.filter == below.filter
    assert recipe.schedule.name == below.schedule.name


def test_the_noisy_overlay_is_tiny_with_another_start_and_pace():
    tiny, noisy = Recipe.load("scalerl", "tiny"), Recipe.load("scalerl", "tiny-noisy")
    assert {d.path for d in diff(tiny, noisy)} == {
        "model.path", "optimiser.lr", "budget.steps"
    }  # fmt: skip
    assert noisy.model.path == "tiny-noisy" and noisy.name == "scalerl+tiny-noisy"


def test_scalerl_is_the_defaults_of_the_schema():
    assert diff(Recipe(), Recipe.load("scalerl"))[0].path == "budget.gpu_hours"
    assert len(diff(Recipe(), Recipe.load("scalerl"))) == 1


def test_scalerl_against_minimax_is_the_papers_table():
    """App. A.16: both CISPO, prompt average, dropped zero variance, FP32; schedule and batch."""
    assert differences("scalerl", "minimax-m1") == {
        "batch.prompts": (48, 80),
        "schedule.name": ("pipeline", "off-policy"),
    }
    assert Recipe.load("minimax-m1").batch.completions == 1280


def test_scalerl_against_the_other_rivals_is_the_papers_table():
    heads = {
        "precision.trainer_head": ("fp32", "model"),
        "precision.generator_head": ("fp32", "model"),
    }
    dapo = {
        "loss.name": ("cispo", "dapo"),
        "loss.ratio_cap": (5.0, None),
        "loss.clip_low": (None, 0.2),
        "loss.clip_high": (None, 0.26),
        "batch.prompts": (48, 80),
        **heads,
    }
    off_policy = {"schedule.name": ("pipeline", "off-policy")}
    assert differences("scalerl", "magistral") == dapo
    assert differences("scalerl", "qwen-dapo") == {**dapo, **off_policy}
    assert differences("scalerl", "deepseek-grpo") == {
        "loss.name": ("cispo", "grpo"),
        "loss.ratio_cap": (5.0, None),
        "loss.clip_low": (None, 0.2),
        "loss.clip_high": (None, 0.2),
        "loss.aggregation": ("prompt", "sample"),
        "filter.zero_variance": ("drop", "keep"),
        **off_policy,
        **heads,
    }


@pytest.mark.parametrize(
    ("name", "prompts", "generations"),
    [
        ("scalerl", 48, 16),
        ("scalerl-8gen", 96, 8),
        ("scalerl-24gen", 32, 24),
        ("scalerl-32gen", 24, 32),
        ("scalerl-bs512", 32, 16),
        ("scalerl-bs2048", 128, 16),
    ],
)
def test_batch_shapes_of_table_1(name, prompts, generations):
    batch = Recipe.load(name).batch
    assert (batch.prompts, batch.generations) == (prompts, generations)


def test_lengths_add_up_to_the_papers_sequences():
    paper = Recipe.load("scalerl")
    assert paper.sampling.max_prompt_tokens + paper.length.longest == 16384
    assert Recipe.load("scalerl-32k").length.longest == 32768 + 2048
