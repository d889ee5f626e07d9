"""A start that is refused leaves no run behind."""

import json

import pytest

from scalerl.errors import InputError
from scalerl.runs.store import undo_new_run
from scalerl.training import train

#: A model that is not there: the plan of the run refuses it.
REFUSED = ["scalerl", "tiny", "model.path=/no/such/model"]


def test_a_refused_start_leaves_nothing_that_serve_could_list(tmp_path):
    from scalerl.serve.discovery import Roots, find

    out = tmp_path / "runs" / "first"
    with pytest.raises(InputError, match="no such"):
        train(REFUSED, out)
    assert not out.exists() and not out.parent.exists()
    assert find(Roots([tmp_path])) == []


def test_what_was_in_the_directory_before_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="no such"):
        train(REFUSED, tmp_path, track=["tensorboard"])
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_that_is_there_is_not_touched(tmp_path):
    (tmp_path / "steps.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    (tmp_path / "evals.jsonl").write_text("")
    with pytest.raises(InputError, match="holds a run already"):
        train(REFUSED, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evals.jsonl", "steps.jsonl"]


def test_a_run_with_a_step_is_kept(tmp_path):
    undo = undo_new_run(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "steps.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    undo()
    assert (tmp_path / "run" / "steps.jsonl").exists()
