"""Going on from an earlier checkpoint: the old record is kept whole, and a kill at any moment
leaves the old state or one that the next command makes the new one."""

import json
import os
import shutil
from pathlib import Path

import pytest

from scalerl import load_run
from scalerl.errors import InputError
from scalerl.pipeline import branches, checkpoints
from scalerl.recipe import Recipe
from scalerl.runs.lines import EpisodeLine, EvalAnswers, EvalLine, EventLine, StepLine
from scalerl.runs.lock import RunLock
from scalerl.runs.store import RunStore, encode

RECIPE = Recipe.load("scalerl", "tiny", overrides=["optimiser.lr=1e-4"])
SLOWER = RECIPE.replace({"optimiser.lr": 1e-5, "schedule.k": 1})


@pytest.fixture
def run(tmp_path):
    """Thirty steps, a validation at every tenth, checkpoints at 10, 20 and 30, the last unwell."""
    store = RunStore(tmp_path / "first")
    branches.write_recipe(store, RECIPE)
    for step in range(31):
        if step:
            store.append(StepLine.from_dict({"step": step}))
            store.append_episodes([encode(EpisodeLine.from_dict({"step": step}))], most=10**6)
        if step % 10 == 0:
            compute = {"device_hours": float(step), "flops": 1e9 * step}
            rate = {"step": step, "pass_rate": step / 100, "n_prompts": 8, "k": 2}
            store.append(EvalLine.from_dict({**rate, "compute": compute}))
            store.save_answers(EvalAnswers(step, {}, ()))
    store.append(EventLine(30, "end", reason="budget of 30 steps"))
    for step in (10, 20, 30):
        write_checkpoint(store.path, step)
    return store


def write_checkpoint(out, step):
    with checkpoints.writing(out, step, healthy=step < 30) as folder:
        (folder / "run.json").write_text(json.dumps({"last_validation": step}))
        (folder / "weights").write_bytes(bytes([step]) * 100)


def steps(path, kind=StepLine):
    return [line.step for line in RunStore(path, resume=True).read(kind)]


def saved(path):
    return {
        checkpoints.step_of(p)
        for p in checkpoints.list_checkpoints(path)
        if checkpoints.find_damage(p) is None
    }


def used(path):
    return Recipe.load(path / "recipe.toml")


def is_old(path):
    return (
        steps(path) == list(range(1, 31))
        and steps(path, EvalLine) == [0, 10, 20, 30]
        and saved(path) == {10, 20, 30}
        and used(path) == RECIPE
        and not list(path.glob("branches/[0-9]"))
    )


def is_new(path):
    kept = path / "branches" / "1"
    record = RunStore(path, resume=True)
    events = [e for e in record.read(EventLine) if e.event == "branch"]
    return (
        steps(path) == list(range(1, 21))
        and steps(path, EpisodeLine) == list(range(1, 21))
        and steps(path, EvalLine) == [0, 10, 20]
        and record.answered() == [0, 10, 20]
        and saved(path) == {10, 20}
        and used(path) == SLOWER
        and len(events) == 1
        and steps(kept) == steps(kept, EpisodeLine) == list(range(1, 31))
        and RunStore(kept, resume=True).answered() == [0, 10, 20, 30]
        and saved(kept) == {20, 30}
        and used(kept) == RECIPE
        and not list(path.rglob("*.tmp"))
    )


def test_the_old_record_becomes_a_branch_and_the_run_goes_on_from_the_step(run):
    event = branches.prepare_resume(run, SLOWER, 20)
    assert is_new(run.path)
    assert event == run.last(EventLine)
    assert (event.step, event.branch) == (20, "branches/1")
    assert [(c.key, c.old, c.new, c.by_hand) for c in event.changes] == [
        ("schedule.k", "3", "1", False),
        ("optimiser.lr", "0.0001", "1e-05", False),
    ]


def test_a_branch_is_a_record_like_any_other(run):
    branches.prepare_resume(run, SLOWER, 10)
    kept = load_run(str(run.path / "branches" / "1"))
    assert kept.name == "first, branch 1" and list(kept.score) == [0.0, 0.1, 0.2, 0.3]
    assert list(load_run(str(run.path)).score) == [0.0, 0.1]
    again = RunStore(run.path / "branches" / "1", resume=True)
    assert branches.prepare_resume(again, RECIPE, 20).branch == "branches/1"
    assert steps(run.path / "branches" / "1") == list(range(1, 21))


def test_branches_are_numbered_and_none_is_lost(run):
    branches.prepare_resume(run, SLOWER, 20)
    run.append(StepLine.from_dict({"step": 21}))
    branches.prepare_resume(run, RECIPE, 10)
    assert steps(run.path / "branches" / "1") == list(range(1, 31))
    assert steps(run.path / "branches" / "2") == list(range(1, 22))
    assert steps(run.path) == list(range(1, 11)) and saved(run.path) == {10}


class Killed(BaseException):
    """Nothing below it is cleaned up, as after a kill."""


#: Everything that changes something on the disk.
CALLS = [(Path, "rename"), (Path, "replace"), (Path, "mkdir"), (Path, "unlink"), (os, "fsync"),
         (os, "link"), (shutil, "copy2"), (shutil, "rmtree")]  # fmt: skip


def killed_at(monkeypatch, n, before):
    """Die before, or right after, the n-th change of the disk."""
    left = [n]

    def dies(real):
        def call(*given, **more):
            left[0] -= 1
            if left[0] < 0 and before:
                raise Killed
            found = real(*given, **more)
            if left[0] < 0:
                raise Killed
            return found

        return call

    for owner, name in CALLS:
        monkeypatch.setattr(owner, name, dies(getattr(owner, name)))


@pytest.mark.parametrize("before", [True, False])
def test_a_kill_at_any_moment_leaves_the_old_state_or_one_that_is_finished(
    run, tmp_path, monkeypatch, before
):
    seen = set()
    for n in range(1000):
        path = tmp_path / f"copy-{n}" / "first"
        shutil.copytree(run.path, path)
        store = RunStore(path, resume=True)
        with monkeypatch.context() as patched:
            killed_at(patched, n, before)
            try:
                branches.prepare_resume(store, SLOWER, 20)
                over = True
            except Killed:
                over = False
        pending = store.read_used_recipe()[1] is not None
        assert branches.recipe_of(path) == (SLOWER if pending or over else used(path))
        branches.complete_pending(store)
        assert is_old(path) or is_new(path), n
        seen.add(is_new(path))
        shutil.rmtree(path.parent)
        if over:
            break
    assert n > 20 and seen == {True, False}


def test_a_disk_that_cannot_keep_the_old_record_leaves_it_as_it_was(run, monkeypatch):
    def full(*given, **more):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copy2", full)
        with pytest.raises(InputError, match="cannot be kept: No space left"):
            branches.prepare_resume(run, SLOWER, 20)
    assert is_old(run.path)
    branches.prepare_resume(run, SLOWER, 20)
    assert is_new(run.path)


def test_without_links_a_checkpoint_is_copied(run, monkeypatch):
    def cannot(*given):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", cannot)
    branches.prepare_resume(run, SLOWER, 20)
    assert is_new(run.path)


def test_a_step_without_a_checkpoint_is_refused_with_those_there_are(run):
    with pytest.raises(
        InputError, match=r"no whole checkpoint of step 15: choose --from 10, --from"
    ):
        branches.prepare_resume(run, SLOWER, 15)
    assert is_old(run.path)


def test_a_damaged_checkpoint_is_not_gone_on_from(run):
    (run.path / "checkpoints" / "step_20" / "weights").write_bytes(b"x")
    with pytest.raises(InputError, match=r"choose --from 10, --from 30$"):
        branches.prepare_resume(run, SLOWER, 20)


def test_healthy_is_the_last_checkpoint_without_an_alarm(run):
    assert branches.prepare_resume(run, SLOWER, "healthy").step == 20
    assert is_new(run.path)


def test_a_change_without_a_step_cuts_nothing(run):
    event = branches.prepare_resume(run, SLOWER)
    assert (event.step, event.branch, len(event.changes)) == (30, None, 2)
    assert steps(run.path) == list(range(1, 31)) and used(run.path) == SLOWER
    assert not (run.path / "branches").exists()
    assert branches.prepare_resume(run, SLOWER) is None, "nothing has changed since"


def test_the_last_checkpoint_needs_no_branch(run):
    assert branches.prepare_resume(run, RECIPE, 30) is None
    assert is_old(run.path)


def test_a_recipe_edited_by_hand_is_noticed_with_what_changed(run):
    text = (run.path / "recipe.toml").read_text()
    (run.path / "recipe.toml").write_text(text.replace("lr = 0.0001", "lr = 0.0002"))
    edited = branches.recipe_of(run.path)
    assert edited.optimiser.lr == 2e-4
    event = branches.prepare_resume(run, edited.replace({"schedule.k": 1}))
    found = {c.key: (c.old, c.new, c.by_hand) for c in event.changes}
    assert found == {
        "optimiser.lr": ("0.0001", "0.0002", True),
        "schedule.k": ("3", "1", False),
    }
    assert "optimiser.lr 0.0001 → 0.0002 (recipe.toml was edited)" in event.why
    assert branches.prepare_resume(run, branches.recipe_of(run.path)) is None


def test_a_branch_keeps_the_recipe_that_was_used_not_the_edited_one(run):
    text = (run.path / "recipe.toml").read_text()
    (run.path / "recipe.toml").write_text(text.replace("lr = 0.0001", "lr = 0.0002"))
    branches.prepare_resume(run, branches.recipe_of(run.path), 20)
    assert used(run.path / "branches" / "1") == RECIPE


def test_what_must_not_change_is_refused_by_hand_too(run):
    text = (run.path / "recipe.toml").read_text()
    (run.path / "recipe.toml").write_text(text.replace("seed = 0", "seed = 3"))
    with pytest.raises(InputError, match="seed cannot change from 0 to 3"):
        branches.prepare_resume(run, branches.recipe_of(run.path))


def test_a_record_from_before_recipes_were_kept_goes_on(run):
    (run.path / "recipe.json").unlink()
    assert branches.prepare_resume(run, SLOWER) is None
    assert used(run.path) == SLOWER


def test_the_command_line_says_what_is_wrong_in_one_line(run, capsys):
    from scalerl.cli import main

    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    for words, said in (
        (["--from", "15"], "choose --from 10, --from 20, --from 30"),
        (["--from", "20", "model.path=other"], "model.path cannot change from"),
        (["scalerl"], "name nothing else but KEY=VALUE"),
        (["optimiser.lrr=1"], "did you mean optimiser.lr?"),
    ):
        assert main(["train", "--resume", str(run.path), *words]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error
    assert main(["train", "scalerl", "tiny", "--out", "x", "--from", "3"]) == 2
    assert "--resume RUN" in capsys.readouterr().err
    after = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name != "lock"}
    assert after == before
    with RunLock(run.path):
        assert main(["train", "--resume", str(run.path), "--from", "20"]) == 2
    assert is_old(run.path)
