"""Compute as the user asks for it: columns of any name, expressions, GPU-hours from a clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.runs import Run, load_run, load_runs
from scalerl.runs.expressions import MAX_LENGTH, MAX_NODES, parse
from scalerl.runs.table import Table

STEPS = list(range(0, 600, 100))
SCORES = [0.2, 0.3, 0.35, 0.38, 0.4, 0.41]


def notes(run: Run) -> str:
    return "; ".join(run.notes)


def three(**columns: list[Any]) -> dict[str, list[Any]]:
    return columns | {"accuracy": [y + i / 50 for i in range(3) for y in SCORES]}


# -- a column of any name tells runs apart as `step` does -----------------------------------------


@pytest.mark.parametrize("name", ["step", "my_progress", "Fortschritt", "frac done"])
@pytest.mark.parametrize("label", ["recipe", "flavour", None])
def test_compute_that_starts_again_is_judged_the_same_whatever_its_column_is_called(
    name: str, label: str | None
) -> None:
    table = three(**{name: STEPS * 3})
    if label is not None:
        table[label] = [each for each in "abc" for _ in STEPS]
    runs = load_runs(table, x=name)
    expected = ["a", "b", "c"] if label else ["table #1", "table #2", "table #3"]
    assert [run.name for run in runs] == expected
    assert [len(run) for run in runs] == [6, 6, 6]
    assert not any("resumed" in notes(run) for run in runs)


@pytest.mark.parametrize("x", ["my_x*8", "my_x*8*31.2/3600 as gpu_hours", "my_x as tokens", "MY_X"])
def test_runs_are_told_apart_by_the_column_inside_an_expression(x: str) -> None:
    assert [len(run) for run in load_runs(three(my_x=STEPS * 3), x=x)] == [6, 6, 6]


def test_a_clock_that_goes_on_from_run_to_run_leaves_the_steps_to_tell_them_apart() -> None:
    table = three(step=STEPS * 3, timestamp=[1.7e9 + 60 * i for i in range(18)])
    runs = load_runs(table, x="timestamp")
    assert [len(run) for run in runs] == [6, 6, 6]
    assert [run.x_kind for run in runs] == ["hours"] * 3


def test_an_asked_score_decides_which_rows_count() -> None:
    nothing = [None] * len(STEPS)
    table = {"my_x": STEPS * 2, "zeal": [*SCORES, *nothing], "acc": [*nothing, *SCORES]}
    assert load_run(table, x="my_x", y="zeal").score.tolist() == SCORES


def test_a_column_of_any_name_is_shared_by_training_and_evaluation_rows() -> None:
    table = {
        "type": ["train", "eval"] * 6,
        "my_x": [s for s in STEPS for _ in range(2)],
        "accuracy": [y for s in SCORES for y in (0.9, s)],
    }
    run = load_run(table, x="my_x")
    assert (run.y_name, run.score.tolist()) == ("eval/accuracy", SCORES)


def test_a_resumed_clock_of_an_unknown_name_is_a_resume() -> None:
    clock = [0.1, 0.2, 0.3, 0.4, 0.5, 0.25, 0.35, 0.45]
    scores = [0.1, 0.2, 0.3, 0.9, 0.9, 0.3, 0.4, 0.5]
    run = load_run({"my_clock": clock, "acc": scores}, x="my_clock")
    assert run.compute.tolist() == [0.1, 0.2, 0.25, 0.35, 0.45]
    assert "resumed at 0.25" in notes(run)


# -- expressions ----------------------------------------------------------------------------------


def test_an_expression_keeps_the_unit_that_it_states() -> None:
    table = {"step": STEPS, "val_acc": SCORES}
    run = load_run(table, x="step*8*31.2/3600 as gpu_hours")
    assert run.compute == pytest.approx([s * 8 * 31.2 / 3600 for s in STEPS])
    assert (run.x_kind, run.x_name) == ("gpu_hours", "step*8*31.2/3600 as gpu_hours")
    assert np.array_equal(load_run(table, x=run.x_name).compute, run.compute)
    assert load_run(table, x="step as tokens").x_kind == "tokens"
    assert load_run(table, x="step + 10").x_kind == "unknown"


def test_names_with_operators_in_them_need_no_quotes() -> None:
    table = {"train/elapsed": [3600.0 * s for s in STEPS], "big-run x": STEPS, "val_acc": SCORES}
    run = load_run(table, x="train/elapsed*8/3600 as gpu_hours")
    assert run.compute.tolist() == [8.0 * s for s in STEPS]
    assert "train/elapsed counts seconds in train/elapsed*8/3600" in notes(run)
    assert load_run(table, x="`big-run x`**2/4").compute.tolist() == [s * s / 4 for s in STEPS]
    assert load_run(table, x="(elapsed/3600 + 1) * 2").compute[0] == 2


@pytest.mark.parametrize(
    ("x", "match"),
    [
        ("stp*8/2", "no column 'stp': use --x with step"),
        ("__import__('os').system('id')", r"numbers, columns and \+ - \* / \*\* only"),
        ("(lambda: step)()", "numbers, columns and"),
        ("step if step else 1*2", "numbers, columns and"),
        ("[step*2 for step in (1,)]", "numbers, columns and"),
        ("step*(", "numbers, columns and"),
        ("step*1j", "numbers, columns and"),
        ("step**step", "an exponent has to be a number of at most 8"),
        ("step**9**9**9", "an exponent has to be a number of at most 8"),
        ("1e999*step + 0", "numbers, columns and"),
        ("2*3", "names no column"),
        ("step*2 as parsecs", "give one of gpu_hours, hours, flops"),
        ("step" + "+1" * MAX_LENGTH, "longer than"),
        ("step" + "+1" * (MAX_NODES // 2 + 1), "more than"),
    ],
)
def test_what_is_no_arithmetic_is_refused_in_one_line(x: str, match: str) -> None:
    with pytest.raises(InputError, match=match) as error:
        load_run({"step": STEPS, "val_acc": SCORES}, x=x)
    assert "\n" not in str(error.value)


@settings(max_examples=300, deadline=None)
@given(st.text("step loss`()+-*/.0123456789eE_as", max_size=40))
def test_any_text_is_an_expression_or_one_line(text: str) -> None:
    table = Table("mine", {"step": [1, 2], "loss": [0.5, 0.0]})
    try:
        found = parse(text, table, ["step", "loss"], "--x")
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert found.evaluate(table.numbers, 2).shape == (2,)


# -- GPU-hours ------------------------------------------------------------------------------------


def test_gpu_hours_from_steps_and_the_seconds_of_one() -> None:
    run = load_run({"step": STEPS, "val_acc": SCORES}, gpus=8, seconds_per_step=31.2)
    assert run.compute == pytest.approx([s * 8 * 31.2 / 3600 for s in STEPS])
    assert (run.x_kind, run.x_name) == ("gpu_hours", "step*8*31.2/3600 as gpu_hours")
    named = {"my_x": STEPS, "val_acc": SCORES}
    again = load_run(named, x="my_x", gpus=8, seconds_per_step=31.2)
    assert np.array_equal(again.compute, run.compute)


@pytest.mark.parametrize(
    "clock",
    [
        {"_runtime": [3600.0 * s for s in STEPS]},
        {"train/elapsed": [3600.0 * s for s in STEPS]},
        {"_timestamp": [1.7e9 + 3600.0 * s for s in STEPS]},
        {"hours": [float(s) for s in STEPS]},
        {"time": [f"2026-01-{1 + s // 24:02d}T{s % 24:02d}:00:00" for s in STEPS]},
    ],
)
def test_gpu_hours_from_a_clock(clock: dict[str, list[Any]]) -> None:
    run = load_run({"step": STEPS, "val_acc": SCORES} | clock, gpus=4)
    assert run.compute == pytest.approx([4.0 * s for s in STEPS])
    assert (run.x_kind, run.x_name) == ("gpu_hours", f"{next(iter(clock))}*4")


def test_gpu_hours_need_something_to_come_from() -> None:
    table = {"step": STEPS, "val_acc": SCORES}
    with pytest.raises(InputError, match="--gpus needs a clock"):
        load_run(table, gpus=8)
    with pytest.raises(InputError, match=r"needs a clock.*\(seconds does not rise\)"):
        load_run(table | {"seconds": [31.2, 31.0, 31.3, 30.9, 31.2, 31.1]}, gpus=8)
    with pytest.raises(InputError, match="step counts steps, and GPU-hours come from hours here"):
        load_run(table, x="step", gpus=8)
    own = {"my_x": STEPS, "val_acc": SCORES}
    with pytest.raises(InputError, match=r"my_x has no known unit.* --x 'NAME as hours'"):
        load_run(own, x="my_x", gpus=8)
    run = load_run(own, x="my_x as hours", gpus=8)
    assert (run.x_name, run.x_kind) == ("my_x*8 as gpu_hours", "gpu_hours")
    assert run.compute.tolist() == [8.0 * s for s in STEPS]
    assert load_run(own, x=run.x_name).compute.tolist() == run.compute.tolist()
    half = load_run(own, x="my_x/2 as hours", gpus=8)
    assert half.compute.tolist() == [4.0 * s for s in STEPS]
    assert load_run(own, x=half.x_name).compute.tolist() == half.compute.tolist()
    with pytest.raises(InputError, match="add the number"):
        load_run(table, seconds_per_step=31.2)
    with pytest.raises(InputError, match="give a number above 0"):
        load_run(table, gpus=0)
