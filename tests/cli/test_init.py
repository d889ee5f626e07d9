"""scalerl init: a commented recipe, from options or from answers at a terminal."""

import os
import pty
import subprocess
import sys
import tomllib

import pytest

from scalerl.cli import main
from scalerl.recipe import Recipe
from scalerl.recipe.problems import known_fields


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_terminal_nothing_is_asked_and_the_file_passes_a_dry_run(here, capsys):
    assert main(["init"]) == 0
    assert main(["train", "mine.toml", "--dry-run"]) == 0
    recipe = Recipe.load("mine.toml")
    assert (recipe.name, recipe.model.path, recipe.task.name) == ("mine", "tiny", "running-sums")
    assert recipe.batch == Recipe.load("scalerl", "tiny").batch


def test_options_and_changes_are_in_the_file(here, capsys):
    words = ["--model", "Qwen/Qwen3-0.6B", "--task", "code", "--dataset", "code.jsonl", "--device",
             "cpu", "--steps", "77", "--out", "sub/first.toml", "schedule.k=2", "loss.ratio_cap=4",
             "task.options.tests=3"]  # fmt: skip
    assert main(["init", *words]) == 0
    recipe = Recipe.load("sub/first.toml")
    assert (recipe.name, recipe.model.path, recipe.task.name) == ("first", words[1], "code")
    assert (recipe.task.dataset, recipe.placement.device) == ("code.jsonl", "cpu")
    assert (recipe.budget.steps, recipe.schedule.k, recipe.loss.ratio_cap) == (77, 2, 4)
    assert recipe.task.options == {"tests": 3} and recipe.placement.backend == "local"
    assert main(["train", "sub/first.toml", "--dry-run"]) == 0


def test_every_key_is_explained_by_its_meaning_in_the_schema(here, capsys):
    assert main(["init", "--out", "-", "--model", "my/model"]) == 0
    text = capsys.readouterr().out
    words = " ".join(line.removeprefix("# ") for line in text.splitlines())
    fields, shown = known_fields(), 0
    for section, body in tomllib.loads(text).items():
        for key in body if isinstance(body, dict) else ():
            assert fields[f"{section}.{key}"].description in words, key
            shown += 1
    assert 20 < shown < 40 and max(map(len, text.splitlines())) <= 100


def test_tasks_that_make_their_own_prompts_have_no_dataset(here, capsys):
    assert main(["init", "--model", "my/model", "--task", "reasoning-gym:leg_counting"]) == 0
    assert Recipe.load("mine.toml").task.dataset == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["schedule.kk=2"], "did you mean schedule.k?"),
        (["mine.toml"], "write section.key=value"),
        (["--steps", "0"], "budget.steps must be greater than 0"),
        (["budget.steps="], "budget.steps cannot be unset in a file over the preset tiny"),
        (["--out", "there.toml"], "exists: give --force"),
        (["--out", "there.toml/mine.toml"], "choose another --out"),
    ],
)
def test_what_is_wrong_is_one_line_and_writes_nothing(here, capsys, words, says):
    (here / "there.toml").write_text("mine")
    assert main(["init", *words]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
    assert [p.name for p in here.iterdir()] == ["there.toml"]
    assert (here / "there.toml").read_text() == "mine"


def test_force_replaces_a_file(here, capsys):
    (here / "mine.toml").write_text("old")
    assert main(["init", "--force"]) == 0
    assert Recipe.load("mine.toml").name == "mine"


def test_at_a_terminal_what_is_missing_is_asked(here):
    """Model and steps are given; task, dataset and device are asked. An empty answer is the
    default."""
    ours, theirs = pty.openpty()
    words = ["init", "--model", "my/model", "--steps", "9"]
    with subprocess.Popen(
        [sys.executable, "-m", "scalerl", *words], stdin=theirs, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(theirs)
        os.write(ours, b"code\nproblems.jsonl\n\n")
        _, said = process.communicate(timeout=60)
        os.close(ours)
    assert process.returncode == 0, said
    assert [part.split(":")[0] for part in said.split("]: ")[:3]] == ["Task", "Dataset", "Device"]
    recipe = Recipe.load("mine.toml")
    assert (recipe.task.name, recipe.task.dataset) == ("code", "problems.jsonl")
    assert (recipe.placement.device, recipe.budget.steps) == ("auto", 9)
