"""Logs of other projects, as they are found: what was wrong without a word is right, or is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalerl.errors import InputError
from scalerl.runs import Run, load_run, load_runs

STEPS = list(range(0, 600, 100))


def scores(top: float = 0.6) -> list[float]:
    return [round(0.2 + (top - 0.2) * i / len(STEPS), 6) for i in range(len(STEPS))]


def notes(run: Run) -> str:
    return "; ".join(run.notes)


# -- runs that follow each other, or stand side by side -------------------------------------------


def sequence(names: list[str], column: str) -> dict[str, list[Any]]:
    return {
        column: [name for name in names for _ in STEPS],
        "step": STEPS * len(names),
        "accuracy": [y for i in range(len(names)) for y in scores(0.5 + i / 50)],
    }


@pytest.mark.parametrize("column", ["condition", "Variant", "exp", "flavour"])
def test_ten_runs_one_after_another_are_ten_runs(column: str) -> None:
    names = [f"lr-{i}" for i in range(10)]
    runs = load_runs(sequence(names, column))
    assert [run.name for run in runs] == names
    assert [len(run) for run in runs] == [len(STEPS)] * 10
    assert runs[3].score.tolist() == scores(0.5 + 3 / 50)
    assert f"10 runs separated by {column}" in notes(runs[0])
    assert "resumed" not in notes(runs[0])


def test_seeds_and_conditions_name_runs_together() -> None:
    table = sequence(["a", "a", "b", "b"], "condition")
    table["seed"] = [s for s in (1, 2, 1, 2) for _ in STEPS]
    table["model"] = ["tiny"] * len(table["seed"])
    assert [r.name for r in load_runs(table)] == ["a seed=1", "a seed=2", "b seed=1", "b seed=2"]


@pytest.mark.parametrize("column", ["variant", "flavour"])
def test_rows_of_several_runs_may_be_sorted_by_step(column: str) -> None:
    table = sequence(["a", "b"], column)
    order = np.argsort(np.array(table["step"]), kind="stable")
    mixed = {key: [cells[i] for i in order] for key, cells in table.items()}
    assert [(r.name, len(r)) for r in load_runs(mixed)] == [("a", 6), ("b", 6)]


def test_steps_that_start_again_and_again_are_runs_without_any_name() -> None:
    table = {"step": STEPS * 3, "val_acc": scores() * 3}
    runs = load_runs(table)
    assert [run.name for run in runs] == ["table #1", "table #2", "table #3"]
    assert "compute starts again at 0: read as 3 runs" in notes(runs[0])
    two = {"step": STEPS * 2, "val_acc": scores() * 2}
    assert len(load_runs(two)) == 2


def test_a_run_that_was_broken_off_or_resumed_stays_one() -> None:
    again = load_run({"step": [0, 100, 200, *STEPS], "val_acc": [0.1, 0.1, 0.1, *scores()]})
    assert again.score.tolist() == scores()
    assert "resumed at 0" in notes(again)
    middle = {"step": [*STEPS, *STEPS[3:]], "val_acc": [*scores(), 0.9, 0.9, 0.9]}
    for column in ({}, {"condition": ["a"] * 9}, {"host": ["x"] * 6 + ["x"] * 3}):
        run = load_run(middle | column)
        assert run.score.tolist() == [*scores()[:3], 0.9, 0.9, 0.9]
        assert "resumed at 300" in notes(run)


def test_steps_that_start_again_with_each_epoch_are_one_run() -> None:
    table = {"epoch": [0] * 6 + [1] * 6, "step": STEPS * 2, "val_acc": scores() * 2}
    run = load_run(table)
    assert run.compute.tolist() == list(range(0, 1200, 100))
    assert "step starts again with each epoch: counted on" in notes(run)


def test_another_metric_on_rows_of_its_own_is_not_another_run() -> None:
    nothing = [None] * len(STEPS)
    table = {"step": STEPS * 2, "val_acc": [*scores(), *nothing], "loss": [*nothing, *scores()]}
    assert load_run(table).score.tolist() == scores()


def test_a_column_of_checkpoints_names_no_runs() -> None:
    table = {"model": [f"ckpt-{s}" for s in STEPS], "step": STEPS, "val_acc": scores()}
    assert len(load_run(table)) == len(STEPS)


def test_runs_are_called_by_their_names_where_ids_tell_them_apart() -> None:
    table = sequence(["x1", "x2"], "run_id")
    named = table | {"run_name": ["first"] * 6 + ["second"] * 6}
    assert [run.name for run in load_runs(named)] == ["first", "second"]
    bare = {("id" if key == "run_id" else key): cells for key, cells in table.items()}
    assert [r.name for r in load_runs(bare | {"name": ["grpo"] * 12})] == ["grpo (x1)", "grpo (x2)"]
    shared = table | {"name": ["grpo"] * 12}
    assert [run.name for run in load_runs(shared)] == ["grpo (x1)", "grpo (x2)"]


# -- rows of training beside rows of evaluations --------------------------------------------------


def mixed(column: str, held_out: str, trained: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step, score in zip(STEPS, scores(), strict=True):
        for i in range(3):
            rows.append({column: trained, "step": step + i, "accuracy": 0.9, "num_rollouts": 64})
        rows.append({column: held_out, "step": step, "accuracy": score, "samples": 200})
    return rows


@pytest.mark.parametrize(
    ("column", "held_out", "trained"),
    [("type", "eval", "rollout"), ("split", "test", "train"), ("phase", "validation", "training"),
     ("event", "eval_end", "grpo_step"), ("kind", "evaluation", "rollouts")],
)  # fmt: skip
def test_evaluations_among_training_rows_are_read_and_said(
    column: str, held_out: str, trained: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in mixed(column, held_out, trained)))
    run = load_run(path)
    assert run.compute.tolist() == STEPS
    assert run.score.tolist() == scores()
    assert (run.score_kind, run.x_name) == ("validation", "step")
    assert f"rows separated by {column}: 18 {trained}, 6 {held_out}" in notes(run)
    train = load_run(path, y=next(c for c in ("train/accuracy", f"train/{trained}/accuracy")
                                  if c.startswith("train/") and trained.startswith("train")
                                  == (c == "train/accuracy")))  # fmt: skip
    assert train.score_kind == "training"
    assert set(train.score) == {0.9}


def test_a_log_of_training_rows_alone_says_so() -> None:
    rows = [row for row in mixed("type", "eval", "train") if row["type"] == "train"]
    table = {key: [row[key] for row in rows] for key in rows[0]}
    run = load_run(table)
    assert (run.y_name, run.score_kind) == ("train/accuracy", "training")
    assert "training prompts" in notes(run)


# -- what is compute, and what is not -------------------------------------------------------------


def test_neither_a_constant_nor_the_size_of_the_evaluation_is_compute() -> None:
    ys = [0.1, 0.25, 0.3]
    for column in ("num_rollouts", "samples", "n_samples", "tokens"):
        with pytest.raises(InputError, match=f"{column} does not count up"):
            load_run({column: [200, 200, 200], "val_acc": ys, "other": [3, 1, 2]})
    with pytest.raises(InputError, match="samples does not count up"):
        load_run({"samples": [500, 480, 500, 460], "val_acc": [*ys, 0.3]})
    run = load_run({"samples": [200, 200, 200], "epoch": [1, 2, 3], "val_acc": ys})
    assert run.x_name == "epoch"
    assert run.n_eval is not None
    assert run.n_eval.tolist() == [200, 200, 200]
    assert "samples is the evaluation's size: 200" in notes(run)
    assert "epoch is the compute, not samples: no running total" in notes(run)
    assert load_run({"samples": [100, 200, 300], "val_acc": ys}).x_kind == "samples"


@pytest.mark.parametrize("name", ["grpo_step", "system/step", "learner/global_step", "ppo_update"])
def test_steps_under_a_name_of_their_own_are_found(name: str) -> None:
    table = {"timing_s/step": [1.5, 1.2, 1.3], name: [1, 2, 3], "val_acc": [0.1, 0.2, 0.3]}
    run = load_run(table)
    assert (run.x_name, run.x_kind) == (name, "steps")


def test_of_several_measures_being_right_is_chosen_and_the_others_named() -> None:
    table = {"step": [1, 2], "eval/accuracy": [0.1, 0.2], "eval/format_accuracy": [0.9, 0.9],
             "eval/mean_length_correct": [10, 20]}  # fmt: skip
    run = load_run(table)
    assert run.y_name == "eval/accuracy"
    expected = "eval/accuracy is read as the score, not eval/format_accuracy"
    assert expected in notes(run)
    both = {"step": [1, 2], "eval/gsm8k/acc": [0.1, 0.2], "eval/gsm8k/pass@1": [0.1, 0.2]}
    assert load_run(both).y_name == "eval/gsm8k/acc"
    overall = {"step": [1, 2], "eval/a/acc": [0.1, 0.2], "eval/b/acc": [0.1, 0.2],
               "eval/all/acc": [0.1, 0.2]}  # fmt: skip
    assert load_run(overall).y_name == "eval/all/acc"


# -- training scores are called so ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["reward/pass@1", "train/accuracy", "env/all/correct", "reward"])
def test_training_scores_are_called_training_scores(name: str) -> None:
    run = load_run({"progress/batch": [1, 2, 3], name: [0.1, 0.2, 0.3]})
    assert run.score_kind == "training"
    assert "no validation score was found" in notes(run)
    assert "training prompts" in notes(load_run({"step": [1, 2], name: [0.1, 0.2]}, y=name))
    beside = {"step": [1, 2], name: [0.1, 0.2], "test/accuracy": [0.1, 0.2]}
    assert load_run(beside).y_name == "test/accuracy"


def test_a_bare_accuracy_beside_the_loss_is_of_training() -> None:
    table = {"step": [1, 2], "accuracy": [0.1, 0.2]}
    assert load_run(table).score_kind == "unknown"
    run = load_run(table | {"optim/lr": [1e-6, 1e-6]})
    assert run.score_kind == "training"
    assert "accuracy stands beside optim/lr" in notes(run)
    sparse = {"step": [1, 2, 3], "accuracy": [0.1, None, 0.2], "loss": [None, 1.0, None]}
    assert load_run(sparse).score_kind == "unknown"


def test_a_setting_of_the_run_does_not_make_its_score_one_of_training() -> None:
    table = {"step": [1, 2], "score": [0.1, 0.2], "lr": [1e-6, 1e-6]}
    assert load_run(table).score_kind == "unknown"


def test_the_names_of_files_say_what_their_scores_were_taken_on(tmp_path: Path) -> None:
    rows = "step,accuracy\n" + "".join(f"{s},{y}\n" for s, y in zip(STEPS, scores(), strict=True))
    for name in ("eval_log.csv", "train_log.csv"):
        (tmp_path / name).write_text(rows)
    assert load_run(tmp_path / "train_log.csv").score_kind == "training"
    run = load_run(tmp_path)
    assert (run.name, run.score_kind) == ("eval_log", "validation")
    assert "train_log.csv holds training scores: left out" in notes(run)


def test_an_evaluation_set_named_behind_the_measure_is_preferred_to_training() -> None:
    table = {"step": [1, 2], "train_acc": [0.9, 0.9], "eval_acc_math": [0.1, 0.2]}
    assert load_run(table).y_name == "eval_acc_math"
    with pytest.raises(InputError, match="several scores"):
        load_run(table | {"eval_acc_code": [0.1, 0.2]})


# -- several sources, and what is said about them -------------------------------------------------


def test_one_bad_run_does_not_take_the_good_ones_with_it(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.csv").write_text(
            "step,reward\n" + "".join(f"{s},{y}\n" for s, y in zip(STEPS, scores(), strict=True))
        )
    (tmp_path / "b.csv").write_text("step,reward\n1,-3\n2,7\n")
    (tmp_path / "d.csv").write_text("step,loss\n1,3\n")
    runs = load_runs(tmp_path)
    assert [run.name for run in runs] == ["a", "c"]
    assert "left out: b: reward goes down to -3" in notes(runs[0])
    assert "left out: d: loss is a loss" in notes(runs[0])
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    assert [run.name for run in load_runs(*files)] == ["a", "c"]
    with pytest.raises(InputError, match="reward goes down to -3"):
        load_runs(tmp_path / "b.csv", tmp_path / "d.csv")
    with pytest.raises(InputError, match="no such file"):
        load_runs(tmp_path / "a.csv", tmp_path / "absent.csv")


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scalerl", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize("command", ["fit", "forecast"])
def test_the_command_line_tells_what_the_reader_did(command: str, tmp_path: Path) -> None:
    table = sequence(["a", "b"], "condition")
    path = tmp_path / "log.csv"
    rows = zip(table["condition"], table["step"], table["accuracy"], strict=True)
    path.write_text("condition,step,train_acc\n" + "".join(f"{c},{s},{y}\n" for c, s, y in rows))
    done = cli(command, str(path))
    assert done.returncode == 0
    assert "note: 2 runs separated by condition" in done.stderr
    assert done.stderr.count("training prompts") == 1
    found = json.loads(cli(command, str(path), "--json").stdout)
    assert [each["score_kind"] for each in found] == ["training", "training"]
    assert all(any("condition" in note for note in each["notes"]) for each in found)
