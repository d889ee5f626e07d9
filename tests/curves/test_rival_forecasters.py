"""The forecasters of benchmarks/forecasters: the sampler against exact posteriors, and each rival
on a curve that it can describe."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from forecasters import forecasters
from forecasters.families import Domhan, LcPfn
from forecasters.ft_pfn import FtPfn
from forecasters.posterior import Points
from forecasters.smc import prior_draws, sample
from scalerl import InputError, Run, backtest, fit


def rising(n=40, end=1000.0, sd=0.01):
    """A run that rises from 0.2 towards 0.7 like 1 / x, and has nearly arrived."""
    x = np.linspace(0.0, end, n)
    noise = sd * np.random.default_rng(0).standard_normal(n)
    return Run(
        "rising", x_kind="steps", compute=x, score=0.7 - 0.5 / (1.0 + 12.0 * x / end) + noise
    )


def test_sampler_finds_the_posterior_of_a_linear_model():
    # y = z_1 + 2 z_2 + noise of sd 0.1: the posterior is normal, with this mean and covariance.
    a = np.array([1.0, 2.0, 0.0])
    covariance = np.linalg.inv(np.eye(3) + np.outer(a, a) / 0.1**2)
    mean = covariance @ a * 3.0 / 0.1**2
    prior = np.random.default_rng(1).standard_normal((4000, 3))
    z = sample(lambda z: -0.5 * ((z @ a - 3.0) / 0.1) ** 2, prior, np.random.default_rng(2))
    assert np.allclose(z.mean(axis=0), mean, atol=0.06)
    assert np.allclose(np.cov(z.T), covariance, atol=0.08)


def test_sampler_weighs_two_modes_alike():
    def two_modes(z):
        return -0.5 * ((np.abs(z[:, 0]) - 1.5) / 0.05) ** 2

    prior = np.random.default_rng(3).standard_normal((2000, 2))
    z = sample(two_modes, prior, np.random.default_rng(4))
    assert 0.4 < (z[:, 0] > 0).mean() < 0.6


def test_bins_keep_the_likelihood_of_all_points():
    x = np.arange(200.0)
    score = 0.3 + 0.1 * np.random.default_rng(5).standard_normal(200)
    run = Run("flat", x_kind="steps", compute=x, score=np.clip(score, 0.0, 1.0))
    few, every = Points.from_run(run, bins=20), Points.from_run(run, bins=500)
    assert len(few.score) == 20 and len(every.score) == 200
    sd = np.array([0.1])
    binned, whole = (p.log_likelihood(np.full((1, len(p.score)), 0.35), sd) for p in (few, every))
    assert binned == pytest.approx(whole)


@pytest.mark.parametrize("curves", [LcPfn(), Domhan(), FtPfn()])
def test_draws_keep_the_constraints_of_the_prior(curves):
    rng = np.random.default_rng(6)
    z = prior_draws(lambda z: curves.allowed(curves.values(z, curves.checked)), 500,
                    curves.dimensions, rng)  # fmt: skip
    values = curves.values(z, np.linspace(0.0, 1.0, 50))
    assert np.isfinite(values).all() and np.isfinite(curves.values(3.0 * z, curves.checked)).all()
    if not isinstance(curves, FtPfn):
        assert (values[:, -1] > values[:, 0]).all() and values[:, -1].max() <= 1.0


@pytest.mark.parametrize("name", list(forecasters([])))
def test_forecasts_continue_a_curve_that_the_rival_can_describe(name):
    run = rising()
    fitted = forecasters([run])[name](run.window(None, 600.0))
    low, median, high = fitted.predict([1000.0]).quantiles([0.05, 0.5, 0.95])[0]
    assert low <= median <= high
    assert abs(median - 0.66) < 0.04
    assert 0.002 < high - low < 0.25


def test_ft_pfn_continues_a_fall_and_lc_pfn_does_not():
    """Curves turn back after their saturation under the prior of FT-PFN; LC-PFN's do not."""
    x = np.linspace(0.0, 1000.0, 60)
    noise = 0.01 * (-1.0) ** np.arange(60)
    risen = 0.2 + 0.4 * (1.0 - np.exp(-x / 80.0)) - 0.0006 * np.maximum(x - 300.0, 0.0)
    run = Run("turning", x_kind="steps", compute=x, score=risen + noise)
    ahead = {}
    for name in ("LC-PFN's prior", "FT-PFN's prior"):
        fitted = forecasters([run])[name](run.window(None, 600.0))
        ahead[name] = float(fitted.predict([1000.0]).median[0])
    assert ahead["FT-PFN's prior"] < risen[x <= 600.0][-1] - 0.05
    assert ahead["LC-PFN's prior"] > risen[x <= 600.0][-1]


def test_backtest_takes_forecasters_of_ones_own():
    run = rising()
    result = backtest([run], methods={"mine": lambda seen: fit(seen, law="no-change")})
    built_in = backtest([run], methods=["no change"])
    assert {s.method for s in result.scores} == {"mine"}
    assert [s.crps for s in result.scores] == [s.crps for s in built_in.scores]
    with pytest.raises(InputError, match="no method 'mine'"):
        backtest([run], methods=["mine"])
