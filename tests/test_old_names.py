"""Names of version 0.1 that were changed since: they work, and say what they are called now."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from scalerl import compare, fit, load_run, load_runs


def test_a_fit_still_forecasts_and_says_that_it_predicts_now() -> None:
    found = fit(load_run("example:paper-8b"), lo=1500)
    with pytest.warns(DeprecationWarning, match=r"Fit.forecast is now Fit.predict.*until.*0\.4"):
        old = found.forecast([50_000, 100_000])
    assert np.array_equal(old.median, found.predict([50_000, 100_000]).median)
    with pytest.warns(DeprecationWarning, match="Fit.belief is now Fit.predictive"):
        assert found.belief is found.predictive


def test_comparisons_and_callbacks_have_their_old_names() -> None:
    found = compare(load_runs("example:paper-8b", "example:paper-moe"))
    with pytest.warns(DeprecationWarning, match="Comparison.groups is now Comparison.arms"):
        assert found.groups is found.arms
    callbacks = pytest.importorskip("scalerl.callbacks")
    callback = callbacks.ForecastCallback("eval_reward")
    with pytest.warns(DeprecationWarning, match="ForecastCallback.outlook is now .*forecast"):
        assert callback.outlook() is None


def test_fits_can_still_be_pickled_and_copied() -> None:
    found = fit(load_run("example:paper-8b"), lo=1500)
    copied = copy.deepcopy(found)
    assert np.array_equal(copied.predict([1e5]).median, found.predict([1e5]).median)


def test_a_name_that_never_was_is_refused() -> None:
    found = fit(load_run("example:paper-8b"), lo=1500)
    with pytest.raises(AttributeError, match="'Fit' object has no attribute 'foresee'"):
        _ = found.foresee
