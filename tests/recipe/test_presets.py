"""Presets: what they resolve to, where each number comes from, and what the paper says."""

import hashlib
import tomllib

import pytest

from scalerl.cli import main
from scalerl.errors import InputError
from scalerl.recipe import Recipe, diff, presets
from scalerl.recipe.load import annotated, preset_text, provenance, read_preset
from scalerl.recipe.problems import fields_of
from scalerl.tasks.registry import recipe_ceiling
from scalerl.tasks.running_sums import ceiling

OVERLAYS = {"tiny", "tiny-short", "tiny-open", "tiny-noisy", "tiny-tools", "tiny-guess"}
COMPLETE = [name for name in presets() if name not in OVERLAYS]
MARKS = ("paper", "derived", "community", "not stated", "ours")
#: Of the numbers that are from the paper, or derived from it, each with its mark.
DIGESTS = {
    "scalerl": "d829887710d03064",
    "base": "e3f129124be975b0",
    "deepseek-grpo": "e81087d9fbd0e17c",
    "qwen-dapo": "40134ace9fb2a6b4",
    "magistral": "6c2b54c08bfb08b0",
    "minimax-m1": "b794728ef2cb9c81",
    "scalerl-32k": "21ff8839ca19f1c1",
    "scalerl-bs512": "91a1d59137184e5f",
    "scalerl-bs2048": "2f86f6a948e5aefb",
    "scalerl-8gen": "0f360ad93f2b4cb5",
    "scalerl-24gen": "bd352fdba03ff27e",
    "scalerl-32gen": "04304cd614f3515e",
    "scalerl-scout": "2c0eb15a6c7252f6",
}


def differences(a, b):
    return {d.path: (d.a, d.b) for d in diff(Recipe.load(a), Recipe.load(b))}


def test_the_presets_that_were_promised_exist():
    promised = (
        "scalerl deepseek-grpo qwen-dapo magistral minimax-m1 base scalerl-32k scalerl-bs512 "
        "scalerl-bs2048 scalerl-8gen scalerl-24gen scalerl-32gen scalerl-scout tiny "
        "tiny-short tiny-open tiny-noisy tiny-tools tiny-guess"
    )
    assert set(presets()) == set(promised.split())
    assert set(COMPLETE) == set(DIGESTS)


def test_show_prints_the_complete_recipe_with_and_without_provenance(capsys):
    assert main(["recipe", "show", "minimax-m1"]) == 0
    plain = capsys.readouterr().out
    assert plain == Recipe.load("minimax-m1").to_toml()
    assert main(["recipe", "show", "minimax-m1", "--provenance"]) == 0
    marked = capsys.readouterr().out
    assert tomllib.loads(marked) == tomllib.loads(plain)
    assert "prompts = 80  # paper: 1,280 completions\n" in marked
    assert 'control = "interruption"  # not stated: kept as in scalerl\n' in marked
    assert main(["recipe", "show", "scalerl", "tiny", "--provenance"]) == 0
    assert "prompts = 32  # changed here: 48 in scalerl\n" in capsys.readouterr().out


def test_provenance_of_a_file_is_refused():
    with pytest.raises(InputError, match=r"my\.toml is not a preset"):
        annotated(Recipe(), "my.toml")


@pytest.mark.parametrize("name", COMPLETE)
def test_a_preset_sets_every_field_and_round_trips(name):
    recipe = Recipe.load(name)
    data = read_preset(name)
    for path in fields_of(recipe):
        section, _, leaf = path.rpartition(".")
        given = (data[section] if section else data).get(leaf)
        value = getattr(getattr(recipe, section), leaf) if section else getattr(recipe, leaf)
        assert (given is None) == (value is None), path
        assert given is not None or f"# {leaf} is unset" in recipe.to_toml()
    assert tomllib.loads(recipe.to_toml()) == data
    assert Recipe.load(tomllib.loads(recipe.to_toml())) == recipe
    assert recipe.name == name and "2510.13786" in recipe.source


@pytest.mark.parametrize("name", COMPLETE)
def test_every_number_of_a_preset_says_where_it_comes_from(name):
    for line in annotated(Recipe.load(name), name).splitlines():
        if line and not line.startswith(("#", "[", "name = ", "description = ", "source = ")):
            assert line.rpartition("  # ")[2].startswith(MARKS), line


@pytest.mark.parametrize("name", COMPLETE)
def test_every_value_in_a_preset_file_has_a_mark(name):
    _, _, sections = preset_text(name).partition("\n[")
    values = [line for line in sections.splitlines()[1:] if line and not line.startswith("[")]
    assert values
    for line in values:
        assert line.rpartition("  # ")[2].startswith(MARKS), line


@pytest.mark.parametrize("name", COMPLETE)
def test_the_papers_numbers_are_what_they_were(name):
    recipe = Recipe.load(name)
    marks = provenance(name)
    lines = []
    for path in fields_of(recipe):
        section, _, leaf = path.rpartition(".")
        value = getattr(getattr(recipe, section), leaf) if section else getattr(recipe, leaf)
        if value is not None and marks.get(path, "").startswith(("paper", "derived")):
            lines.append(f"{path} = {value!r}  # {marks[path]}")
    assert len(lines) > 20
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", COMPLETE)
def test_presets_differ_only_in_the_fields_of_their_file(name):
    data = tomllib.loads(preset_text(name))
    declared = {f"{s}.{k}" for s, keys in data.items() if isinstance(keys, dict) for k in keys}
    found = set(differences("scalerl", name))
    # A change of loss or curriculum drops the constants of the old one.
    curriculum = {"curriculum.threshold", "curriculum.history", "curriculum.return_after"}
    follow = {"loss.ratio_cap", *curriculum}
    assert found - follow <= declared


@pytest.mark.parametrize("upper", COMPLETE)
def test_a_preset_over_another_overrides_all_of_it(upper):
    over = Recipe.load("base", "tiny", upper)
    own = Recipe.load(upper)
    unset = {"budget.steps", "validation.also_temperatures"}
    assert {d.path for d in diff(over, own)} <= unset and over.name == upper


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


def test_the_short_overlay_asks_as_many_prompts_of_each_size_so_that_its_ceiling_is_exact():
    recipe = Recipe.load("scalerl", "tiny-short")
    assert recipe_ceiling(recipe) == pytest.approx(ceiling(32, 40, n_min=2, n_max=10))
    assert recipe_ceiling(recipe) == pytest.approx(22 / 27)


def test_the_open_overlay_has_room_to_think_about_every_item():
    recipe = Recipe.load("scalerl", "tiny-open")
    assert recipe_ceiling(recipe) == 1.0
    assert recipe_ceiling(recipe.replace({"length.think_tokens_min": 64})) < 1.0
    assert recipe.schedule == Recipe.load("scalerl", "tiny-short").schedule


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
