"""Every format, from a file made by the library that writes it, gives the curve that went in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from known_curve import FIXTURES, HIGH, LOW, STEPS, assert_valid

from scalerl.errors import InputError
from scalerl.runs import Run, load_run, load_runs

#: The steps of fixtures that are a file for each step.
FEW = STEPS[::5]
# source, names, y name, x kind, compute
CASES = [
    ("long.csv", ["a", "b", "c"], "val_acc", "steps", STEPS),
    ("metric-value.csv", ["a", "b"], "eval/accuracy", "steps", STEPS),
    ("percent.tsv", ["percent"], "val_acc", "steps", STEPS),
    ("semicolon.csv", ["semicolon"], "val_acc", "steps", STEPS),
    (
        "wandb-export.csv",
        ["grpo - seed 1", "grpo - seed 2"],
        "val-core/gsm8k/acc/mean@16",
        "steps",
        STEPS,
    ),
    ("verl.jsonl", ["verl"], "data/val-core/gsm8k/acc/mean@16", "steps", STEPS),
    ("prime-rl.jsonl", ["prime-rl"], "eval/math/avg@8", "steps", STEPS),
    ("records.json", ["records"], "eval/accuracy", "steps", STEPS),
    ("history.parquet", ["history"], "validation/accuracy", "steps", STEPS),
    ("tensorboard", ["plain", "tensor"], "eval/accuracy", "steps", STEPS),
    ("wandb-offline", ["grpo-seed-1", "grpo-seed-2"], "eval/gsm8k/accuracy", "steps", STEPS),
    ("wandb-0.18", ["old-seed-1"], "eval/gsm8k/accuracy", "steps", STEPS),
    ("trackio.db", ["grpo-1", "grpo-2"], "eval/reward", "steps", STEPS),
    ("run-directories", ["seed-1", "seed-2"], "pass_rate", "gpu_hours", STEPS / 100),
    ("found/mlruns", ["grpo seed=1", "grpo seed=2"], "eval/accuracy", "steps", STEPS),
    ("found/mlflow.db", ["grpo seed=1", "grpo seed=2"], "eval/accuracy", "steps", STEPS),
    ("found/swanlab-0.10", ["grpo-1", "grpo-2"], "eval/accuracy", "steps", STEPS),
    ("found/swanlab-0.6", ["grpo-1", "grpo-2"], "eval/accuracy", "steps", STEPS),
    ("found/console/verl.log", ["verl"], "val-core/openai/gsm8k/acc/mean@1", "steps", STEPS),
    ("found/console/trl.log", ["trl"], "eval_reward", "steps", STEPS),
    ("found/console/roll.log", ["roll"], "val/all/accuracy", "steps", STEPS),
    ("found/console/prime-rl.log", ["prime-rl"], "eval/math/avg@8", "steps", STEPS),
    ("found/console/nemo-rl.log", ["nemo-rl"], "eval/accuracy", "steps", STEPS),
    ("found/console/slime.log", ["slime"], "eval/aime", "steps", STEPS),
    ("found/console/script.log", ["script"], "eval/accuracy", "steps", STEPS),
    ("found/by-step.json", ["by-step"], "accuracy", "steps", STEPS),
    ("found/typed-rows.jsonl", ["typed-rows"], "eval/accuracy", "steps", STEPS),
    ("found/lm-eval", ["grpo"], "gsm8k/exact_match,strict-match", "steps", FEW),
    ("found/lighteval", ["grpo"], "math_500/extractive_match", "steps", FEW),
    ("found/olmes", ["grpo"], "gsm8k/primary_score", "steps", FEW),
    ("found/renamed-states", ["renamed-states"], "eval_reward", "steps", STEPS),
    ("found/trainer_state_seed1.json", ["seed1"], "eval_reward", "steps", STEPS),
    ("found/tinker", ["metrics"], "test/env/all/correct", "steps", FEW),
    ("found/verl-dumps", ["verl-dumps"], "eval/score", "steps", FEW),
]


@pytest.mark.parametrize(("source", "names", "y", "kind", "compute"), CASES)
def test_a_file_of_each_format_gives_back_its_curve(
    source: str, names: list[str], y: str, kind: str, compute: np.ndarray
) -> None:
    runs = load_runs(str(FIXTURES / source))
    assert [run.name for run in runs] == names
    for run, score in zip(runs, (LOW, HIGH, HIGH), strict=False):
        assert_valid(run)
        assert (run.y_name, run.x_kind) == (y, kind)
        np.testing.assert_allclose(run.compute, compute)
        expected = score[np.isin(STEPS, compute)] if kind == "steps" else score
        np.testing.assert_allclose(run.score, expected, atol=1e-7)


def test_the_suffix_does_not_matter(tmp_path: Path) -> None:
    for source, names, *_ in CASES:
        if (FIXTURES / source).is_file():
            copy = tmp_path / "log.dat"
            shutil.copy(FIXTURES / source, copy)
            assert len(load_runs(copy)) == len(names)


def test_a_trl_run_is_read_from_its_output_directory() -> None:
    run = load_run(FIXTURES / "trl-output")
    assert (run.name, run.y_name, run.x_kind) == ("trl-output", "eval_reward", "steps")
    state = json.loads((FIXTURES / "trl-output/checkpoint-24/trainer_state.json").read_text())
    rows = [row for row in state["log_history"] if "eval_reward" in row]
    assert run.compute.tolist() == [row["step"] for row in rows]
    assert run.score.tolist() == [row["eval_reward"] for row in rows]
    older = load_run(FIXTURES / "trl-output/checkpoint-12")
    assert older.name == "trl-output"
    assert older.compute[-1] == 12


def test_a_trl_run_without_evaluations_falls_back_to_the_training_reward(tmp_path: Path) -> None:
    state = json.loads((FIXTURES / "trl-output/checkpoint-24/trainer_state.json").read_text())
    state["log_history"] = [row for row in state["log_history"] if "eval_reward" not in row]
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    run = load_run(tmp_path)
    assert run.y_name == "reward"
    assert any("training prompts" in note for note in run.notes)


def test_trl_tokens_may_be_the_compute() -> None:
    run = load_run(FIXTURES / "trl-output", x="num_tokens")
    assert run.x_kind == "tokens"
    assert any("last value before" in note for note in run.notes)


def test_event_files_read_as_tensorboard_reads_them() -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for name in ("plain", "tensor"):
        folder = FIXTURES / "tensorboard" / name
        accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
        accumulator.Reload()
        run = load_run(folder)
        if name == "plain":
            theirs = [(e.step, e.value) for e in accumulator.Scalars("eval/accuracy")]
        else:
            theirs = [
                (e.step, e.tensor_proto.float_val[0]) for e in accumulator.Tensors("eval/accuracy")
            ]
        np.testing.assert_array_equal(run.compute, [step for step, _ in theirs])
        np.testing.assert_array_equal(run.score, np.float32([value for _, value in theirs]))


def test_one_event_file_may_be_named() -> None:
    [file] = (FIXTURES / "tensorboard/plain").iterdir()
    assert load_run(file).name == "plain"


def test_wandb_files_carry_name_group_and_configuration() -> None:
    runs = load_runs(FIXTURES / "wandb-offline", group_by="recipe", x="_runtime*8")
    assert {run.group for run in runs} == {"grpo"}
    assert runs[0].x_kind == "gpu_hours"
    for source in ("wandb-offline", "wandb-0.18"):
        assert load_runs(FIXTURES / source, group_by="optimizer/lr")[0].group == "1e-06"


def test_trackio_is_opened_without_leaving_a_trace(tmp_path: Path) -> None:
    copy = tmp_path / "demo.db"
    shutil.copy(FIXTURES / "trackio.db", copy)
    copy.chmod(0o444)
    before = copy.read_bytes()
    assert len(load_runs(copy)) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["demo.db"]
    assert copy.read_bytes() == before
    runs = load_runs(copy, x="timestamp", group_by="recipe")
    assert runs[0].x_kind == "hours"
    np.testing.assert_allclose(runs[0].compute, STEPS / 100)


def test_trackio_rows_in_the_write_ahead_log_are_read(tmp_path: Path) -> None:
    import sqlite3

    copy = tmp_path / "demo.db"
    shutil.copy(FIXTURES / "trackio.db", copy)
    database = sqlite3.connect(copy)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute(
        "INSERT INTO metrics (run_id, run_name, timestamp, step, metrics) VALUES"
        " ('id-grpo-1', 'grpo-1', '2026-01-01T23:00:00+00:00', 2100, '{\"eval/reward\": 0.6}')"
    )
    database.commit()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert load_runs(copy)[0].compute[-1] == 2100
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    database.close()


def test_a_run_directory_knows_its_evaluation_size_recipe_and_every_kind_of_compute() -> None:
    folder = FIXTURES / "run-directories" / "seed-1"
    run = load_run(folder)
    assert run.group == "scalerl"
    assert run.n_eval is not None
    assert set(run.n_eval) == {512}
    for x, kind in (("flops", "flops"), ("generated_tokens", "tokens"), ("samples", "samples")):
        assert load_run(folder, x=x).x_kind == kind
    assert load_run(folder / "evals.jsonl").name == "seed-1"


def test_a_run_directory_is_read_while_it_is_written(tmp_path: Path) -> None:
    text = (FIXTURES / "run-directories/seed-1/evals.jsonl").read_text()
    (tmp_path / "evals.jsonl").write_text(text[:-40])
    run = load_run(tmp_path)
    assert len(run) == len(STEPS) - 1
    assert any("cut off" in note for note in run.notes)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pl.LazyFrame, dict])
def test_frames_load_like_files(make: type) -> None:
    [run] = load_runs(make({"step": STEPS.tolist(), "val_acc": LOW.tolist()}))
    np.testing.assert_array_equal(run.score, LOW)


def test_a_named_pandas_index_is_a_column() -> None:
    frame = pd.DataFrame({"val_acc": LOW}, index=pd.Index(STEPS, name="step"))
    assert load_run(frame).x_kind == "steps"


def test_pandas_timestamps_and_missing_values_are_read() -> None:
    moments = pd.date_range("2026-01-01", periods=4, freq="h")
    scores = pd.array([0.1, None, 0.3, 0.4], dtype="Float64")
    run = load_run(pd.DataFrame({"time": moments, "acc": scores}))
    assert run.compute.tolist() == [0, 2, 3]
    assert run.x_kind == "hours"


def test_a_run_passes_through_unchanged() -> None:
    run = load_run("example:paper-8b")
    assert load_runs(run)[0] is run


def test_the_examples_are_figure_1() -> None:
    dense, moe = load_runs("example:paper-8b", "example:paper-moe")
    assert (len(dense), len(moe), dense.r0, moe.r0) == (34, 32, 0.4017, 0.5116)
    assert dense.x_kind == "gpu_hours"
    assert dense.group == "ScaleRL"
    assert "2510.13786" in dense.notes[0]
    with pytest.raises(InputError, match="paper-8b, paper-moe"):
        load_run("example:paper-9b")


def test_patterns_and_directories_give_all_their_runs() -> None:
    assert len(load_runs(str(FIXTURES / "run-directories" / "*"))) == 2
    names = [run.name for run in load_runs(FIXTURES)]
    assert len(names) == len(set(names))
    assert len(names) > 40


def test_exactly_one_run_or_a_line_that_names_them() -> None:
    with pytest.raises(InputError, match="3 runs, choose one with --run: a, b, c"):
        load_run(FIXTURES / "long.csv")
    assert load_run(FIXTURES / "long.csv", run="b").name == "b"
    with pytest.raises(InputError, match="no run matches 'z': there is a, b, c"):
        load_runs(FIXTURES / "long.csv", run="z")


def test_importing_the_importers_loads_nothing_heavy() -> None:
    heavy = ["pyarrow", "tensorboard", "wandb", "pandas", "polars", "scipy", "matplotlib", "torch"]
    code = (
        "import sys, scalerl.runs as r; r.load_run(sys.argv[1]);"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(FIXTURES / "records.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'scalerl\[parquet\]'"):
        load_run(FIXTURES / "history.parquet")


def test_run_is_the_record() -> None:
    assert isinstance(load_run("example:paper-8b"), Run)


def test_runs_of_one_name_are_called_by_what_differs_in_their_path(tmp_path: Path) -> None:
    for place in ("first", "second"):
        shutil.copytree(FIXTURES / "run-directories/seed-1", tmp_path / place / "run")
        shutil.copy(FIXTURES / "records.json", tmp_path / place / "log.json")
    names = [run.name for run in load_runs(tmp_path)]
    assert names == ["first/log", "first/run", "second/log", "second/run"]


def test_event_files_of_a_resumed_job_are_one_run_beside_their_subdirectories(
    tmp_path: Path,
) -> None:
    from torch_free_events import write_events

    write_events(tmp_path / "job/events.out.tfevents.1.a", [(0, 0.1), (10, 0.2), (20, 0.3)])
    write_events(tmp_path / "job/events.out.tfevents.2.a", [(10, 0.25), (20, 0.35), (30, 0.4)])
    write_events(tmp_path / "job/other/events.out.tfevents.3.a", [(0, 0.5)])
    job, other = load_runs(tmp_path)
    assert (job.name, other.name) == ("job", "other")
    assert job.compute.tolist() == [0, 10, 20, 30]
    np.testing.assert_allclose(job.score, [0.1, 0.25, 0.35, 0.4])


def test_json_of_every_layout_is_told_by_its_content(tmp_path: Path) -> None:
    rows = [{"step": int(s), "acc": float(y)} for s, y in zip(STEPS, LOW, strict=True)]
    columns = {"step": [row["step"] for row in rows], "acc": [row["acc"] for row in rows]}
    state = {"epoch": 1, "log_history": rows}
    for value, indent in [(v, i) for v in (rows, columns, state) for i in (None, 2)]:
        path = tmp_path / "log.json"
        path.write_text(json.dumps(value, indent=indent))
        np.testing.assert_array_equal(load_run(path).score, LOW)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    np.testing.assert_array_equal(load_run(path).score, LOW)
    path.write_text("{" + path.read_text())
    assert len(load_run(path)) == len(STEPS) - 1


def test_utf_16_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    for encoding in ("utf-8-sig", "utf-16"):
        path = tmp_path / "log.csv"
        path.write_text("step,acc\n1,0.1\n2,0.2\n", encoding=encoding)
        assert len(load_run(path)) == 2
