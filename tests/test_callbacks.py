"""What the training-loop callback does that needs no trainer. Real runs are in tests/trl."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from scalerl import InputError
from scalerl.curves.live import LiveCurve, forecast_numbers
from scalerl.curves.rules import parse_rule


def score(step: float) -> float:
    return float(0.1 + 0.5 / (1 + (40 / max(step, 1e-9)) ** 1.5))


def filled(n: int, **options: Any) -> LiveCurve:
    curve = LiveCurve("eval_reward", "steps", **options)
    for step in range(10, 10 * n + 1, 10):
        curve.add(step, step, score(step))
    return curve


def by_step(record: Mapping[str, Any]) -> float | None:
    return float(record["step"])


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_without_transformers_the_import_says_what_to_install() -> None:
    done = run_python("import sys; sys.modules['transformers'] = None; import scalerl.callbacks")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: scalerl.callbacks needs transformers: pip install 'scalerl[callbacks]'"
    )


def test_the_rest_of_the_package_never_imports_transformers() -> None:
    code = (
        "import sys, scalerl, scalerl.curves.live, scalerl.curves.rules; scalerl.fit\n"
        "assert not {'transformers', 'torch'} & set(sys.modules)"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_points_are_kept_by_step_and_the_last_value_of_a_step_stays() -> None:
    curve = LiveCurve("eval_reward", "hours", n_eval=64)
    assert curve.add(5, 0.1, 0.2)
    assert curve.add(10, 0.2, 0.3)
    assert curve.add(10, 0.25, 0.4)
    run = curve.run
    assert (run.compute.tolist(), run.score.tolist()) == ([0.1, 0.25], [0.2, 0.4])
    assert run.n_eval is not None and run.n_eval.tolist() == [64, 64]
    assert (run.x_kind, run.y_name) == ("hours", "eval_reward")


def test_going_back_to_an_earlier_step_drops_what_came_after() -> None:
    curve = filled(5)
    curve.add(30, 30, 0.5)
    assert curve.run.compute.tolist() == [10, 20, 30]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_an_evaluation_without_a_value_is_no_point(value: float | None) -> None:
    assert not filled(3).add(40, 40, value)


@pytest.mark.parametrize(
    ("scale", "value", "expected"),
    [
        (None, 0.3, 0.3),
        ("pm1", -0.4, 0.3),
        ("percent", 30, 0.3),
        (lambda r: r / 3, 0.9, 0.3),
        (None, 1 + 1e-9, 1.0),
    ],
)
def test_the_scale_maps_a_reward_to_a_pass_rate(scale: Any, value: float, expected: float) -> None:
    curve = LiveCurve("eval_reward", "steps", scale=scale)
    curve.add(1, 1, value)
    assert curve.run.score[0] == pytest.approx(expected)


@pytest.mark.parametrize(("scale", "value"), [(None, -0.2), (None, 1.5), ("pm1", 1.5)])
def test_a_value_off_the_scale_raises_one_line_at_first_sight(scale: Any, value: float) -> None:
    with pytest.raises(InputError, match=r"eval_reward = .* is not a score in \[0, 1\]") as refused:
        LiveCurve("eval_reward", "steps", scale=scale).add(1, 1, value)
    assert "\n" not in str(refused.value)


def test_a_value_off_the_scale_never_ends_a_run_later_on(caplog: pytest.LogCaptureFixture) -> None:
    curve = filled(6)
    with caplog.at_level(logging.WARNING, logger="scalerl.curves.live"):
        assert not curve.add(70, 70, 7.0)
        assert not curve.add(80, 80, 8.0)
    assert len(caplog.records) == 1
    assert "step 70 is left out" in caplog.text
    assert len(curve) == 6


def test_the_first_forecast_comes_at_min_points() -> None:
    assert filled(7, min_points=8).forecast() is None
    assert filled(8, min_points=8).forecast() is not None


def test_a_fit_that_fails_is_a_warning_once_and_no_forecast(
    caplog: pytest.LogCaptureFixture,
) -> None:
    curve = LiveCurve("eval_reward", "tokens")
    with caplog.at_level(logging.WARNING, logger="scalerl.curves.live"):
        for step in range(1, 9):
            curve.add(step, 500.0, 0.3)  # a counter that stands still: one point for the fit
            assert curve.forecast() is None
    assert len(caplog.records) == 1
    assert "no forecast at 6 points" in caplog.text


def stand_still(curve: LiveCurve) -> None:
    """A counter that does not count: many points, and one for the fit."""
    for step in range(1, 9):
        curve.add(step, 500.0, 0.3)


def test_who_shows_things_to_the_user_is_told_of_a_fit_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []
    curve = LiveCurve("eval_reward", "tokens", warn=told.append)
    stand_still(curve)
    assert curve.forecast() is None
    assert curve.forecast() is None
    assert len(told) == 1 and told[0].startswith("no forecast at 8 points: run 'run' has 1 points")
    assert not caplog.records


def test_who_shows_things_to_the_user_is_told_of_points_left_out() -> None:
    told: list[str] = []
    curve = filled(6, warn=told.append)
    curve.add(70, 70, 7.0)
    curve.rebuild([{"eval_reward": 0.1, "step": 10}], lambda record: None)
    assert "step 70 is left out" in told[0]
    assert told[1].startswith("1 earlier points of eval_reward have no record of their steps")


def test_a_forecast_that_fails_in_a_trainer_is_logged_by_the_callback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from scalerl.callbacks import ForecastCallback

    curve = ForecastCallback()._curve
    stand_still(curve)
    assert curve.forecast() is None
    assert [record.name for record in caplog.records] == ["scalerl.callbacks"]


def test_a_point_may_bring_the_size_of_its_own_validation() -> None:
    curve = LiveCurve("pass_rate", "steps", n_eval=64)
    curve.add(10, 10, 0.2)
    curve.add(20, 20, 0.3, n_eval=1024)
    assert curve.run.n_eval is not None and curve.run.n_eval.tolist() == [64, 1024]
    curve.add(20, 20, 0.3)
    assert curve.run.n_eval is not None and curve.run.n_eval.tolist() == [64, 64]


def test_the_run_that_is_fitted_has_the_sizes_of_its_points() -> None:
    sized, constant = LiveCurve("pass_rate", "steps"), LiveCurve("pass_rate", "steps", n_eval=256)
    for step in range(10, 210, 10):
        sized.add(step, step, score(step), n_eval=16 if step < 100 else 4096)
        constant.add(step, step, score(step))
    found, other = sized.forecast(), constant.forecast()
    assert found is not None and other is not None
    assert found.fit.points.n_eval is not None
    assert found.fit.points.n_eval.tolist() == [16.0] * 9 + [4096.0] * 11
    assert found.fit.interval("A") != other.fit.interval("A")


def test_points_of_unknown_size_count_as_the_median_of_the_others() -> None:
    curve, known = LiveCurve("pass_rate", "steps"), LiveCurve("pass_rate", "steps", n_eval=512)
    for step in range(10, 210, 10):
        curve.add(step, step, score(step), n_eval=512 if step > 30 else None)
        known.add(step, step, score(step))
    assert curve.run.n_eval is not None and np.isnan(curve.run.n_eval[:3]).all()
    found, other = curve.forecast(), known.forecast()
    assert found is not None and other is not None
    assert found.fit.params == other.fit.params


def test_an_impossible_size_is_refused_at_first_and_left_out_later() -> None:
    told: list[str] = []
    curve = LiveCurve("pass_rate", "steps", warn=told.append)
    with pytest.raises(InputError, match="number of samples behind a score, not 0"):
        curve.add(10, 10, 0.2, n_eval=0)
    curve.add(10, 10, 0.2, n_eval=8)
    assert not curve.add(20, 20, 0.3, n_eval=0)
    assert len(curve) == 1 and "step 20 is left out" in told[0]


def test_a_forecast_has_the_numbers_for_the_end_of_training_and_a_reason_to_stop() -> None:
    curve = filled(20)
    end = curve.end(max_steps=800)
    assert end == 800
    found = curve.forecast(end, parse_rule("end < 0.99"))
    assert found is not None and found.reason is not None
    assert found.numbers == forecast_numbers(found.fit, end)
    low, mid, high = (found.numbers[f"forecast/at_end{tail}"] for tail in ("_low", "", "_high"))
    assert low < mid < high
    assert low < score(800) < high
    assert set(found.numbers.values()) >= {0.0} and found.numbers["forecast/alarm"] == 0.0
    assert all(isinstance(v, float) and np.isfinite(v) for v in found.numbers.values())


def test_the_end_is_in_proportion_to_the_steps_and_unknown_without_them() -> None:
    curve = LiveCurve("eval_reward", "tokens")
    assert curve.end(100) is None
    curve.add(0, 0, 0.1)
    assert curve.end(100) is None
    curve.add(20, 5000, 0.2)
    assert curve.end(100) == 25_000
    assert curve.end(10) == 5000
    assert curve.end(-1) is None


def test_a_curve_is_rebuilt_from_the_log_without_duplicates() -> None:
    history = [
        {"loss": 1.0, "reward": 0.1, "step": 10},
        {"eval_reward": 0.11, "step": 10},
        {"forecast/gpu_hours": 2.5, "step": 10},
        {"eval_reward": 0.22, "step": 20},
        {"eval_reward": 0.21, "step": 20},
        {"forecast/gpu_hours": 5.5, "step": 20},
        {"train_runtime": 9.0},
    ]
    curve = LiveCurve("eval_reward", "gpu_hours")
    curve.rebuild(history, lambda record: None)
    assert curve.run.compute.tolist() == [2.5, 5.5]
    assert curve.run.score.tolist() == [0.11, 0.21]
    curve.add(20, 5.6, 0.3)
    assert len(curve) == 2


def test_compute_logged_on_another_axis_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    history = [{"eval_reward": 0.1, "step": 10}, {"forecast/tokens": 4096.0, "step": 10}]
    steps = LiveCurve("eval_reward", "steps")
    steps.rebuild(history, by_step)
    assert steps.run.compute.tolist() == [10]
    hours = LiveCurve("eval_reward", "hours")
    with caplog.at_level(logging.WARNING, logger="scalerl.curves.live"):
        hours.rebuild(history, lambda record: None)
    assert len(hours) == 0
    assert "1 earlier points of eval_reward have no record of their hours" in caplog.text
