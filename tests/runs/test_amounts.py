"""Amounts of compute in the units of people: converted by the record, refused where implausible."""

from __future__ import annotations

import numpy as np
import pytest
from known_curve import FIXTURES

from scalerl import forecast
from scalerl.errors import InputError
from scalerl.runs import Run, load_run
from scalerl.runs.amounts import Amount

STEPS = [0, 100, 200, 300, 400]
SCORES = [0.2, 0.3, 0.35, 0.38, 0.4]


def run() -> Run:
    table = {
        "step": STEPS,
        "flops": [s * 1e9 for s in STEPS],
        "num_tokens": [s * 500 for s in STEPS],
    }
    return load_run(table | {"val_acc": SCORES})


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("120", 120, ""), ("50k", 5e4, ""), ("1.5M", 1.5e6, ""), ("1e12", 1e12, ""),
        ("2P", 2e15, ""),
        ("300steps", 300, "steps"), ("300 steps", 300, "steps"), ("50ksteps", 5e4, "steps"),
        ("1.5Mtokens", 1.5e6, "tokens"), ("2x", 2, "times"), ("1.5 x", 1.5, "times"),
        ("50%", 50, "percent"), ("8GPU-hours", 8, "gpu_hours"), ("8k gpu_hours", 8e3, "gpu_hours"),
        ("3h", 3, "hours"), ("1e12FLOPs", 1e12, "flops"), ("2Mrollouts", 2e6, "samples"),
    ],
)  # fmt: skip
def test_amounts_are_numbers_with_units(text: str, value: float, unit: str) -> None:
    found = Amount.parse(text)
    assert (found.value, found.unit) == (value, unit)


@pytest.mark.parametrize("text", ["soon", "", "3 parsecs", "k", "1kk", "nan", "1e999", "2xx", "%"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a"):
        Amount.parse(text)


def on(text: str, of: Run) -> tuple[float, str]:
    return Amount.parse(text).checked_on(of, float(of.compute[-1]), "--at")


def test_a_unit_is_converted_by_what_the_record_counts_beside_it() -> None:
    flops = run()
    assert flops.x_kind == "flops"
    assert on("300steps", flops) == (3e11, "300steps is read as 3e+11 flops")
    assert on("250steps", flops)[0] == pytest.approx(2.5e11)
    assert on("100ktokens", flops)[0] == pytest.approx(2e11)
    assert on("2x", flops) == (8e11, "")
    assert on("4e11flops", flops) == (4e11, "")
    with pytest.raises(InputError, match="does not count samples: give an amount in flops, steps"):
        on("300rollouts", flops)


def test_beyond_the_end_the_recent_rate_holds_and_that_is_said() -> None:
    steps = np.arange(0, 2000, 100)
    hours = np.concatenate([steps[:15] * 0.01, 14.0 + (steps[15:] - 1400) * 0.02])
    table = {"step": steps.tolist(), "gpu_hours": hours.tolist()}
    slower = load_run(table | {"val_acc": np.linspace(0.2, 0.5, 20).tolist()})
    value, how = on("2900steps", slower)
    assert value == pytest.approx(24.0 + 1000 * 0.02)
    assert "at the rate of the last 5 points beyond the end" in how


@pytest.mark.parametrize("text", ["120", "300", "50k", "1e9", "1e14", "101x", "-5", "1e7steps"])
def test_amounts_far_outside_are_refused_with_the_axis_named(text: str) -> None:
    with pytest.raises(
        InputError, match=r"far outside of what table measured, 1e\+11 to 4e\+11 flops"
    ):
        on(text, run())


def test_the_refusal_says_which_units_there_are() -> None:
    with pytest.raises(InputError, match="or name another unit: 300steps, 300tokens"):
        on("300", run())


@pytest.mark.parametrize("text", ["0", "1e10", "4e13", "100x", "50%"])
def test_plausible_amounts_are_taken(text: str) -> None:
    assert on(text, run())[0] >= 0


def test_a_score_from_before_training_does_not_set_the_scale() -> None:
    hours = [1e-9, 1.0, 2.0, 3.0, 4.0]
    early = load_run({"gpu_hours": hours, "val_acc": SCORES})
    with pytest.raises(InputError, match="far outside"):
        on("0.001", early)


def test_a_run_of_ours_knows_every_unit() -> None:
    ours = load_run(FIXTURES / "run-directories" / "seed-1")
    assert set(ours.conversions) >= {"steps", "flops", "tokens", "samples"}
    assert on("1000steps", ours)[0] == pytest.approx(10.0)
    assert on("900ktokens", ours)[0] == pytest.approx(10.0)
    assert on("1e15flops", ours)[0] == pytest.approx(10.0)
    with pytest.raises(InputError, match="far outside"):
        on("120k", ours)


def test_windows_keep_the_conversions() -> None:
    assert on("300steps", run().window(hi=2e11))[0] == pytest.approx(3e11)


def test_python_takes_the_same_texts() -> None:
    ours = load_run(FIXTURES / "run-directories" / "seed-1")
    ahead = forecast(ours, at=["1000steps", "2x", 30.0])
    assert ahead.at.compute.tolist() == pytest.approx([10.0, 40.0, 30.0])
    assert forecast(ours, at="3000steps").at.compute.tolist() == pytest.approx([30.0])
