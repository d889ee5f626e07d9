"""The rules of clean.py and scale.py, one by one and on arbitrary points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.runs import load_run, load_runs
from scalerl.runs.clean import clean
from scalerl.runs.score import rescale

NAN = float("nan")


def cleaned(x: list[float], kind: str = "steps") -> tuple[list[float], list[int], str]:
    done = clean(np.array(x, dtype=float), np.arange(len(x)) / 100, kind)  # type: ignore[arg-type]
    return done.compute.tolist(), done.rows.tolist(), "; ".join(done.notes)


def test_a_resumed_run_replaces_what_it_repeats() -> None:
    x, rows, notes = cleaned([0, 10, 20, 30, 20, 30, 40])
    assert x == [0, 10, 20, 30, 40]
    assert rows == [0, 1, 4, 5, 6]
    assert "resumed at 20: 2 earlier points left out" in notes


def test_points_beyond_the_restart_go_even_if_not_reached_again() -> None:
    assert cleaned([0, 10, 20, 30, 40, 20])[0] == [0, 10, 20]


def test_two_resumes_are_resolved_in_order() -> None:
    x, rows, _ = cleaned([0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6])
    assert x == [0, 1, 2, 3, 4, 5, 6]
    assert rows == [0, 1, 4, 5, 8, 9, 10]


def test_a_resume_on_a_clock_never_repeats_a_value() -> None:
    x, _, notes = cleaned([1.1, 2.1, 3.1, 4.1, 2.5, 3.6, 4.6], "hours")
    assert x == [1.1, 2.1, 2.5, 3.6, 4.6]
    assert "resumed" in notes


@pytest.mark.parametrize("x", [[30, 10, 20], [1, 3, 2, 4], [5, 4, 3, 2, 1], [1, 2, 3, 5, 4, 6, 7]])
def test_unsorted_rows_are_sorted_and_all_kept(x: list[float]) -> None:
    assert cleaned(x)[0] == sorted(x)
    assert "sorted" in cleaned(x)[2]


def test_of_equal_values_the_last_stays() -> None:
    x, rows, notes = cleaned([1, 2, 2, 3])
    assert (x, rows) == ([1, 2, 3], [0, 2, 3])
    assert "1 points at a compute logged again" in notes


def test_rows_without_numbers_are_dropped_and_counted() -> None:
    run = load_run({"step": [1, 2, None, 4, 5], "acc": [0.1, NAN, 0.3, 0.4, "inf"]})
    assert run.compute.tolist() == [1, 4]
    assert any("dropped" in note for note in run.notes)


def test_a_hole_in_a_dense_column_is_counted_and_a_sparse_column_has_none() -> None:
    dense = load_run({"step": range(1, 10), "acc": [0.1] * 4 + [None] + [0.1] * 4})
    assert dense.notes == ("1 of 9 rows without a finite compute and score dropped",)
    sparse = {"step": range(1, 10), "acc": [0.1] + [None] * 7 + [float("inf")]}
    assert load_run(sparse).notes == ("1 of 2 rows without a finite compute and score dropped",)


def test_zero_one_point_and_constant_runs_load() -> None:
    assert load_run({"step": [0], "acc": [0.5]}).compute.tolist() == [0]
    assert load_run({"step": [0, 1], "acc": [0, 0]}).score.tolist() == [0, 0]


def test_negative_compute_and_no_points_are_refused() -> None:
    with pytest.raises(InputError, match="compute is negative"):
        load_run({"step": [-1, 1], "acc": [0.1, 0.2]})
    with pytest.raises(InputError, match="no row has both"):
        load_run({"step": [None, 1], "acc": [0.1, None]}, x="step", y="acc")


def test_a_gap_is_noted() -> None:
    assert "a gap between 5 and 50" in cleaned([1, 2, 3, 4, 5, 50, 51])[2]


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 12), st.floats(0, 100), st.just(NAN)), min_size=1),
    st.sampled_from(["steps", "hours", "tokens", "unknown"]),
)
def test_cleaning_gives_ascending_unique_points_of_the_log(x: list[float], kind: str) -> None:
    compute = np.array(x, dtype=float)
    if not np.isfinite(compute).any():
        return
    done = clean(compute, np.full(len(x), 0.5), kind)  # type: ignore[arg-type]
    assert (np.diff(done.compute) > 0).all()
    np.testing.assert_array_equal(compute[done.rows], done.compute)
    changed = len(done.rows) < len(x) or not (np.diff(done.rows) > 0).all()
    assert not changed or done.notes
    # What is logged last is never replaced.
    assert int(np.flatnonzero(np.isfinite(compute))[-1]) in done.rows
    again = clean(done.compute, np.full(len(done.compute), 0.5), kind)  # type: ignore[arg-type]
    np.testing.assert_array_equal(again.compute, done.compute)


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ([0.1, 0.9], "reward", [0.1, 0.9]),
        ([0, 0], "acc", [0, 0]),
        ([12, 40], "val_acc", [0.12, 0.4]),
        ([0, 0.4, 2, 5], "val_acc", [0, 0.004, 0.02, 0.05]),
        ([12, 40], "y", [0.12, 0.4]),
        ([0.2, 0.4], "acc_pct", [0.002, 0.004]),
        ([1 + 1e-12, -1e-12], "acc", [1, 0]),
    ],
)
def test_fractions_and_percent_are_told_apart(
    values: list[float], name: str, expected: list[float]
) -> None:
    np.testing.assert_allclose(rescale(np.array(values), name)[0], expected, atol=1e-15)


@pytest.mark.parametrize(
    ("values", "name", "hint"),
    [
        ([-0.5, 0.5], "reward", "--scale pm1"),
        ([0.5, 3.0], "reward", "--scale N"),
        ([20.0, 60.0], "reward", "--scale percent"),
        ([0.45, 0.46, 0.47, 48.0], "val_acc", "not a score"),
        ([0.2, 1.2], "val_acc", "not a score"),
        ([2.0, 8.0], "score", "not a score"),
        ([50, 400], "val_acc", "not a score"),
        ([-5.0, 0.5], "acc", "another --y"),
    ],
)
def test_what_could_be_anything_is_refused(values: list[float], name: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        rescale(np.array(values), name)


def test_the_owner_of_a_reward_may_say_what_it_is() -> None:
    table = {"step": [1, 2], "reward": [-0.5, 0.5]}
    assert load_run(table, scale="pm1").score.tolist() == [0.25, 0.75]
    assert load_run({"step": [1, 2], "reward": [1, 2]}, scale=4).score.tolist() == [0.25, 0.5]
    assert load_run({"step": [1, 2], "reward": [1, 2]}, scale="4").score.tolist() == [0.25, 0.5]
    for scale in ("percent", "fraction", "0", "nonsense", "-1"):
        with pytest.raises(InputError):
            load_run({"step": [1, 2], "reward": [1, 200]}, scale=scale)


def test_the_scale_is_one_for_all_runs_of_a_file() -> None:
    table = {"run": ["a", "a", "b", "b"], "step": [1, 2, 1, 2], "acc": [0.3, 0.9, 40.0, 50.0]}
    assert [r.score[1] for r in load_runs(table)] == pytest.approx([0.009, 0.5])
    assert load_run(table, run="a").score[1] == pytest.approx(0.009)


def test_one_run_outside_the_scale_does_not_spoil_the_file() -> None:
    table = {"run": [*"aabbcc"], "step": [1, 2] * 3, "reward": [0.1, 0.2, 0.1, 0.2, 0.1, 2.0]}
    runs = load_runs(table)
    assert [run.name for run in runs] == ["a", "b"]
    assert "left out: c: reward goes from 0.1 to 2" in runs[0].notes[-1]
    with pytest.raises(InputError, match=r"c: reward goes from 0\.1 to 2"):
        load_runs(table, run="c")


def test_absurd_numbers_give_one_line_and_no_warnings() -> None:
    big = {"hours": [1, 2, 3], "acc": [0.1, 0.2, 0.3]}
    with pytest.raises(InputError, match="no row has both"):
        load_run(big, x="hours*1e308" + "0" * 5)
    with pytest.raises(InputError, match="outside"):
        load_run(big, scale=5e-324)
    run = load_run({"step": [0, 1, 2, 3, 4, 5, 1e308, "1e999"], "acc": [0.5] * 8})
    assert run.compute[-1] == 1e308
