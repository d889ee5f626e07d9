"""Names of version 0.1 that were changed since: they work, and say what they are called now."""

from __future__ import annotations

import numpy as np
import pytest

from scalerl import fit, load_run


def test_a_fit_still_forecasts_and_says_that_it_predicts_now() -> None:
    found = fit(load_run("example:paper-8b"), lo=1500)
    with pytest.warns(DeprecationWarning, match=r"Fit.forecast is now Fit.predict.*until.*0\.4"):
        old = found.forecast([50_000, 100_000])
    assert np.array_equal(old.median, found.predict([50_000, 100_000]).median)
    with pytest.warns(DeprecationWarning, match="Fit.belief is now Fit.predictive"):
        assert found.belief is found.predictive


def test_a_name_that_never_was_is_refused() -> None:
    found = fit(load_run("example:paper-8b"), lo=1500)
    with pytest.raises(AttributeError, match="'Fit' object has no attribute 'foresee'"):
        _ = found.foresee
