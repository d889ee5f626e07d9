"""One amount of compute has one forecast, whatever else is asked in the same call."""

import numpy as np
import pytest

from scalerl import fit, forecast, load_run


@pytest.fixture(scope="module")
def window():
    return fit(load_run("example:paper-8b"), lo=1500, hi=50_000)


@pytest.mark.parametrize("observed", [False, True])
def test_a_forecast_does_not_depend_on_the_other_amounts_of_the_call(window, observed):
    asked = 2 * window.end
    alone = window.predict([asked]).quantiles([0.05, 0.5, 0.95], observed)[0]
    among = window.predict([0.5 * window.end, window.end, 1.3 * window.end, asked, 9 * window.end])
    np.testing.assert_array_equal(among.quantiles([0.05, 0.5, 0.95], observed)[3], alone)


def test_the_score_of_now_is_the_curve_at_the_end_of_the_window(window):
    ahead = forecast(window)
    assert ahead.at.median_now == window.predict([2000.0, window.end, 80_000.0]).median[1]


def test_each_amount_by_itself_has_the_distribution_of_the_path(window):
    knots = window.end * np.geomspace(1.1, 8.0, 6)
    paths = np.quantile(window.predictive.levels(knots), [0.05, 0.5, 0.95], axis=0).T
    apart = window.predict(knots).quantiles([0.05, 0.5, 0.95])
    # Monte Carlo error of a tail quantile of 4,000 draws: about 4 % of the interval's width.
    width = (apart[:, 2] - apart[:, 0])[:, None]
    assert (np.abs(paths - apart) < 0.12 * width).all()


def test_the_mean_of_several_evaluations_is_that_of_paths(window):
    """Levels of one path go together, so their mean is nearly as open as each of them; the mean of
    levels that were drawn apart from each other would seem to be known far better. Without falls,
    whose rare depth is most of a mean's width either way."""
    ahead = window.predict(window.end * np.linspace(1.5, 4.0, 12), healthy=True)
    low, high = ahead.mean_quantiles([0.05, 0.95])
    paths = ahead.predictive.levels(ahead.compute)
    rng = np.random.default_rng(0)

    def width(levels):
        noise = window.predictive.noise() * rng.standard_normal(len(levels)) / np.sqrt(12)
        ends = np.quantile(levels.mean(axis=1) + noise, [0.05, 0.95])
        return ends[1] - ends[0]

    assert high - low == pytest.approx(width(paths), rel=0.1)
    assert width(rng.permuted(paths, axis=0)) < 0.6 * (high - low)
