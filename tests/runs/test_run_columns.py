"""Which column tells runs apart, tables with one column for each run, and scores to choose from."""

from __future__ import annotations

from typing import Any

import pytest
from known_curve import FIXTURES

from scalerl.errors import InputError
from scalerl.runs import load_run, load_runs

STEPS = list(range(0, 600, 100))
A = [0.2, 0.3, 0.35, 0.38, 0.4, 0.41]
B = [0.2, 0.35, 0.4, 0.44, 0.46, 0.47]


def long(**columns: list[Any]) -> dict[str, list[Any]]:
    return columns | {"step": STEPS * 2, "val_acc": [*A, *B]}


def each(*names: str) -> list[str]:
    return [name for name in names for _ in STEPS]


# -- a run column by its name ---------------------------------------------------------------------


def test_run_may_name_the_column_that_tells_runs_apart() -> None:
    table = long(name=each("gsm8k", "gsm8k"), Flavour=each("mild", "hot"))
    for asked in ("Flavour", "flavour"):
        assert [run.name for run in load_runs(table, run=asked)] == ["mild", "hot"]
    assert [run.name for run in load_runs(table, run="flavour=h*")] == ["hot"]
    numbers = long(lot=[7.0] * 6 + [8.0] * 6)
    assert [run.name for run in load_runs(numbers, run="lot")] == ["7", "8"]


def test_a_column_of_runs_that_is_asked_for_comes_before_the_usual_ones() -> None:
    table = long(run=each("x", "x"), arm=each("left", "right"))
    table["step"] = list(range(12))  # nothing but the column tells the runs apart
    assert [run.name for run in load_runs(table)] == ["x"]
    assert [run.name for run in load_runs(table, run="arm")] == ["left", "right"]


def test_names_of_runs_are_patterns_as_ever() -> None:
    table = long(run=each("grpo lr=1", "cispo"))
    assert [run.name for run in load_runs(table, run="grpo*")] == ["grpo lr=1"]
    assert [run.name for run in load_runs(table, run="grpo lr=1")] == ["grpo lr=1"]
    wide = {"step": STEPS, "baseline": A, "ours": B}
    assert [run.name for run in load_runs(wide, run="ours")] == ["ours"]
    both = long(run=each("grpo", "arm"), arm=each("left", "right"))
    assert [run.name for run in load_runs(both, run="arm")] == ["arm"]
    with pytest.raises(InputError, match="no run matches 'step'"):
        load_runs(both, run="step")
    with pytest.raises(InputError, match="no run matches 'flavour'"):
        load_runs(table, run="flavour")


# -- one column for each run ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("baseline", "ours"),
        ("grpo_lr1e-6", "grpo_lr3e-6"),
        ("kl-0.01", "no_kl"),
        ("len8k", "len16k"),
        ("seed1/acc", "seed2/acc"),
        ("val_acc_run1", "val_acc_run2"),
    ],
)
def test_a_table_with_one_column_for_each_run_is_read(names: tuple[str, str]) -> None:
    runs = load_runs({"step": STEPS, names[0]: A, names[1]: B})
    assert [run.name for run in runs] == list(names)
    assert [run.y_name for run in runs] == list(names)
    assert [run.score.tolist() for run in runs] == [A, B]


def test_several_columns_of_compute_and_any_name_of_it_will_do() -> None:
    wide = {"step": STEPS, "gpu_hours": [s / 10 for s in STEPS], "run-a": A, "run-b": B}
    runs = load_runs(wide)
    assert [run.name for run in runs] == ["run-a", "run-b"]
    assert [run.x_kind for run in runs] == ["gpu_hours", "gpu_hours"]
    own = {"my_x": STEPS, "base": A, "ours": B}
    assert [run.name for run in load_runs(own, x="my_x")] == ["base", "ours"]
    assert [run.name for run in load_runs(own, x="my_x", y="*")] == ["base", "ours"]


@pytest.mark.parametrize("names", [("reward_a", "reward_b"), ("entropy", "mean_kl"), ("lr", "foo")])
def test_metrics_are_not_taken_for_runs_but_a_pattern_can_say_so(names: tuple[str, str]) -> None:
    wide = {"step": STEPS, names[0]: A, names[1]: B}
    with pytest.raises(InputError, match=r"choose one with --y: .*; --y '\*' reads each column"):
        load_runs(wide)
    assert [run.name for run in load_runs(wide, y="*")] == list(names)


def test_several_known_scores_come_with_the_pattern_that_reads_each() -> None:
    wide = {"step": STEPS, "grpo_acc": A, "dapo_acc": B}
    with pytest.raises(InputError, match=r"several scores.*; --y '\*_acc' reads each as a run"):
        load_runs(wide)
    assert [run.name for run in load_runs(wide, y="*_acc")] == ["grpo_acc", "dapo_acc"]


# -- scores that could serve ----------------------------------------------------------------------


def test_the_accuracy_reward_of_a_trainer_state_is_suggested() -> None:
    state = FIXTURES / "trl-two-rewards"
    with pytest.raises(InputError, match=r"reward goes from .*or choose --y rewards/accuracy_rew"):
        load_run(state)
    run = load_run(state, y="rewards/accuracy_reward/mean")
    assert 0.3 < run.score[0] < run.score[-1] <= 1
    assert (run.x_name, run.score_kind) == ("step", "training")
