"""Files in the layouts in which scripts and trainers of other projects leave them.

Each was read wrongly once, and some were read wrongly while the output said the opposite.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalerl import fit
from scalerl.errors import InputError
from scalerl.runs import Run, load_run, load_runs

EVERY = range(1, 301)
SOME = range(25, 301, 25)


def curve(step: int) -> float:
    return round(0.2 + 0.5 / (1 + (150 / step) ** 1.5), 4)


def lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def notes(run: Run) -> str:
    return "; ".join(run.notes)


def is_curve(run: Run, steps: Iterable[int]) -> bool:
    at = list(steps)
    return run.compute.tolist() == at and np.allclose(run.score, [curve(s) for s in at])


# -- evaluations beside training ------------------------------------------------------------------


def countdown(step: int) -> dict[str, Any]:
    """A line of a GRPO script on the countdown task: training on every line, now and then an
    evaluation."""
    row = {
        "step": step, "reward_mean": 0.1, "answer_rate": 0.9, "format_rate": 0.97, "lr": 1e-6,
        "completion_len": 200.0 + step, "degenerate_frac": 0.2, "step_time": 3.2,
    }  # fmt: skip
    held_out = {"eval_answer_rate": curve(step), "eval_format_rate": 0.99}
    return row | (held_out if step % 25 == 0 else {})


def test_an_answer_rate_every_25_steps_is_the_validation_score(tmp_path: Path) -> None:
    run = load_run(lines(tmp_path / "metrics.jsonl", map(countdown, EVERY)))
    assert (run.y_name, run.score_kind) == ("eval_answer_rate", "validation")
    assert is_curve(run, SOME)
    asked = load_run(tmp_path / "metrics.jsonl", y="answer_rate")
    assert asked.score_kind == "training"


def test_the_only_held_out_metric_is_read_though_its_name_is_unknown(tmp_path: Path) -> None:
    rows = [{"step": s, "rollout/raw_reward": 0.9, "eval/aime": curve(s)} for s in SOME]
    run = load_run(lines(tmp_path / "log.jsonl", rows))
    assert (run.y_name, run.score_kind) == ("eval/aime", "validation")
    assert "--y rollout/raw_reward reads the training scores" in notes(run)
    both = [row | {"eval/amc": 0.5 * row["eval/aime"]} for row in rows]
    run = load_run(lines(tmp_path / "two.jsonl", both))
    assert run.score_kind == "training"
    assert "eval/aime, eval/amc may be validation scores: choose one with --y" in notes(run)
    assert "no validation score was found" not in notes(run)


@pytest.mark.parametrize(
    "name",
    ["eval_steps_per_second", "eval/kl", "eval/epoch", "eval_runtime", "eval/mean_entropy",
     "eval/clip_ratio", "eval/format_reward_std"],
)  # fmt: skip
def test_other_held_out_metrics_are_no_scores(name: str) -> None:
    table = {"step": list(SOME), "train/reward": [0.5] * 12, name: [0.3 + s / 1e3 for s in SOME]}
    run = load_run(table)
    assert (run.y_name, run.score_kind) == ("train/reward", "training")
    assert "no validation score was found" in notes(run)


def test_few_validations_say_how_many_training_scores_there_are(tmp_path: Path) -> None:
    rows = [{"step": s, "train/reward": curve(s), "loss": 0.1} for s in EVERY]
    rows[-1]["test/accuracy"] = 0.7
    run = load_run(lines(tmp_path / "log.jsonl", rows))
    assert len(run) == 1
    assert "train/reward has 300 training scores: --y train/reward reads them" in notes(run)
    with pytest.raises(InputError, match=r"has 1 points.*300 training scores: --y train/reward"):
        fit(run)
    assert len(load_run(tmp_path / "log.jsonl", y="train/reward")) == 300
    enough = [row | {"test/accuracy": 0.5} for row in rows]
    assert "--y" not in notes(load_run(lines(tmp_path / "enough.jsonl", enough)))


def test_training_scores_in_another_file_of_the_run_are_named(tmp_path: Path) -> None:
    lines(tmp_path / "train_log.jsonl", ({"step": s, "reward": 0.5} for s in EVERY))
    lines(tmp_path / "eval_log.jsonl", [{"step": 300, "accuracy": 0.7}])
    with pytest.raises(InputError, match="300 training scores: --y reward"):
        fit(load_run(tmp_path))


# -- what is measured on training prompts ---------------------------------------------------------


def test_an_accuracy_at_every_step_beside_the_reward_is_of_training(tmp_path: Path) -> None:
    rows = [{"step": s, "accuracy": curve(s), "reward": 0.5, "response_length": s} for s in EVERY]
    path = lines(tmp_path / "metrics.jsonl", rows)
    run = load_run(path)
    assert run.score_kind == "training"
    assert "accuracy is logged at every step beside reward" in notes(run)
    assert load_run(lines(tmp_path / "evals.csv.jsonl", rows[24::25])).score_kind == "unknown"
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", "fit", str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "score: accuracy (training)" in done.stdout


@pytest.mark.parametrize("command", ["fit", "forecast", "compare", "backtest"])
def test_json_says_that_a_score_is_of_training(command: str, tmp_path: Path) -> None:
    rows = [{"step": s, "accuracy": curve(s), "reward": 0.5} for s in EVERY]
    paths = [lines(tmp_path / f"metrics-{i}.jsonl", rows) for i in range(2)]
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", command, *map(str, paths), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.count('"score_kind": "training"') == 2, done.stderr


# -- several rows at one step ---------------------------------------------------------------------


@pytest.mark.parametrize("column", ["group", "group_idx", "prompt_id", "sample", "rank"])
def test_groups_of_one_step_are_their_mean(column: str, tmp_path: Path) -> None:
    spread = (-0.1, 0.02, 0.05, 0.03)
    rows = [
        {"step": s, column: i, "reward": curve(s) + d, "n_samples": 8}
        for s in EVERY
        for i, d in enumerate(spread)
    ]
    run = load_run(lines(tmp_path / "rollouts.jsonl", rows))
    assert is_curve(run, EVERY)
    assert "1200 rows at 300 amounts of compute: their means" in notes(run)


def test_a_step_that_a_resume_logs_again_keeps_the_later_value() -> None:
    steps = [*range(10, 151, 10), *range(150, 301, 10)]
    scores = [0.1] * 15 + [0.2] * 16
    run = load_run({"step": steps, "val_acc": scores})
    assert run.score[run.compute == 150].tolist() == [0.2]
    assert "1 points at a compute logged again later: the last one stays" in notes(run)


def test_groups_of_a_resumed_run_are_means_of_the_later_attempt() -> None:
    steps = [s for s in (*range(1, 21), *range(11, 31)) for _ in range(2)]
    scores = [y for s in range(1, 21) for y in (0.1, 0.3)] + [
        y for s in range(11, 31) for y in (0.5, 0.7)
    ]
    run = load_run({"step": steps, "val_acc": scores})
    assert run.compute.tolist() == list(range(1, 31))
    np.testing.assert_allclose(run.score, [0.2] * 10 + [0.6] * 20)
    assert "resumed at 11: 20 earlier points left out" in notes(run)


def test_a_mean_weighs_rows_by_their_samples() -> None:
    table = {"step": [1, 1, 2, 2], "val_acc": [0.2, 0.8, 0.4, 0.4], "n_eval": [30, 10, 20, 20]}
    run = load_run(table)
    np.testing.assert_allclose(run.score, [0.35, 0.4])
    assert run.n_eval is not None
    assert run.n_eval.tolist() == [40, 40]


@pytest.mark.parametrize("form", ["true", "text", "number"])
def test_right_and_wrong_on_each_row_are_an_accuracy(form: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    right = [(s, rng.random() < curve(s)) for s in SOME for _ in range(40)]
    cells = {"true": right, "text": [(s, str(r)) for s, r in right],
             "number": [(s, int(r)) for s, r in right]}  # fmt: skip
    rows = [
        {"step": s, "question": f"{i % 40} + 1?", "solved": cell, "reward": -1.0}
        for i, (s, cell) in enumerate(cells[form])
    ]
    run = load_run(lines(tmp_path / "answers.jsonl", rows))
    assert run.y_name == "solved"
    expected = [np.mean([r for at, r in right if at == s]) for s in SOME]
    np.testing.assert_allclose(run.score, expected)
    assert run.n_eval is not None
    assert set(run.n_eval) == {40.0}


def test_episodes_that_are_right_or_wrong_are_training(tmp_path: Path) -> None:
    rows = [
        {"episode": i, "reward": -0.5, "solved": i % 3 == 0, "turns": 4, "step": 1 + i // 8}
        for i in range(400)
    ]
    run = load_run(lines(tmp_path / "episodes.jsonl", rows))
    assert (run.y_name, run.x_name, run.score_kind) == ("solved", "step", "training")
    assert run.n_eval is None
    assert len(run) == 50


def test_named_groups_of_an_experiment_are_still_runs() -> None:
    steps = list(SOME)
    table = {
        "group": [g for g in (1, 2) for _ in steps],
        "step": steps * 2,
        "val_acc": [curve(s) / g for g in (1, 2) for s in steps],
    }
    assert [run.name for run in load_runs(table)] == ["group=1", "group=2"]


# -- compute --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", ["same", "rising", "wandering"])
@pytest.mark.parametrize("steps", ["epoch", "checkpoint"])
def test_the_size_of_an_evaluation_is_not_compute(steps: str, sizes: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = []
    for i, s in enumerate(SOME):
        more = {"same": 0, "rising": i, "wandering": rng.randrange(-9, 9)}[sizes]
        at = i + 1 if steps == "epoch" else f"outputs/checkpoint-{s}"
        rows.append({steps: at, "accuracy": curve(s), "n_samples": 500 + more})
    run = load_run(lines(tmp_path / "evals.jsonl", rows))
    assert run.x_name == steps
    assert run.compute.tolist() == ([*range(1, 13)] if steps == "epoch" else list(SOME))


def test_samples_that_add_up_are_compute(tmp_path: Path) -> None:
    rows = [{"n_samples": 512 * s, "accuracy": curve(s)} for s in SOME]
    run = load_run(lines(tmp_path / "evals.jsonl", rows))
    assert (run.x_name, run.x_kind) == ("n_samples", "samples")


def test_a_step_out_of_all_steps_is_a_step(tmp_path: Path) -> None:
    """ms-swift's logging.jsonl."""
    rows = [
        {"reward": curve(s), "loss": 0.1, "epoch": s / 300, "global_step/max_steps": f"{s}/300",
         "percentage": f"{s / 3:.1f}%", "elapsed_time": "1h 3m 2s"}
        for s in EVERY
    ]  # fmt: skip
    run = load_run(lines(tmp_path / "logging.jsonl", rows))
    assert (run.x_name, run.x_kind) == ("global_step", "steps")
    assert is_curve(run, EVERY)


def test_steps_of_training_rows_are_preferred_to_calls_of_log(tmp_path: Path) -> None:
    """A history of W&B as its API returns it: evaluations on rows of their own."""
    rows: list[dict[str, Any]] = []
    for s in EVERY:
        rows.append({"_step": len(rows), "train/global_step": s, "train/reward": 0.5})
        if s % 25 == 0:
            rows.append({"_step": len(rows), "val/acc": curve(s)})
    run = load_run(lines(tmp_path / "history.jsonl", rows))
    assert run.x_name == "train/global_step"
    assert is_curve(run, SOME)


# -- layouts --------------------------------------------------------------------------------------


def test_what_was_printed_is_called_so_and_never_json(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(
        f"[eval] step {s}: {curve(s)} answer, 0.99 format\n" for s in SOME
    ))  # fmt: skip
    with pytest.raises(InputError, match="what a job printed") as caught:
        load_run(path)
    assert "JSON" not in str(caught.value)
    assert "step,val_acc" in str(caught.value)


def test_a_progress_bar_with_metrics_is_read(tmp_path: Path) -> None:
    """OpenRLHF."""
    path = tmp_path / "train.log"
    path.write_text("".join(
        f"(PPOTrainer pid=1) \x1b[36mEpisode [1/1]: 1%|#| {s}/300 [10:00<1:00, 30s/it, "
        f"policy_loss=0.01, reward={curve(s)}, response_length=300]\x1b[0m\n" for s in EVERY
    ))  # fmt: skip
    run = load_run(path)
    assert is_curve(run, EVERY)
    assert run.score_kind == "training"


def test_speeds_on_a_progress_bar_are_no_metrics(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("".join(
        f"Processed prompts: 100%|#| {s}/300 [00:01<00:00, 5.2it/s, est. speed input: "
        f"{s}.2 toks/s, output: 0.{s} toks/s]\n" for s in EVERY
    ))  # fmt: skip
    with pytest.raises(InputError, match="what a job printed"):
        load_run(path)


def test_lists_of_two_lengths_have_steps_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(json.dumps({
        "train_steps": list(EVERY), "train_reward": [0.5] * 300,
        "eval_steps": list(SOME), "eval_acc": [curve(s) for s in SOME],
    }))  # fmt: skip
    run = load_run(path)
    assert (run.y_name, run.score_kind) == ("eval_acc", "validation")
    assert is_curve(run, SOME)


def test_downloads_of_tensorboard_are_named_by_their_tag(tmp_path: Path) -> None:
    for tag in ("eval_accuracy", "train_reward"):
        (tmp_path / f"run-grpo_1-tag-{tag}.csv").write_text("Wall time,Step,Value\n" + "".join(
            f"{1.7e9 + s},{s},{curve(s)}\n" for s in SOME
        ))  # fmt: skip
    run = load_run(tmp_path / "run-grpo_1-tag-train_reward.csv")
    assert (run.name, run.y_name, run.score_kind) == ("grpo_1", "train_reward", "training")
    run = load_run(tmp_path)
    assert (run.name, run.y_name, run.score_kind) == ("grpo_1", "eval_accuracy", "validation")
    path = tmp_path / "tag.json"
    path.write_text(json.dumps([[1.7e9 + s, s, curve(s)] for s in SOME]))
    assert is_curve(load_run(path), SOME)


def test_completions_that_trl_saves_are_training_scores(tmp_path: Path) -> None:
    folder = tmp_path / "completions"
    folder.mkdir()
    for s in SOME:
        pd.DataFrame({
            "step": [str(s)] * 4, "prompt": ["2+2="] * 4, "completion": ["4"] * 4,
            "accuracy_reward": [curve(s)] * 4, "format_reward": [1.0] * 4, "advantage": [0.1] * 4,
        }).to_parquet(folder / f"completions_{s:05d}.parquet")  # fmt: skip
    run = load_run(tmp_path)
    assert (run.y_name, run.score_kind) == ("train/accuracy_reward", "training")
    assert is_curve(run, SOME)


def test_the_accuracy_of_easyr1_is_preferred_to_its_total_reward(tmp_path: Path) -> None:
    rows = [
        {"step": s, "critic": {"score": {"mean": 0.5}},
         "val": {"accuracy_reward": curve(s), "format_reward": 0.9, "reward_score": 0.9}}
        for s in SOME
    ]  # fmt: skip
    run = load_run(lines(tmp_path / "experiment_log.jsonl", rows))
    assert run.y_name == "val/accuracy_reward"
    assert is_curve(run, SOME)
