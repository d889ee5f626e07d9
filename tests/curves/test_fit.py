"""fit and Fit: inputs of every kind, windows, R_0, and what short runs are told."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import PAPER, curve

from scalerl import InputError, Run, fit, fit_all, load_run
from scalerl.curves.least_squares import fit_sigmoid


def example(end=50000.0, n=40, seed=0, **kwargs):
    return curve(PAPER, end, np.random.default_rng(seed), n=n, **kwargs)


def test_same_points_give_the_same_answer():
    c, y = example()
    one, two = fit(c, y), fit(c, y)
    assert one.params == two.params
    np.testing.assert_array_equal(one.predict([9e4]).samples, two.predict([9e4]).samples)


def test_unit_of_compute_changes_only_c_mid():
    c, y = example()
    hours, seconds = fit(c, y), fit(c * 3600, y)
    for name in ("A", "B", "R_0"):
        assert hours.params[name] == pytest.approx(seconds.params[name], rel=0.03)
    assert seconds.params["C_mid"] / 3600 == pytest.approx(hours.params["C_mid"], rel=0.03)


def test_order_and_duplicates_do_not_matter():
    c, y = example()
    again = np.concatenate([c[::-1], c[:3]])
    scores = np.concatenate([y[::-1], y[:3]])
    assert fit(again, scores).params == fit(c, y).params


@pytest.mark.parametrize(
    ("compute", "score", "words"),
    [
        ([], [], "at least 5"),
        ([1.0], [0.5], "at least 5"),
        ([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], "at least 5"),
        ([1, 2, 3], [0.1, 0.2], "pair up"),
        ([-1, 2, 3, 4, 5], [0.1] * 5, "0 or more"),
        (range(1, 8), [10, 20, 30, 40, 50, 60, 70], "divide percent by 100"),
        (range(1, 8), [-1, -0.5, 0, 0, 0.2, 0.4, 0.5], "(r + 1) / 2"),
        (range(1, 8), ["a"] * 7, "must be numbers"),
        ([float("nan")] * 7, [0.1] * 7, "at least 5"),
    ],
)
def test_bad_points_are_refused_in_one_line(compute, score, words):
    with pytest.raises(InputError) as error:
        fit(compute, score)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "options",
    [{"r0": 1.5}, {"r0": "last"}, {"level": 90}, {"law": "linear"}, {"method": "mcmc"},
     {"method": "paper", "law": "power"}, {"method": "paper", "r0": "fit"}, {"lo": 1e9}],
)  # fmt: skip
def test_bad_options_are_refused_in_one_line(options):
    with pytest.raises(InputError) as error:
        fit(*example(), **options)
    assert "\n" not in str(error.value)


def test_r0_is_recorded_with_its_source():
    c, y = example()
    assert fit(c, y).r0_source == "fitted"
    assert fit(c, y, r0=0.31).r0_source == "given"
    assert fit(c, y, r0=0.31).params["R_0"] == pytest.approx(0.31, abs=0.01)
    assert fit(c, y, r0="first").r0_source == "first"
    measured = fit(np.concatenate([[0.0], c]), np.concatenate([[0.3], y]))
    assert measured.r0_source == "measured"
    assert fit(load_run("example:paper-8b")).warnings[0].startswith("R_0 fitted; the source states")


def test_unknown_evaluation_sizes_are_not_guessed_into_the_fit():
    c, y = example()
    n = np.full(len(c), 1000.0)
    some = np.where(np.arange(len(c)) % 3 == 0, np.nan, n)
    assert fit(c, y, some).params == fit(c, y, n).params
    assert fit(c, y, np.full(len(c), np.nan)).params == fit(c, y).params
    assert fit(c, y, 1000).params == fit(c, y, n).params
    run = Run("r", c, y, x_kind="steps", n_eval=some)
    assert fit(run).params == fit(c, y, n).params
    with pytest.raises(InputError):
        fit(c, y, 0)


def test_window_keeps_the_rest_as_held_out():
    run = load_run("example:paper-8b")
    f = fit(run, lo=1500, hi=25000)
    assert len(f.points) == 15
    assert len(f.run) == 34
    assert f.window == (2670.0, 21234.0)


def test_short_run_is_not_identified_and_says_so():
    f = fit(*example(end=6000.0))
    assert not f.identified
    assert any("not identified" in w for w in f.warnings)
    assert "not identified" in repr(f)
    low, high = f.interval("A")
    assert high - low > 0.2


def test_open_end_of_c_mid_is_null_in_json():
    rng = np.random.default_rng(0)
    c = np.linspace(1, 30, 30)
    f = fit(c, 0.1 + 0.0004 * c + 0.001 * rng.standard_normal(30))
    assert f.interval("C_mid")[1] == np.inf
    assert f.to_dict()["intervals"]["C_mid"][1] is None
    json.dumps(f.to_dict(), allow_nan=False)


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_constant_runs_are_handled(level):
    f = fit(np.arange(1, 30.0), np.full(29, level))
    ahead = f.predict([60.0]).interval(0.9)[0]
    assert ahead[0] <= level <= ahead[1]
    assert f.alarm is None


def test_declining_run_raises_the_alarm_and_is_not_identified():
    c, y = example(end=60000.0, n=60)
    y[45:] -= np.linspace(0.02, 0.25, 15)
    f = fit(c, y)
    assert f.alarm is not None and not f.identified
    ahead = f.predict([120000.0])
    assert ahead.alarm == f.alarm
    assert ahead.median[0] < 0.5  # not pulled back up to the law


def test_one_wild_evaluation_hardly_moves_the_forecast():
    c, y = example()
    spoiled = y.copy()
    spoiled[20] = 0.02
    calm, wild = fit(c, y).predict([1e5]), fit(c, spoiled).predict([1e5])
    assert abs(calm.median[0] - wild.median[0]) < 0.03


def test_fit_all_takes_the_same_options():
    runs = [load_run("example:paper-8b"), load_run("example:paper-moe")]
    fits = fit_all(runs, lo=1500)
    assert [f.name for f in fits] == ["paper-8b", "paper-moe"]
    assert all(f.window[0] >= 1500 for f in fits)


def test_result_dictionary_has_the_promised_keys():
    d = fit(load_run("example:paper-8b"), lo=1500, level=0.8).to_dict()
    assert {"run", "law", "method", "x", "n_points", "window", "params", "intervals", "level",
            "identified", "alarm", "rmse", "warnings"} <= set(d)  # fmt: skip
    assert set(d["params"]) == {"R_0", "A", "B", "C_mid"}
    assert set(d["intervals"]) == {"A", "B", "C_mid"}
    assert d["x"] == "gpu_hours" and d["level"] == 0.8


def test_least_squares_is_the_global_optimum():
    """Never worse than a local optimiser started from many places."""
    from scipy.optimize import minimize

    for seed in range(6):
        c, y = example(end=[4000, 9000, 30000][seed % 3], n=25, seed=seed, sd=0.02)
        ours = fit_sigmoid(c, y)

        def cost(p, c=c, y=y):
            r0, a, lb, lm = p
            low, high = np.clip([r0, max(a, r0)], 0, 1)
            f = 1 / (1 + np.exp(np.clip(-np.exp(lb) * (np.log(c) - lm), -700, 700)))
            return ((low + (high - low) * f - y) ** 2).sum()

        best = np.inf
        for b in (0.5, 1.5, 5.0):
            for mid in (1000.0, 5000.0, 20000.0, 100000.0):
                start = [0.3, 0.7, np.log(b), np.log(mid)]
                settings_ = {"maxiter": 2000, "xatol": 1e-6, "fatol": 1e-12}
                found = minimize(cost, start, method="Nelder-Mead", options=settings_)
                best = min(best, found.fun)
        assert ours.sse <= best * (1 + 1e-4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e15, allow_subnormal=False), st.floats(0, 1)),
        min_size=5,
        max_size=60,
        unique_by=lambda p: p[0],
    )
)
def test_any_scores_in_range_give_finite_ordered_quantiles(points):
    compute, score = np.array(points).T
    if (compute > 0).sum() < 4:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = fit(compute, score)
        end = f.end
        q = f.predict([end / 2, end, 2 * end, 1e3 * end]).quantiles([0.05, 0.25, 0.5, 0.75, 0.95])
    assert np.isfinite(q).all()
    assert (np.diff(q, axis=1) >= 0).all()
    assert q.min() >= 0 and q.max() <= 1
    for name in ("A", "B", "C_mid", "R_0"):
        assert np.isfinite(f.quantiles(name, [0.05, 0.5, 0.95])).all()


def test_cost_grows_no_faster_than_the_points():
    import time

    def seconds(n):
        c, y = example(n=n)
        fit(c, y)
        best = np.inf
        for _ in range(5):
            start = time.process_time()
            fit(c, y)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(20000) < 40 * seconds(500)


def test_run_is_shown_by_its_own_name():
    run = Run("mine", *example(), x_kind="tokens")
    assert "Fit of 'mine': sigmoid, 40 points, tokens" in repr(fit(run))
