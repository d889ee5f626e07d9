"""Layers, overrides and the one-line errors of both."""

import json
import tomllib
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.recipe.curriculum import CurriculumSection, UniformCurriculum
from scalerl.recipe.diff import diff
from scalerl.recipe.length import InterruptionLength, LengthSection, PlainLength
from scalerl.recipe.load import merge, parse_override
from scalerl.recipe.problems import known_keys
from scalerl.recipe.toml import string, value


def refusal(*overrides, preset="scalerl"):
    with pytest.raises(InputError) as caught:
        Recipe.load(preset, overrides=overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_later_layers_win_and_overrides_win_over_all(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[batch]\nprompts = 10\n[loss]\nratio_cap = 8\n")
    recipe = Recipe.load("scalerl", "tiny", path, overrides=["loss.ratio_cap=4"])
    assert recipe.batch.prompts == 10  # the file's
    assert recipe.batch.generations == 16  # tiny's
    assert recipe.loss.ratio_cap == 4.0  # the override's
    assert recipe.optimiser.eps == 1e-15  # scalerl's
    assert recipe.name == "scalerl+tiny+mine"


def test_a_layer_may_bring_the_preset_that_it_lies_over(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('over = "tiny"\n[batch]\nprompts = 10\n')
    recipe = Recipe.load("scalerl", path)
    assert recipe.name == "scalerl+mine"
    assert recipe.replace({"name": "scalerl+tiny+mine"}) == Recipe.load(
        "scalerl", "tiny", {"name": "scalerl+tiny+mine", "batch": {"prompts": 10}}
    )
    for wrong in ("nonsense", "mine.toml", 3, ["tiny"]):
        with pytest.raises(InputError, match="is not a preset"):
            Recipe.load("scalerl", {"over": wrong})


def test_a_recipe_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Recipe().batch.prompts = 3


def test_another_loss_starts_from_its_own_constants():
    recipe = Recipe.load("scalerl", overrides=["loss.name=gspo"])
    assert recipe.loss.constants == {"clip_low": 3e-3, "clip_high": 5e-3}
    recipe = Recipe.load("qwen-dapo", overrides=["loss.name=gspo", "loss.clip_high=4e-3"])
    assert recipe.loss.constants == {"clip_low": 3e-3, "clip_high": 4e-3}
    same = Recipe.load("qwen-dapo", overrides=["loss.name=dapo"])
    assert same == Recipe.load("qwen-dapo")


def test_a_choice_that_is_no_text_is_refused_in_one_line():
    for key in ("loss.name", "length.control", "curriculum.name"):
        assert refusal(f"{key}=[1, 2]").startswith(f"{key} must be")


def test_reinforce_weighs_by_the_ratio_only_if_given_a_cap():
    plain = Recipe.load("scalerl", overrides=["loss.name=reinforce"])
    assert plain.loss.ratio_cap is None
    capped = Recipe.load("scalerl", overrides=["loss.name=reinforce", "loss.ratio_cap=2"])
    assert capped.loss.ratio_cap == 2.0


def test_any_further_key_is_a_constant_of_a_loss_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[loss]\nname = "mine.losses:soft"\nclip_low = 0.1\n')
    recipe = Recipe.load("scalerl", path, overrides=["loss.kinds=[1, 2]", "loss.ratio_cp=3"])
    assert recipe.loss.constants == {"clip_low": 0.1, "kinds": [1, 2], "ratio_cp": 3}
    assert recipe.loss.clip_low == 0.1
    assert Recipe.load(tomllib.loads(recipe.to_toml())) == recipe
    fewer = Recipe.load(recipe.to_dict(), overrides=["loss.kinds=", "loss.ratio_cp="])
    assert fewer.loss.constants == {"clip_low": 0.1}
    back = recipe.replace({"loss.name": "cispo"})
    assert back.loss.constants == {"ratio_cap": 5.0}


def test_each_choice_has_a_type_with_its_constants_only():
    recipe = Recipe.load("scalerl")
    assert isinstance(recipe.length, InterruptionLength)
    assert set(recipe.length.constants) == {
        "phrase", "think_tokens_min", "think_tokens_max", "answer_tokens"
    }  # fmt: skip
    assert recipe.replace({"curriculum.name": "uniform"}).curriculum == UniformCurriculum()
    limited = recipe.replace({"length.control": "none", "length.max_tokens": 9})
    assert limited.length == PlainLength(max_tokens=9) and not hasattr(limited.length, "phrase")
    assert limited.length.truncation_warn == recipe.length.truncation_warn
    for made in (*LengthSection.types.values(), *CurriculumSection.types.values()):
        assert all(type(None) not in get_args(i.annotation) for i in made.model_fields.values())


def test_any_further_key_is_a_constant_of_a_control_or_curriculum_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[length]\ncontrol = "mine.parts:Half"\nmax_tokens = 9\nphrase = "so"\n'
        '[curriculum]\nname = "mine.parts:Few"\nrollouts = 3\n'
    )
    recipe = Recipe.load("scalerl", path, overrides=["length.kinds=[1, 2]"])
    assert recipe.length.constants == {"max_tokens": 9, "phrase": "so", "kinds": [1, 2]}
    assert recipe.curriculum.constants == {"rollouts": 3}
    assert Recipe.load(tomllib.loads(recipe.to_toml())) == recipe
    changed = recipe.replace({"length.kinds": [3], "curriculum.rollouts": 4})
    assert {d.path: d.meaning for d in diff(recipe, changed)} == {
        "curriculum.rollouts": "constant of the curriculum mine.parts:Few",
        "length.kinds": "constant of the length control mine.parts:Half",
    }
    assert (
        diff(recipe.replace({"length.control": "interruption"}), recipe)[-1].path == "length.kinds"
    )
    assert refusal("length.control=mine.parts:Half").endswith("needs length.max_tokens: set them")
    assert "did you mean penalty?" in refusal("length.control=penlty")
    assert "did you mean uniform?" in refusal("curriculum.name=unifrom")


def test_a_constant_that_toml_cannot_hold_is_refused_in_one_line():
    for wrong in ("{a = 1}", "[[1]]", "nan", "2020-01-01"):
        assert refusal("loss.name=mine.losses:soft", f"loss.x={wrong}") == (
            "loss.x must be text, a number, true or false, or a list of those"
        )


def test_a_plainly_wrong_loss_or_aggregation_gets_the_nearest():
    assert refusal("loss.name=cispoo").endswith('"cispoo" is no loss; did you mean cispo?')
    assert "did you mean prompt?" in refusal("loss.aggregation=promt")
    assert "is no loss; choose from cispo" in refusal("loss.name=mine.losses")
    assert "is no aggregation; choose from prompt" in refusal("loss.aggregation=median")


def test_names_of_parts_only_have_to_look_like_names():
    keys = [f"placement.{name}" for name in ("backend", "engine", "trainer", "weights")]
    for key in [*keys, "optimiser.name"]:
        section, _, leaf = key.partition(".")
        for name in ("shared-memory", "my_package.parts:Mine"):
            recipe = Recipe.load("scalerl", overrides=[f"{key}={name}"])
            assert getattr(getattr(recipe, section), leaf) == name
        assert "neither a name nor an import path" in refusal(f"{key}=two words")


def test_overrides_are_toml_values_or_bare_words():
    assert parse_override("optimiser.betas=[0.9, 0.99]") == ("optimiser.betas", [0.9, 0.99])
    assert parse_override('task.name="a b"') == ("task.name", "a b")
    assert parse_override("model.path=Qwen/Qwen3-8B") == ("model.path", "Qwen/Qwen3-8B")
    assert parse_override("length.control=none") == ("length.control", "none")
    assert parse_override("loss.count_forced_tokens=true") == ("loss.count_forced_tokens", True)


def test_an_empty_value_unsets_what_may_be_unset():
    assert Recipe.load("scalerl", overrides=["budget.gpu_hours="]).budget.gpu_hours is None
    assert refusal("seed=") == "seed cannot be unset; give a value"


def test_text_lists_and_tables_that_are_unset_are_empty():
    """`task.name=reasoning-gym:leg_counting task.dataset=`, as the page on tasks has it."""
    lower = {"task": {"dataset": "a.jsonl", "options": {"a": 1}, "weights": [1.0]}}

    def task(*overrides):
        return Recipe.load("scalerl", lower, overrides=overrides).task

    assert task("task.dataset=").dataset == ""
    assert task("task.weights=").weights == ()
    assert task("task.options=").options == {}
    assert task("task.options={}").options == {"a": 1}  # nothing laid over it
    assert task("task.options={b = 2}").options == {"a": 1, "b": 2}
    assert task("task.options=", "task.options.b=2").options == {"b": 2}
    assert task("task.options.b=2", "task.options=").options == {}
    assert Recipe.from_dict({"task": {"dataset": None}}).task.dataset == ""


def test_float16_is_refused_with_the_reason():
    assert refusal("model.dtype=float16") == (
        "model.dtype = float16 needs loss scaling, which scalerl does not have: small gradients "
        "would become 0; set bfloat16 or float32"
    )


def test_task_options_are_free():
    recipe = Recipe.load("scalerl", "tiny", overrides=["task.options.items_max=20"])
    assert recipe.task.options == {"items_max": 20}
    assert Recipe.load(tomllib.loads(recipe.to_toml())) == recipe
    lists = recipe.replace({"task.options": {"code": {"sizes": [1, 2.5], "on": True}}})
    assert Recipe.load(tomllib.loads(lists.to_toml())) == lists
    one_fewer = Recipe.load(
        "scalerl", "tiny", {"task": {"options": {"a": 1, "b": 2}}}, overrides=["task.options.a="]
    )
    assert one_fewer.task.options == {"b": 2}
    inner = recipe.replace({"task.options": {"code": {"downstream": {"aime": "a.jsonl"}}}})
    assert Recipe.load(tomllib.loads(inner.to_toml())) == inner
    for wrong in ("[[1]]", "nan", "2020-01-01", "{a = {b = {c = 1}}}"):
        assert refusal(f"task.options.x={wrong}") == (
            "task.options.x must be text, a number, true or false, or a list or table of those"
        )


def test_several_tasks_and_their_shares():
    recipe = Recipe.load("scalerl", overrides=["task.name=math+code", "task.weights=[3, 1]"])
    assert recipe.task.names == ("math", "code") and recipe.task.weights == (3.0, 1.0)
    assert "one number for each task" in refusal("task.weights=[1, 2]")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("loss.ratio_cp", "loss.ratio_cap"),
        ("optimizer.lr", "optimiser.lr"),
        ("optimiser.learning_rate", "optimiser.lr"),
        ("lr", "optimiser.lr"),
        ("batch.group_size", "batch.generations"),
        ("loss.threshold", "curriculum.threshold"),
        ("schedul.k", "schedule.k"),
        ("advantage.normalization", "advantage.normalisation"),
        ("max_async_level", "schedule.k"),
    ],
)
def test_unknown_keys_suggest_the_nearest(wrong, meant, tmp_path):
    expected = f"{wrong} is not a key of a recipe; did you mean {meant}?"
    assert refusal(f"{wrong}=1") == expected
    section, _, leaf = wrong.rpartition(".")
    path = tmp_path / "mine.toml"
    path.write_text(f"[{section}]\n{leaf} = 1\n" if section else f"{leaf} = 1\n")
    with pytest.raises(InputError) as caught:
        Recipe.load("scalerl", path)
    assert str(caught.value) == f"mine: {expected}"


def test_files_that_cannot_be_used_say_so_in_one_line(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("[loss\n")
    with pytest.raises(InputError, match=r"bad.toml is not TOML"):
        Recipe.load(path)
    path.write_text("loss = 3\n")
    with pytest.raises(InputError, match="loss is a section"):
        Recipe.load(path)
    with pytest.raises(InputError, match="did you mean scalerl"):
        Recipe.load("scalrl")
    with pytest.raises(InputError, match="neither a preset nor a file"):
        Recipe.load(str(tmp_path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        Recipe.load(path)


def test_overrides_that_are_none_say_so():
    assert "write section.key=value" in refusal("loss.name")
    assert "is a section" in refusal("loss=cispo")
    assert "TOML value" in refusal('loss.name="cispo')


words = st.sampled_from(
    [
        *("true", "0", "-1", "1", "2", "7", "64", "0.5", "1e-3", "1e400", "nan", "inf", '""'),
        *("[1,2]", "[]", "{a=1}", "2020-01-01", "cispo", "dapo", "reinforce", "none", "penalty"),
        *("fp32", "off-policy", "uniform", "mine.losses:soft"),
    ]
)
overrides = st.lists(
    st.tuples(
        st.sampled_from([*sorted(known_keys()), "loss.mine", "length.mine", "curriculum.mine"]),
        words | st.text(max_size=6),
    ).map("=".join),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["scalerl", "base", "tiny"]), overrides)
def test_any_overrides_give_a_recipe_or_a_one_line_error(preset, texts):
    try:
        recipe = Recipe.load(preset, overrides=texts)
    except InputError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert Recipe.load(tomllib.loads(recipe.to_toml())) == recipe
        json.dumps(recipe.to_dict(), allow_nan=False)


printable = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=100, deadline=None)
@given(printable)
def test_any_text_survives_toml(text):
    assert tomllib.loads(f"x = {string(text)}")["x"] == text


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        printable, st.integers() | st.booleans() | st.floats(allow_nan=False) | printable
    )
)
def test_any_table_survives_toml(table):
    assert tomllib.loads(f"x = {value(table)}")["x"] == table


def test_merging_leaves_its_arguments_alone():
    lower, upper = {"loss": {"name": "cispo", "ratio_cap": 5}}, {"loss": {"name": "dapo"}}
    assert merge(lower, upper) == {"loss": {"name": "dapo"}}
    assert lower == {"loss": {"name": "cispo", "ratio_cap": 5}}
