"""Runs that stand still, fall, recover, or are about to: what the forecast makes of them."""

import numpy as np
import pytest
from simulate import PAPER, curve

from scalerl import Run, compare, fit, forecast
from scalerl.curves.alarm import alarm_history
from scalerl.curves.warning_signs import find_signs
from scalerl.report import words
from scalerl.report.terminal import fit_table


def noise(n, seed=0, sd=0.008):
    return sd * np.random.default_rng(seed).standard_normal(n)


def flat(n=20, level=0.4, seed=0):
    return np.arange(1.0, n + 1), level + noise(n, seed)


def fallen(n=40, seed=0, drop=0.25):
    c = np.linspace(500, 40000, n)
    y = PAPER.value(c) - drop * np.clip((c - 24000) / 8000, 0.0, 1.0)
    return c, y + noise(n, seed)


# -- flat runs ------------------------------------------------------------------------------------


def test_a_flat_run_is_forecast_to_stay_and_quotes_no_ceiling():
    f = fit(*flat())
    assert f.no_gain > 0.5 and not f.identified
    ahead = f.predict([40.0, 80.0])
    np.testing.assert_allclose(ahead.median, 0.4, atol=0.02)
    assert ahead.interval()[1, 1] > 0.42  # a rise is not excluded
    assert "No gain is seen; a rise cannot be excluded" in words.ceiling_in_words(f)
    assert "no gain seen" in fit_table([f])
    assert "no gain seen" in repr(f)
    assert any("no gain seen" in warning for warning in f.warnings)


def test_a_rising_run_is_not_taken_for_a_flat_one():
    for seed in range(5):
        c, y = curve(PAPER, 20000.0, np.random.default_rng(seed), n=20)
        assert fit(c, y).no_gain < 0.05


def test_flat_runs_are_forecast_no_worse_than_no_change():
    """Mean absolute error of the median over 30 flat runs continued as they were."""
    ours = last = 0.0
    for seed in range(30):
        c, y = flat(24, 0.3, seed)
        seen, rest = slice(0, 12), slice(20, 24)
        ours += abs(fit(c[seen], y[seen]).predict(c[rest]).median.mean() - y[rest].mean())
        last += abs(fit(c[seen], y[seen], law="no-change").predict(c[rest]).median.mean()
                    - y[rest].mean())  # fmt: skip
    assert ours < 1.15 * last


# -- where the law begins -------------------------------------------------------------------------


def early_phase(seed=0):
    """A law that begins after some percent of the compute: before it, a bump that comes and goes,
    as when a format is learned and unlearned."""
    c = np.geomspace(300, 40000, 60)
    y = PAPER.value(c) + 0.15 * np.exp(-((np.log(c / 900) / 0.4) ** 2))
    return c, y + noise(60, seed, 0.004)


def test_an_early_phase_that_is_not_the_laws_is_cut_by_the_evidence_and_said():
    f = fit(*early_phase())
    assert sum(p for share, p in f.early if share > 0) > 0.9
    assert 0.01 < f.law_begins / f.end < 0.35
    assert "of the compute on" in words.law_begins(f).partition(", or")[0]
    assert f.to_dict()["early"]
    whole = fit(*curve(PAPER, 40000.0, np.random.default_rng(1), n=60, sd=0.004))
    assert dict(whole.early).get(0.0, 0.0) > 0.5
    assert "from the start of the window on" in words.law_begins(whole)


# -- falls ----------------------------------------------------------------------------------------


def test_a_fall_goes_on_from_where_it_is_falling_settling_or_recovering():
    f = fit(*fallen())
    assert f.alarm is not None and not f.identified
    low, high = f.predict([60000.0]).interval()[0]
    level = float(np.mean(fallen()[1][-4:]))
    assert low < level - 0.03 and high > level + 0.03
    assert f.predict([60000.0]).median[0] == pytest.approx(level, abs=0.05)


def test_futures_of_a_healthy_run_know_that_some_fall():
    """At ten times the compute 1 - exp(-.08 ln 10) = 17 % have begun to, most by a visible drop;
    shortly ahead hardly any."""
    f = fit(*curve(PAPER, 60000.0, np.random.default_rng(0), n=40))
    levels = f.predictive.levels(np.array([60000.0, 66000.0, 600000.0]))
    fallen_by_then = (levels[:, 1:] < levels[:, :1] - 0.02).mean(axis=0)
    assert fallen_by_then[0] < 0.04
    assert 0.13 < fallen_by_then[1] < 0.25


def test_an_alarm_that_was_cleared_is_told():
    c = np.arange(1.0, 41.0)
    y = np.where((c > 18) & (c < 24), 0.25, 0.5) + noise(40)
    spans = alarm_history(c, y, None)
    assert len(spans) == 1 and spans[0].cleared is not None
    assert 18 < spans[0].raised < spans[0].cleared < 32
    f = fit(c, y)
    assert f.alarm is None and f.alarms == spans
    (said,) = words.past_alarms(f)
    assert "raised at" in said and "cleared at" in said
    assert said in words.headline(forecast(f))
    assert f.to_dict()["alarms"] == [spans[0].to_dict()]


def test_a_healthy_run_keeps_its_verdict_over_one_that_declines():
    c, y = curve(PAPER, 40000.0, np.random.default_rng(3), n=40, sd=0.004)
    falling = 0.4 * fallen(seed=4)[1]
    pair = compare(fit(c, y, name="healthy"), fit(c, falling, name="falling")).pairs[0]
    assert (pair.verdict, pair.winner) == ("higher-ceiling", "healthy")
    assert pair.alarm is not None and "the other is in decline" in words.verdict(pair)
    # A winner that declines is none.
    high = np.minimum(1.4 * fallen(seed=4)[1], 1.0)
    pair = compare(fit(c, 0.5 * y, name="low"), fit(c, high, name="falling")).pairs[0]
    assert pair.verdict == "undecided" and "in decline" in words.verdict(pair)


# -- signs of trouble -----------------------------------------------------------------------------


def with_signs(**signs):
    c, y = curve(PAPER, 40000.0, np.random.default_rng(5), n=20)
    return Run("mine", c, y, x_kind="steps", signs={k: np.asarray(v) for k, v in signs.items()})


USUAL = [1.0 + 0.1 * (i % 3) for i in range(18)]


def test_a_gradient_that_explodes_widens_the_forecast_downwards_and_is_said():
    calm = fit(with_signs(grad_norm=[*USUAL, 1.1, 1.0]))
    wild = fit(with_signs(grad_norm=[*USUAL, 6.0, 9.0]))
    assert calm.signs == ()
    assert [s.name for s in wild.signs] == ["gradient norm"]
    assert any("signs of trouble: gradient norm" in w for w in wild.warnings)
    low = [f.predict([80000.0]).interval()[0, 0] for f in (calm, wild)]
    assert low[1] < low[0] - 0.02
    assert wild.to_dict()["signs"][0]["name"] == "gradient norm"


@pytest.mark.parametrize(
    ("metric", "now", "on"),
    [
        ("entropy", 0.1, True),
        ("entropy", 0.7, False),
        ("length", 2.0, True),
        ("truncated", 3.0, True),
        ("ess", 0.3, True),
        ("ess", 0.9, False),
        ("ratio_max", 80.0, True),
        ("ratio_max", 9.0, True),
        ("ratio_max", 4.0, False),
    ],
)
def test_each_sign_by_its_rule(metric, now, on):
    assert bool(find_signs({metric: np.array([*USUAL, now, now])})) == on


def test_signs_need_something_usual_to_leave():
    assert find_signs({"grad_norm": np.array([np.nan, 1.0, 1.0, 9.0])}) == ()
    assert find_signs({"grad_norm": np.array([0.0, 0, 0, 0, 0, 9.0, 9.0])}) == ()


# -- failed evaluations, sizes that change --------------------------------------------------------


def test_an_evaluation_on_few_samples_counts_for_less():
    """From the middle on every second evaluation has 16 samples and lies 0.1 too high."""
    c, y = curve(PAPER, 40000.0, np.random.default_rng(6), n=30, sd=0.004)
    sizes = np.full(30, 4000.0)
    few = np.arange(30) % 2 == 1
    few[:15] = False
    sizes[few] = 16.0
    spoiled = y + np.where(few, 0.1, 0.0)
    truth = fit(c, y).predict([80000.0]).median[0]
    told = fit(c, spoiled, sizes).predict([80000.0]).median[0]
    untold = fit(c, spoiled).predict([80000.0]).median[0]
    assert abs(told - truth) < 0.5 * abs(untold - truth)
    assert abs(told - truth) < 0.02
