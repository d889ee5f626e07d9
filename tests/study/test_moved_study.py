"""A study whose directory was moved, or that is read from another place, is read, reported and
continued: all it needs is inside it."""

import shutil

import pytest

from scalerl import InputError, Recipe, Study
from scalerl.cli import main
from scalerl.recipe.diff import allowed_changes
from scalerl.runs.store import RunStore

RIVAL = 'name = "rival"\nover = "scalerl"\n[loss]\nratio_cap = 4.0\n'


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """A study of a rival that was named by a file, without that file and elsewhere."""
    first = tmp_path / "first"
    first.mkdir()
    monkeypatch.chdir(first)
    (first / "rival.toml").write_text(RIVAL)
    study = Study("study", ["scalerl", "tiny"], recipes=["rival.toml"], steps=20,
                  axis={"model": ["1x64"]})  # fmt: skip
    study.write()
    for member in study.members:
        member.path.mkdir(parents=True)
        store = RunStore(member.path, resume=True)
        store.write_recipe(member.recipe.to_toml())
        store.write_used_recipe(member.recipe.to_dict())
    shutil.copytree("study", tmp_path / "elsewhere" / "study")
    shutil.rmtree(first / "study")
    (first / "rival.toml").unlink()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "elsewhere" / "study"


def test_a_moved_study_is_read_and_reported(moved, tmp_path, capsys):
    study = Study(moved)
    assert list(study.variants) == ["scalerl+tiny", "rival+tiny", "model-1x64"]
    assert study.differs("rival+tiny") == {"loss.ratio_cap": 4.0}
    assert main(["report", str(moved), "-o", str(tmp_path / "page")]) == 0
    assert "rival+tiny" in (tmp_path / "page" / "report.md").read_text()


def test_a_moved_study_may_grow(moved):
    study = Study(moved, seeds=2, recipes=["scalerl-scout"])
    assert [m.name for m in study.members if m.variant == "rival+tiny"] == [
        "rival+tiny-s0", "rival+tiny-s1",
    ]  # fmt: skip
    with pytest.raises(InputError, match="neither a preset nor a file"):
        Study(moved, recipes=["no-such-rival.toml"])


def test_a_moved_study_continues_with_the_model_that_moved_with_it(moved):
    study = Study(moved)
    (model,) = study.models()
    assert model.path == moved / "models" / "tiny-1x64"
    for member in study.members:
        command = member.command({"steps": 20})
        change = f"model.path={model.path}"
        assert (change in command) == (member.variant == "model-1x64")


def test_a_run_may_be_resumed_where_its_model_was_moved_to():
    old = Recipe.load("scalerl", "tiny").replace({"model.path": "first/models/tiny-1x64"})
    assert allowed_changes(old, old.replace({"model.path": "second/models/tiny-1x64"})) == []
    with pytest.raises(InputError, match=r"model.path cannot change"):
        allowed_changes(old, old.replace({"model.path": "second/models/tiny-2x128"}))
