"""scalerl recipe, as a user types it."""

import json
import tomllib
from pathlib import Path

import pytest

from scalerl.cli import main
from scalerl.recipe import Recipe, presets

FIXTURES = Path(__file__).parent.parent / "recipe" / "fixtures"


def run(capsys, *arguments):
    code = main(["recipe", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_list_names_every_preset_within_80_columns(capsys):
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert all(name in out for name in presets())
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = run(capsys, "list", "--json")
    assert [row["name"] for row in json.loads(out)] == list(presets())


def test_show_prints_the_resolved_recipe(capsys):
    code, out, _ = run(capsys, "show", "scalerl", "tiny", "loss.ratio_cap=4", "schedule.k=2")
    assert code == 0
    expected = Recipe.load("scalerl", "tiny", overrides=["loss.ratio_cap=4", "schedule.k=2"])
    assert Recipe.load(tomllib.loads(out)) == expected
    code, out, _ = run(capsys, "show", "scalerl", "--json")
    assert json.loads(out) == Recipe.load("scalerl").to_dict()


def test_diff_of_scalerl_and_minimax_is_two_lines_of_difference(capsys):
    code, out, _ = run(capsys, "diff", "scalerl", "minimax-m1")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if not line.startswith(" ")]
    assert rows == [["batch.prompts", "48", "80"], ["schedule.name", "pipeline", "off-policy"]]
    assert "768 and 1280 completions" in out.replace("\n    ", " ")
    code, out, _ = run(capsys, "diff", "scalerl", "minimax-m1", "--json")
    found = json.loads(out)
    assert (found["a"], found["b"]) == ("scalerl", "minimax-m1")
    assert [row["path"] for row in found["differences"]] == ["batch.prompts", "schedule.name"]


@pytest.mark.parametrize("name", sorted(presets()))
def test_diff_tables_fit_80_columns(name, capsys):
    code, out, _ = run(capsys, "diff", "base", name)
    assert code == 0 and max(map(len, out.splitlines())) <= 80


def test_diff_of_a_recipe_with_itself_says_so(capsys):
    assert run(capsys, "diff", "base", "base")[1] == "base and base do the same.\n"


def test_diff_heads_each_column_with_what_was_named(tmp_path, capsys, monkeypatch):
    """Also a copy of a preset, which has the preset's name in it, and a path that is too long."""
    monkeypatch.chdir(tmp_path)
    text = Recipe.load("scalerl", overrides=["schedule.k=4"]).to_toml()
    Path("mine.toml").write_text(text)
    _, out, _ = run(capsys, "diff", "scalerl", "mine.toml")
    assert out.splitlines()[0].split() == ["scalerl", "mine.toml"]
    far = Path("a-folder-with-a-long-name") / "another-folder-with-a-long-name"
    far.mkdir(parents=True)
    for name in ("one.toml", "two.toml"):
        (far / name).write_text(text)
    (far / "two.toml").write_text(text.replace("k = 4", "k = 2"))
    _, out, _ = run(capsys, "diff", far / "one.toml", far / "two.toml")
    left, right = out.splitlines()[0].split()
    assert left.endswith("/one.toml") and right.endswith("/two.toml")
    assert max(map(len, out.splitlines())) <= 80
    _, out, _ = run(capsys, "diff", "scalerl", "mine.toml", "--json")
    assert (json.loads(out)["a"], json.loads(out)["b"]) == ("scalerl", "mine.toml")


def test_a_recipe_file_without_a_name_is_named_by_its_file(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("[schedule]\nk = 4\n")
    assert run(capsys, "check", path)[1].startswith("mine is a possible recipe")
    assert Recipe.load("scalerl", path).name == "scalerl+mine"


def test_check_answers_with_its_exit_code(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(Recipe.load("scalerl").to_toml())
    code, out, _ = run(capsys, "check", path)
    assert code == 0 and "cispo, prompt average, pipeline-8, 768 completions" in out
    path.write_text('[precision]\ntrainer_head = "model"\n')
    code, out, err = run(capsys, "check", path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and "set both to fp32 or neither" in err


def test_bad_input_is_one_line_and_exit_code_2(capsys):
    for arguments in (["show", "scalrl"], ["show", "scalerl", "loss.cap=4"], ["diff", "a", "b"]):
        code, out, err = run(capsys, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_import_prints_a_recipe_and_notes_apart(capsys):
    code, out, err = run(capsys, "import", FIXTURES / "grpo_config.json")
    assert code == 0
    assert Recipe.load(tomllib.loads(out)).loss.ratio_cap == 5.0
    assert "converted: epsilon_high = 5.0" in err
    assert max(map(len, err.splitlines())) <= 80


def test_import_strict_fails_where_something_was_left_behind(capsys):
    fixture = FIXTURES / "prime_rl_scalerl.toml"
    assert run(capsys, "import", fixture, "--strict")[0] == 1
    assert run(capsys, "import", FIXTURES / "grpo_config.json", "--strict")[0] == 0
    code, out, _ = run(capsys, "import", fixture, "--json")
    found = json.loads(out)
    assert code == 0 and found["recipe"]["schedule"]["k"] == 8
    assert found["unmapped"] and found["housekeeping"]
