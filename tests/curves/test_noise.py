"""Noise of an evaluation, bins, and the decline alarm."""

import numpy as np
import pytest
from simulate import PAPER, curve, noise

from scalerl.curves.alarm import find_fall
from scalerl.curves.noise import MAX_BINS, bin_curve, mean_variance, score_variance


def test_variance_is_read_from_second_differences_despite_the_trend():
    rng = np.random.default_rng(0)
    found = [
        score_variance(curve(PAPER, 30000, rng, n=50, sd=0.006, rho=0.0)[1], None)
        for _ in range(40)
    ]
    assert np.mean(found) == pytest.approx(0.006**2, rel=0.15)


def test_one_wild_evaluation_does_not_make_a_run_noisy():
    _, y = curve(PAPER, 30000, np.random.default_rng(0), n=50, sd=0.005)
    spoiled = y.copy()
    spoiled[25] = 0.0
    assert score_variance(spoiled, None) < 4 * score_variance(y, None)


def test_binomial_guess_steadies_a_short_run():
    y = np.array([0.50, 0.50, 0.50, 0.50, 0.50, 0.50])  # looks noiseless by luck
    assert score_variance(y, np.full(6, 1000.0)) > 4e-5
    assert score_variance(y, None) == pytest.approx(1e-6)


def test_correlated_scores_average_out_more_slowly():
    assert float(mean_variance(1)) == 1.0
    assert float(mean_variance(10)) == pytest.approx(1.9 / 10)


def test_dense_curves_are_binned_in_log_compute_and_zero_stays_apart():
    c = np.arange(0, 900.0)
    points = bin_curve(c, np.linspace(0.1, 0.6, 900), None)
    assert len(points.t) <= MAX_BINS + 1
    assert points.at_zero.tolist()[:2] == [True, False]
    assert points.t[0] == pytest.approx(np.log(1.0) - np.log(2.0))
    assert (np.diff(points.t) > 0).all()
    assert points.variance[-1] < points.variance[1]


def test_larger_evaluations_weigh_more():
    c = np.arange(1, 21.0)
    n = np.where(np.arange(20) % 2 == 0, 100.0, 1000.0)
    points = bin_curve(c, np.full(20, 0.5), n)
    assert points.variance[0] > 5 * points.variance[1]


def test_alarm_fires_on_a_collapse_and_names_the_place():
    rng = np.random.default_rng(0)
    c, y = curve(PAPER, 40000, rng, n=60)
    y[45:] -= np.linspace(0.02, 0.2, 15)
    decline = find_fall(c, y, bin_curve(c, y, None))
    assert decline is not None and decline.alarm
    assert decline.drop > 0.05
    assert 20000 < decline.since < 34000
    assert "declining" in str(decline)


def test_alarm_is_silent_on_healthy_runs_and_rare_on_runs_that_never_learn():
    rng = np.random.default_rng(0)
    healthy, flat = 0, 0
    for _ in range(300):
        c, y = curve(PAPER, 40000, rng, n=60)
        healthy += find_fall(c, y, bin_curve(c, y, None)).alarm
        y = 0.5 + noise(60, 0.01, 0.4, rng)
        flat += find_fall(c, y, bin_curve(c, y, None)).alarm
    assert healthy == 0
    assert flat <= 0.04 * 300
