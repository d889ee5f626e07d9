"""Formats that nobody meant as a log: consoles, a file for each step, results of harnesses."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from known_curve import FIXTURES, LOW, STEPS

from scalerl.errors import InputError
from scalerl.runs import load_run, load_runs
from scalerl.runs.importers.harness_results import step_in_name

FOUND = FIXTURES / "found"


# -- consoles -------------------------------------------------------------------------------------


def test_nothing_that_was_printed_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    bad = "{'step': 1, 'acc': __import__('os').system('touch " + str(tmp_path / "hit") + "')}\n"
    good = "".join(f"{{'step': {s}, 'eval_acc': {s / 10}}}\n" for s in range(1, 6))
    path.write_text(bad + good + "{'step': 9, 'eval_acc': [1] * 10**12}\n" + "{" * 5000 + "'}\n")
    assert load_run(path).compute.tolist() == [1, 2, 3, 4, 5]
    assert not (tmp_path / "hit").exists()


def test_numbers_that_libraries_wrap_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(
        "start\n"
        "{'step': 1, 'eval_acc': np.float64(0.1), 'loss': nan}\n"
        "{'step': 2, 'eval_acc': tensor(0.2, device='cuda:0'), 'loss': inf}\n"
        "x (main pid=7) step:3 - loss:nan - eval_acc:np.float32(0.3)\n"
        "[rank0] step:4 - eval_acc:0.4 - note:hello - a:b:0.5\n"
    )
    run = load_run(path)
    assert run.score.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert load_run(path, y="a:b", x="step").score.tolist() == [0.5]


def test_steps_are_those_of_the_training_bar_and_not_of_an_evaluations(tmp_path: Path) -> None:
    run = load_run(FOUND / "console/trl.log")
    assert run.x_name == "step"
    assert "steps are those of the progress bar" in run.notes
    text = (FOUND / "console/trl.log").read_text()
    path = tmp_path / "quiet.log"
    path.write_text("\n".join(line for line in text.splitlines() if "it]" not in line))
    assert load_run(path).x_name == "epoch"


def test_a_console_without_metrics_is_refused_and_found_in_no_directory(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\nworld: {'not': 'numbers'}\n" * 50)
    with pytest.raises(InputError, match="no log in the directory"):
        load_run(tmp_path)
    with pytest.raises(InputError):
        load_run(tmp_path / "notes.txt")
    shutil.copy(FOUND / "console/verl.log", tmp_path / "slurm-1.out")
    assert load_run(tmp_path).name == "slurm-1"


def test_dicts_printed_after_a_prefix_with_commas_are_no_csv(tmp_path: Path) -> None:
    path = tmp_path / "ray.log"
    rows = [str({"step": s, "eval/acc": s / 10, "note": None}) for s in range(1, 9)]
    path.write_text("".join(f"(main pid=3, ip=10.0.0.1) INFO {row}\n" for row in rows))
    assert len(load_run(path)) == 8


def test_a_csv_with_a_column_of_dicts_stays_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "log.dat"
    path.write_text(
        "step,acc,config\n" + "".join(f"{s},0.{s},\"{{'a': 1, 'b': 2}}\"\n" for s in range(5))
    )
    assert load_run(path).y_name == "acc"


# -- a file for each step -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step"),
    [("checkpoint-200", 200), ("global_step_40", 40), ("step1000-tokens4B", 1000), ("0012", 12),
     ("iteration_000100", 100), ("out__run__checkpoint-7", 7), ("seed-3", None),
     ("Qwen2.5-7B", None), ("step_10k", None), ("results_3", None)],
)  # fmt: skip
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert step_in_name(name) == step


def write_steps(folder: Path, score: float, key: str = "reward") -> None:
    folder.mkdir(parents=True)
    for s in (1, 2, 10, 100):
        (folder / f"step_{s}.json").write_text(json.dumps([{key: score}, {key: score + s / 1000}]))


def test_files_of_steps_are_points_and_evaluations_are_preferred(tmp_path: Path) -> None:
    write_steps(tmp_path / "run/rollouts", 0.8)
    run = load_run(tmp_path)
    assert (run.name, run.y_name, run.score_kind) == ("run", "train/reward", "training")
    assert run.compute.tolist() == [1, 2, 10, 100]
    write_steps(tmp_path / "run/eval", 0.3, "correct")
    run = load_run(tmp_path)
    assert (run.name, run.y_name, run.score_kind) == ("run", "eval/correct", "validation")
    assert run.score.tolist() == pytest.approx([0.3005, 0.301, 0.305, 0.35])
    assert any("rollouts/step_*.json holds training scores" in note for note in run.notes)
    shutil.rmtree(tmp_path / "run/eval")
    rows = [{"step": s, "eval_accuracy": s / 200} for s in (1, 10, 100)]
    (tmp_path / "run/eval_results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    run = load_run(tmp_path)
    assert (run.y_name, len(run)) == ("eval_accuracy", 3)
    shutil.move(tmp_path / "run/eval_results.jsonl", tmp_path / "run/evals.jsonl")
    assert load_run(tmp_path).name == "run"


def test_numbered_runs_are_not_steps_of_one(tmp_path: Path) -> None:
    for n in (1, 2, 3):
        rows = [{"step": s, "val_acc": s / 10} for s in range(5)]
        (tmp_path / f"{n}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / f"seed_{n}.json").write_text(json.dumps(rows))
    assert [len(run) for run in load_runs(tmp_path)] == [5] * 6


def test_checkpoints_are_not_read_as_logs(tmp_path: Path) -> None:
    for s in (10, 20, 30):
        place = tmp_path / f"global_step_{s}/actor/huggingface"
        place.mkdir(parents=True)
        (place / "config.json").write_text('{"hidden_size": 64, "accuracy": 0.5}')
        (place / "tokenizer.json").write_text('{"version": 1}')
    with pytest.raises(InputError, match="no log in the directory"):
        load_run(tmp_path)


# -- harnesses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("harness", ["lm-eval", "lighteval", "olmes"])
def test_results_of_a_harness_know_their_size_and_are_validation(harness: str) -> None:
    run = load_run(FOUND / harness)
    assert run.score_kind == "validation"
    assert run.n_eval is not None
    assert set(run.n_eval) == {1319}


def test_the_checkpoint_may_be_named_in_the_path_by_a_pattern_or_inside(tmp_path: Path) -> None:
    assert len(load_run(str(FOUND / "lm-eval/out__grpo__checkpoint-*"))) == 5
    for file in (FOUND / "lm-eval").glob("*/results_*.json"):
        shutil.copy(file, tmp_path / file.name)
    assert len(load_run(tmp_path)) == 5


def test_several_tasks_of_a_harness_are_chosen_between_by_their_owner(tmp_path: Path) -> None:
    for s in (100, 200):
        (tmp_path / f"step_{s}").mkdir()
        tasks = {t: {"acc,none": s / 1000, "alias": t} for t in ("arc", "piqa")}
        found = {"results": tasks, "versions": {}}
        (tmp_path / f"step_{s}/results.json").write_text(json.dumps(found))
    with pytest.raises(InputError, match="several scores, choose one with --y: arc/acc, piqa/acc"):
        load_run(tmp_path)
    assert load_run(tmp_path, y="piqa/acc").score.tolist() == [0.1, 0.2]
    assert len(load_runs(tmp_path, y="*/acc")) == 2


# -- trackers -------------------------------------------------------------------------------------


def test_deleted_runs_of_mlflow_are_left_out(tmp_path: Path) -> None:
    copy = tmp_path / "store.db"
    shutil.copy(FOUND / "mlflow.db", copy)
    with sqlite3.connect(copy) as database:
        first = "(SELECT run_uuid FROM params WHERE value = '1')"
        database.execute(f"UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = {first}")
        database.commit()
    assert load_run(copy, group_by="seed").group == "2"
    shutil.copytree(FOUND / "mlruns", tmp_path / "mlruns")
    for meta in (tmp_path / "mlruns").glob("1/*/meta.yaml"):
        if (meta.parent / "params/seed").read_text() == "1":
            meta.write_text(meta.read_text().replace("stage: active", "stage: deleted"))
    assert load_run(tmp_path / "mlruns", group_by="seed").group == "2"


def test_swanlab_runs_carry_their_configuration() -> None:
    for version in ("swanlab-0.6", "swanlab-0.10"):
        runs = load_runs(FOUND / version, group_by="seed")
        assert [(run.name, run.group) for run in runs] == [("grpo-1", "1"), ("grpo-2", "2")]


def test_aim_is_refused_with_what_to_do_and_its_export_is_read(tmp_path: Path) -> None:
    (tmp_path / ".aim").mkdir()
    (tmp_path / ".aim/VERSION").write_text("2.0")
    for place in (tmp_path, tmp_path / ".aim"):
        with pytest.raises(InputError, match="export them as CSV"):
            load_run(place)
    runs = load_runs(FOUND / "aim.csv")
    assert all(run.name.startswith("grpo (") for run in runs)
    assert {run.y_name for run in runs} == {"val/accuracy"}
    low = min(runs, key=lambda run: run.score.max())
    np.testing.assert_allclose(low.score, LOW)


# -- JSON -----------------------------------------------------------------------------------------


def test_runs_may_be_the_keys_of_a_json_object(tmp_path: Path) -> None:
    steps = {f"step_{int(s)}": {"eval": {"acc": float(y)}} for s, y in zip(STEPS, LOW, strict=True)}
    rows = [{"step": int(s), "eval/acc": float(y)} for s, y in zip(STEPS, LOW, strict=True)]
    path = tmp_path / "log.json"
    for value in ({"a": steps, "b": rows}, {"a": rows, "b": rows}):
        path.write_text(json.dumps(value, indent=1))
        assert [run.name for run in load_runs(path)] == ["a", "b"]
    path.write_text(json.dumps({"config": {"lr": 1}, "history": rows}, indent=1))
    run = load_run(path)
    assert run.name == "log"
    np.testing.assert_array_equal(run.score, LOW)
    path.write_text(json.dumps(steps))
    assert len(load_run(path)) == len(STEPS)
    path.write_text(json.dumps({"train": [{"step": 1, "reward": 0.9}], "eval": rows}))
    run = load_run(path)
    assert (run.name, run.score_kind, len(run)) == ("log", "validation", len(STEPS))
