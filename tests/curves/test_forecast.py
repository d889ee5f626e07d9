"""Forecasts, targets, doublings, duels, recommendations, planning."""

import json

import numpy as np
import pytest
from simulate import PAPER, curve

from scalerl import InputError, Run, fit, forecast, load_run
from scalerl.curves.compute_needed import Continuations, compute_to_identify
from scalerl.curves.forecast import beats, gain, reach, recommend, sensitivity

LONG = fit(*curve(PAPER, 60000, np.random.default_rng(0)), name="long")
SHORT = fit(*curve(PAPER, 8000, np.random.default_rng(0)), name="short")


def test_quantiles_have_the_promised_shape_and_order():
    at = [70000, 90000, 120000]
    q = LONG.predict(at).quantiles([0.05, 0.5, 0.95])
    assert q.shape == (3, 3)
    assert (np.diff(q, axis=1) > 0).all()


def test_an_observation_is_less_certain_than_the_truth():
    ahead = LONG.predict([90000])
    true, seen = ahead.interval(0.9)[0], ahead.interval(0.9, observed=True)[0]
    assert seen[1] - seen[0] > true[1] - true[0]


def test_intervals_widen_with_the_horizon():
    low, high = LONG.predict([60000, 120000, 480000]).interval(0.9).T
    assert (np.diff(high - low) > 0).all()


def test_forecast_inside_the_window_follows_the_points():
    c, y = LONG.points.compute, LONG.points.score
    assert np.abs(LONG.predict(c).median - y).mean() < 0.006
    assert LONG.predict([0.0]).median[0] == pytest.approx(0.30, abs=0.05)


def test_forecast_is_continuous_at_the_end_of_the_window():
    before, after = LONG.predict([LONG.end * 0.9999, LONG.end * 1.0001]).median
    assert after == pytest.approx(before, abs=0.002)


def test_many_points_are_interpolated_between_knots():
    many = LONG.predict(np.linspace(61000, 200000, 500))
    few = LONG.predict([61000, 100000, 200000])
    assert len(many.knots) <= 25
    np.testing.assert_allclose(np.interp([61000, 100000, 200000], many.compute, many.median),
                               few.median, atol=0.003)  # fmt: skip


def test_mean_of_several_observations_is_steadier_than_one():
    ahead = LONG.predict(np.linspace(100000, 110000, 10))
    one = ahead.quantiles([0.05, 0.95], observed=True)
    mean = ahead.mean_quantiles([0.05, 0.95])
    assert mean[1] - mean[0] < (one[:, 1] - one[:, 0]).mean()


@pytest.mark.parametrize("at", [[], [-1.0], [float("nan")], [float("inf")]])
def test_bad_compute_is_refused(at):
    with pytest.raises(InputError):
        LONG.predict(at)


def test_targets_reached_reachable_and_out_of_reach():
    behind, ahead, never = reach(LONG, [0.5, 0.635, 0.9])
    assert behind.probability == pytest.approx(1.0, abs=0.01)
    assert behind.median == pytest.approx(8000 * (0.2 / 0.145) ** (1 / 1.7), rel=0.1)
    assert ahead.median > 40000
    assert never.probability < 0.05 and never.median == np.inf
    assert never.to_dict()["compute"]["median"] is None


@pytest.mark.parametrize("score", [0.0, -0.1, 1.2])
def test_impossible_targets_are_refused(score):
    with pytest.raises(InputError):
        reach(LONG, [score])


def test_next_doubling_shrinks_as_the_run_saturates():
    early, late = gain(SHORT, 2.0), gain(LONG, 2.0)
    assert early.median > 0.05 > late.median
    assert early.interval[0] < early.median < early.interval[1]


def test_a_better_run_probably_beats_a_worse_one():
    worse = fit(*curve(PAPER, 60000, np.random.default_rng(1)))
    low = fit(worse.points.compute, worse.points.score * 0.9)
    assert beats(LONG, low, 1e5) > 0.95
    assert beats(low, LONG, 1e5) == pytest.approx(1 - beats(LONG, low, 1e5), abs=1e-9)


def test_recommendation_follows_price_and_value():
    assert recommend(SHORT, price=0.01, value=1000.0).action == "continue"
    stop = recommend(LONG, price=10.0, value=0.01)
    assert stop.action == "stop" and stop.compute == LONG.end
    with pytest.raises(InputError):
        forecast(LONG, price=1.0)
    with pytest.raises(InputError):
        recommend(LONG, price=-1.0, value=1.0)


def test_a_declining_run_is_told_to_stop():
    c, y = curve(PAPER, 60000, np.random.default_rng(0))
    y[45:] -= np.linspace(0.02, 0.25, 15)
    advice = recommend(fit(c, y), price=0.0, value=1.0)
    assert advice.action == "stop" and "declining" in advice.reason


def test_forecast_dictionary_has_the_promised_keys():
    d = forecast(load_run("example:paper-8b"), at=[1e5], target=[0.6, 0.99], lo=1500).to_dict()
    assert set(d["at"][0]) == {"compute", "median", "interval", "observed_interval"}
    assert {"score", "probability", "compute"} <= set(d["targets"][0])
    assert {"gain", "interval"} <= set(d["next_doubling"])
    json.dumps(d, allow_nan=False)


def test_a_run_with_side_metrics_is_continued_and_given_an_r0():
    points = SHORT.points.replace(signs={"grad_norm": np.linspace(1.0, 2.0, len(SHORT.points))})
    longer = Continuations.simulate(fit(points)).refit(0, 3.0)
    assert longer.end == pytest.approx(3 * SHORT.end) and not longer.run.signs
    assert fit(points, r0=0.1).r0 == pytest.approx(0.1, abs=0.05)


def test_columns_of_a_run_have_one_value_per_point():
    with pytest.raises(ValueError, match="3 values of entropy for 2 points"):
        Run("mine", np.ones(2), np.ones(2), "steps", signs={"entropy": np.ones(3)})


def test_more_compute_is_needed_for_a_shorter_run():
    need = compute_to_identify(SHORT)
    assert need.multiple is not None and 1.25 <= need.multiple <= 8
    assert "identify the ceiling" in str(need)
    tiny = fit(*curve(PAPER, 2500, np.random.default_rng(0), n=12))
    further = compute_to_identify(tiny)
    assert further.multiple is None or further.multiple > need.multiple


def test_sensitivity_of_a_stable_run_is_within_the_papers_margin():
    found = sensitivity(LONG)
    assert len(found) == 4
    assert all(abs(s.a - LONG.params["A"]) < 0.02 for s in found)
