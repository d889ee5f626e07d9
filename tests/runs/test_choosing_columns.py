"""Which rows are a run, which column is the score, which the compute, and what is said if not."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_curve import FIXTURES, assert_valid

from scalerl.errors import InputError
from scalerl.runs import load_run, load_runs
from scalerl.runs.metrics import compute_columns, compute_kind, score_columns

STEPS = [1, 2, 3]
SCORES = [0.1, 0.2, 0.3]


def one(**options: Any) -> dict[str, Any]:
    return {"step": STEPS, "val_acc": SCORES} | options


@pytest.mark.parametrize(
    ("columns", "score"),
    [
        (["reward", "eval_reward", "num_tokens"], "eval_reward"),
        (["reward", "rewards/f/mean", "reward_std"], "reward"),
        (["train/reward", "eval/reward", "eval/rewards/f/mean"], "eval/reward"),
        (["critic/score/mean", "critic/score/max", "actor/loss"], "critic/score/mean"),
        (["critic/score/mean", "val-core/aime/reward/mean@32"], "val-core/aime/reward/mean@32"),
        (["critic/score/mean", "val/test_score/openai/gsm8k"], "val/test_score/openai/gsm8k"),
        (["reward/mean", "eval/aime/avg@16", "eval/aime/pass@16"], "eval/aime/avg@16"),
        (["eval/aime/all/avg@8", "eval/aime/effective/avg@8"], "eval/aime/effective/avg@8"),
        (["reward/avg_raw_reward", "eval/all/avg_score", "eval/a/avg_score"], "eval/all/avg_score"),
        (["train/reward", "validation/accuracy", "validation/loss"], "validation/accuracy"),
        (["objective/verifiable_correct_rate", "scores"], "objective/verifiable_correct_rate"),
        (["objective/verifiable_correct_rate", "eval/scores"], "eval/scores"),
        (["env/all/reward/total", "test/env/all/correct"], "test/env/all/correct"),
        (["env/all/reward/total", "optim/kl"], "env/all/reward/total"),
        (["train/reward", "eval/gsm8k_pass1", "eval/gsm8k_pass4"], "eval/gsm8k_pass1"),
        (["loss", "math500_accuracy"], "math500_accuracy"),
        (["train_acc", "val_acc"], "val_acc"),
        (["train_acc", "loss"], "train_acc"),
    ],
)
def test_the_score_each_framework_logs_is_found(columns: list[str], score: str) -> None:
    assert score_columns(columns)[0] == [score]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("step", "steps"), ("global_step", "steps"), ("_step", "steps"), ("Step", "steps"),
        ("train/global_step", "steps"), ("trainer/global_step", "steps"), ("iteration", "steps"),
        ("num_tokens", "tokens"), ("tokens", "tokens"), ("progress/total_tokens", "tokens"),
        ("samples", "samples"), ("episode", "samples"), ("episodes", "samples"),
        ("flops", "flops"), ("total_flos", "flops"), ("gpu_hours", "gpu_hours"),
        ("compute/device_hours", "gpu_hours"), ("hours", "hours"), ("_runtime", "hours"),
        ("_timestamp", "hours"), ("Relative Time (Process)", "hours"), ("epoch", "unknown"),
        ("lr", "unknown"),
    ],
)  # fmt: skip
def test_the_kind_of_compute_is_told_by_its_name(name: str, kind: str) -> None:
    assert compute_kind(name)[0] == kind


def test_totals_are_preferred_and_per_step_counts_left_alone() -> None:
    names = ["progress/tokens", "progress/total_tokens", "gpu_hours", "_step", "train/global_step"]
    expected = ["gpu_hours", "train/global_step", "_step", "progress/total_tokens"]
    assert compute_columns(names) == expected


def test_hours_times_devices_are_gpu_hours() -> None:
    run = load_run({"hours": STEPS, "acc": SCORES}, x="hours*8")
    assert run.compute.tolist() == [8, 16, 24]
    assert (run.x_kind, run.x_name) == ("gpu_hours", "hours*8")
    assert load_run(one(), x="step*512").x_kind == "unknown"


def test_seconds_and_moments_become_hours() -> None:
    assert load_run({"_runtime": [0, 3600, 7200], "acc": SCORES}).compute.tolist() == [0, 1, 2]
    moments = [1.7e9, 1.7e9 + 1800, 1.7e9 + 3600]
    for factor in (1, 1000):
        times = [m * factor for m in moments]
        assert load_run({"_timestamp": times, "acc": SCORES}).compute.tolist() == [0, 0.5, 1]
    texts = ["2026-01-01 10:00:00", "2026-01-01T11:00:00", "2026-01-01T12:00:00Z"]
    assert load_run({"timestamp": texts, "acc": SCORES}).compute.tolist() == [0, 1, 2]


def test_a_wrong_name_suggests_the_nearest() -> None:
    table = one(loss=[3, 2, 1], lr=[1, 1, 1])
    with pytest.raises(InputError, match=r"no column 'val_ac': use --y with val_acc"):
        load_run(table, y="val_ac")
    with pytest.raises(InputError, match=r"no column 'steps': use --x with step"):
        load_run(table, x="steps")
    with pytest.raises(InputError, match="lrr"):
        load_run(table, group_by="lrr")


def test_an_unknown_table_lists_what_it_has() -> None:
    table = {"foo": STEPS, "bar": SCORES, "baz": SCORES}
    with pytest.raises(InputError, match="choose one with --y: foo, bar, baz"):
        load_run(table)
    with pytest.raises(InputError, match="choose one with --x: foo, baz"):
        load_run(table, y="bar")
    assert load_run(table, x="foo", y="bar").x_kind == "unknown"
    many = {f"c{i}": SCORES for i in range(30)}
    with pytest.raises(InputError, match=r"c7 and 22 more$"):
        load_run(many)


def test_several_validation_scores_are_not_guessed_between() -> None:
    table = {"step": STEPS, "val-core/a/acc/mean@4": SCORES, "val-core/b/acc/mean@4": SCORES}
    with pytest.raises(InputError, match="several scores"):
        load_run(table)
    assert load_run(table, y="val-core/b/acc/mean@4").y_name.startswith("val-core/b")


def test_a_pattern_of_scores_makes_one_run_of_each_column() -> None:
    wide = {"step": STEPS, "seed 1": SCORES, "seed 2": SCORES}
    assert [run.name for run in load_runs(wide, y="seed*")] == ["seed 1", "seed 2"]
    mixed = {"step": STEPS, "loss": STEPS, "val-core/a/mean@4": SCORES, "val-core/b/mean@4": SCORES}
    runs = load_runs(mixed, y="val-core/*")
    assert [run.name for run in runs] == ["table val-core/a/mean@4", "table val-core/b/mean@4"]
    assert load_run(mixed, y="*a/mean*").name == "table"
    with pytest.raises(InputError, match="no column 'nothing"):
        load_run(mixed, y="nothing*")


def test_a_wide_table_of_nothing_but_runs_is_read_as_such() -> None:
    wide = {"step": STEPS, "seed 1": [30, 40, 50], "seed 2": [0.1, 0.2, 0.3]}
    one_run, low = load_runs(wide)
    assert (one_run.name, low.name) == ("seed 1", "seed 2")
    assert low.score.tolist() == pytest.approx([0.001, 0.002, 0.003])
    assert "each column beside step is read as a run" in low.notes
    with pytest.raises(InputError, match="choose one with --y"):
        load_runs(wide | {"loss": STEPS})


def test_a_column_may_be_named_by_its_last_part() -> None:
    table = {"train/step": STEPS, "eval/acc": SCORES, "train/acc": SCORES, "eval/f1": SCORES}
    assert load_run(table, y="f1").y_name == "eval/f1"
    with pytest.raises(InputError, match="could be eval/acc, train/acc"):
        load_run(table, y="acc")


def test_x_kind_n_eval_and_group_columns_are_used() -> None:
    table = {
        "run_id": ["a"] * 3 + ["b"] * 3,
        "recipe": ["r1"] * 3 + ["r2"] * 3,
        "metric": ["val"] * 6,
        "x_kind": ["flops"] * 6,
        "x": STEPS * 2,
        "y": SCORES * 2,
        "n_eval": [64] * 6,
    }
    runs = load_runs(table, group_by="recipe")
    assert [(r.name, r.group, r.x_kind, r.y_name) for r in runs] == [
        ("a", "r1", "flops", "val"),
        ("b", "r2", "flops", "val"),
    ]
    assert runs[0].n_eval is not None
    assert runs[0].n_eval.tolist() == [64, 64, 64]
    with pytest.raises(InputError, match="changes within the run"):
        load_runs(table, group_by="x")


def test_one_run_against_two_kinds_of_compute_is_two_curves() -> None:
    table = {
        "run": ["a"] * 6, "x_kind": ["steps"] * 3 + ["tokens"] * 3, "x": STEPS * 2, "y": SCORES * 2
    }  # fmt: skip
    assert [run.name for run in load_runs(table)] == ["a [steps]", "a [tokens]"]


def test_evaluation_sizes_may_be_given() -> None:
    assert load_run(one(), n_eval=16).n_eval.tolist() == [16, 16, 16]  # type: ignore[union-attr]
    assert load_run(one(k=[4, 4, 8]), n_eval="k").n_eval.tolist() == [4, 4, 8]  # type: ignore[union-attr]
    assert load_run(one(n_eval=[4, None, 4])).n_eval is None
    with pytest.raises(InputError, match="not a number of samples"):
        load_run(one(), n_eval=0)


def test_sparse_rows_just_work(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss,eval_acc\n0,,0.1\n1,2.5,\n2,2.0,\n3,,0.2\n")
    run = load_run(path)
    assert run.compute.tolist() == [0, 3]
    assert run.notes == ()


def test_runs_without_a_score_are_left_out_and_said() -> None:
    runs = load_runs({"run": ["a", "a", "b"], "step": [1, 2, 1], "acc": [0.1, 0.2, None]})
    assert [run.name for run in runs] == ["a"]
    assert "left out: b:" in runs[0].notes[-1]


def test_rows_that_name_no_run_are_counted() -> None:
    [run] = load_runs({"run": ["a", "a", ""], "step": STEPS, "acc": SCORES})
    assert run.notes == ("1 rows without a run left out",)


def test_decimals_are_numbers() -> None:
    scores = [Decimal("0.1"), Decimal("0.2"), Decimal("sNaN")]
    assert load_run({"step": STEPS, "acc": scores}).score.tolist() == [0.1, 0.2]


def test_runs_of_one_name_are_told_apart() -> None:
    assert [r.name for r in load_runs(one(), one())] == ["table", "table #2"]


names = st.text(min_size=1, max_size=12)
cells = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=6),
    st.floats(0, 1), st.floats(0, 100), st.sampled_from(["1,250.5", "0,45", "1,250", "1.250,5"]),
)  # fmt: skip
known = st.sampled_from(
    ["step", "reward", "val_acc", "run", "metric", "value", "x_kind", "x", "y", "n_eval", "time",
     "eval_loss", "val_error"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_table_gives_valid_runs_or_one_line(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 8))
    keys = data.draw(st.lists(st.one_of(known, names), max_size=6, unique=True))
    table = {k: data.draw(st.lists(cells, min_size=rows, max_size=rows)) for k in keys}
    sums = ["step*8", "*", "step*8*2/3600 as gpu_hours", "1 - val_error", "(step - time)**2"]
    asked = st.one_of(st.none(), names, st.sampled_from([*keys, *sums]))
    options = {name: data.draw(asked) for name in ("x", "y", "group_by", "run")}
    options["gpus"] = data.draw(st.sampled_from([None, None, None, 8]))
    options["seconds_per_step"] = options["gpus"] and data.draw(st.sampled_from([None, 31.2]))
    try:
        runs = load_runs(table, **options)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
    else:
        for run in runs:
            assert_valid(run)


def test_the_fixture_of_three_runs_is_grouped() -> None:
    assert [r.group for r in load_runs(FIXTURES / "long.csv", group_by="recipe")] == [
        "fast", "slow", "slow"
    ]  # fmt: skip
    assert np.array_equal(*(r.score for r in load_runs(FIXTURES / "long.csv", run="[bc]")))
