"""What the priors change: the tail, kinds of score, falls, and when a ceiling may be quoted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalerl import Run, fit, forecast, load_run
from scalerl.curves.identified import MIN_ON_RISE
from scalerl.curves.noise import bin_curve
from scalerl.curves.posterior import fraction, time_to_fraction
from scalerl.curves.priors import CurvePriors, learned_priors, prior_kind
from scalerl.report import words

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def hard_ceiling(seed, shape=0.5, a=0.85, sd=0.004, n=40):
    """A run that nears its ceiling faster than a sigmoid, seen to five times C_mid."""
    c = np.linspace(0.0, 5.0, n + 1)[1:]
    f = fraction(np.log(c), np.full(n, np.log(2.0)), np.zeros(n), shape)
    return c, 0.1 + (a - 0.1) * f + sd * np.random.default_rng(seed).standard_normal(n)


def plateau(after, n=12, level=0.6):
    """A rise within the first evaluations, then nothing but noise."""
    c = np.linspace(0.0, 100.0, n)
    y = np.where(np.arange(n) < after, np.linspace(0.2, level, max(after, 2))[0], level)
    y[1 : after + 1] = np.linspace(0.2, level, after + 2)[1:-1]
    return c, y + 0.003 * (-1.0) ** np.arange(n)


def test_a_hard_ceiling_is_held_and_its_tail_reported():
    fits = [fit(*hard_ceiling(seed)) for seed in range(12)]
    assert sum(f.interval("A")[0] <= 0.85 <= f.interval("A")[1] for f in fits) >= 10
    # A sigmoid through the same points is too high in every one of them.
    assert min(f.least_squares().formula.A for f in fits) > 0.86
    assert np.median([f.params["A"] for f in fits]) < 0.86
    clear = [fit(*hard_ceiling(seed, sd=0.0015, n=80)) for seed in range(12)]
    said = [any("faster than a sigmoid" in w for w in f.warnings) for f in clear]
    assert np.mean(said) > 0.5
    assert not any("than a sigmoid" in w for w in fit(load_run("example:paper-8b")).warnings)


def test_the_time_to_a_share_is_the_inverse_of_the_fraction():
    log_b, shape = np.log([0.7, 1.5, 3.0]), np.array([0.25, 1.0, 4.0])
    t = time_to_fraction(0.9, log_b, shape)
    back = [fraction(t[i : i + 1], log_b[i : i + 1], np.zeros(1), shape[i])[0] for i in range(3)]
    assert back == pytest.approx([0.9] * 3)


def test_an_interval_that_ends_at_the_end_of_the_scale_is_not_identified():
    c = np.linspace(1.0, 60.0, 60)
    y = np.clip(0.999 - 0.9 * np.exp(-c / 6.0), 0.0, 1.0)
    f = fit(c, y + 0.001 * (-1.0) ** np.arange(60) - 0.001)
    low, high = f.interval("A")
    assert high - low < 0.1 and high >= 0.995
    assert not f.identified and any("largest score there is" in w for w in f.warnings)


def test_a_plateau_without_a_rise_is_not_identified():
    alone, risen = fit(*plateau(1)), fit(*plateau(4, n=40))
    assert alone.interval("A")[1] - alone.interval("A")[0] < 0.1
    assert not alone.identified and any("only the plateau" in w for w in alone.warnings)
    assert alone.predictive.posterior.on_rise < MIN_ON_RISE <= risen.predictive.posterior.on_rise
    assert risen.identified


def test_a_fall_is_likelier_after_a_long_plateau():
    c = np.geomspace(1.0, 400.0, 60)
    y = 0.2 + 0.5 / (1.0 + (4.0 / c) ** 2) + 0.003 * (-1.0) ** np.arange(60)
    at = [fit(c, y, hi=end).fall_probability(2.0 * end) for end in (8.0, 40.0, 400.0)]
    assert at[0] < at[1] < at[2] and at[2] > 0.05


def test_both_forecasts_are_printed():
    ahead = forecast(load_run("example:paper-8b"), at=[150_000])
    (all_low, all_high), (low, high) = ahead.at.interval()[0], ahead.if_healthy.interval()[0]
    assert all_low < low and all_high == pytest.approx(high, abs=0.01)
    (said,) = words.if_healthy(ahead)
    assert f"{ahead.fall_probability:.2f}" in said and "if the run stays healthy" in said
    found = ahead.to_dict()
    assert found["fall_probability"] == ahead.fall_probability
    assert found["if_healthy"][0]["interval"][0] == pytest.approx(low)


def test_the_kind_of_a_score_is_taken_from_the_log_or_else_from_its_noise():
    rng = np.random.default_rng(0)
    steps = 10.0 * np.arange(1, 101)
    rise = 0.3 + 0.0002 * steps

    def kind(x, sd, stated="unknown"):
        y = np.clip(rise + sd * rng.standard_normal(100), 0.0, 1.0)
        return prior_kind(Run("mine", x, y, "steps", score_kind=stated), bin_curve(x, y, None))

    assert kind(steps, 0.06) == "training" and kind(steps, 0.004) == "validation"
    assert kind(steps, 0.06, "validation") == "validation"
    assert kind(steps / 10.0, 0.004) == "training"  # a score at every step
    noisy = np.clip(rise + 0.06 * rng.standard_normal(100), 0.0, 1.0)
    read = fit(steps, noisy)
    assert any("read as a training reward" in w for w in read.warnings)
    stated = fit(Run("mine", steps, noisy, "steps", score_kind="training"))
    assert not any("read as" in w for w in stated.warnings)
    assert stated.params == read.params


def test_other_priors_can_be_given():
    run = load_run("example:paper-8b")
    learned = learned_priors("validation")
    wide = CurvePriors(replace(learned.window, a_sd=0.5), replace(learned.future, hazard=1.0))
    assert fit(run, priors=wide).fall_probability(2e5) > fit(run).fall_probability(2e5)
    assert fit(run, priors=learned).params == fit(run).params


def test_the_committed_priors_are_those_that_were_learned():
    found = json.loads((RESULTS / "learn_priors.json").read_text())
    both = {**found["priors"]["both"], **found["priors"]["training"]}
    assert CurvePriors.from_dict(both) == learned_priors("training")
    # No source decides alone: what is learned without it is much the same.
    for name in ("shape_log_sd", "b_median", "mid_log_sd"):
        folds = [fold["both"][name] for fold in found["without"].values()]
        assert max(folds) < 1.5 * min(folds), name
