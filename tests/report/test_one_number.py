"""One quantity has one number on a page, and none where a number would mislead."""

from dataclasses import replace

import numpy as np
from made_runs import climbing, declining, known

from scalerl.curves.fit import fit
from scalerl.curves.forecast import default_compute, forecast
from scalerl.report import words
from scalerl.report.html import write_report
from scalerl.report.page import facts
from scalerl.report.series import quick_curve, series
from scalerl.report.sorting import FORECAST, sort_by
from scalerl.report.table import number_cell
from scalerl.report.terminal import forecast_table


def test_a_ceiling_of_one_is_not_an_interval_of_one_number():
    fitted = known()
    sure = replace(fitted.predictive.posterior.draws, a=np.linspace(0.99962, 0.99999, 4000))
    sure = replace(sure, r0=np.full(4000, 0.1), log_mid=np.full(4000, np.log(50.0)))
    posterior = replace(fitted.predictive.posterior, draws=sure, u_end=np.zeros(4000))
    predictive = replace(fitted.predictive, posterior=posterior)
    f = replace(fitted, identified=True, predictive=predictive, params={**fitted.params, "A": 1.0})
    value, spread = words.ceiling_and_range(f)
    assert value == "1.000" and spread.startswith("0.999") and spread.endswith(" or more")
    assert "1.000 to 1.000" not in words.ceiling_in_words(f)
    assert (
        words.to((0.99962, 1.0)) == "0.9996 or more" and words.to((0.99, 1.0)) == "0.990 to 1.000"
    )
    cell = number_cell(1.0, (0.9998, 1.0), words.score)
    assert cell.to_text() == "1.000 [0.9998 or more]"


def test_a_run_in_decline_has_no_gain_anywhere(tmp_path):
    ill, well = forecast(declining()), forecast(known())
    assert {name: value for name, value, _ in facts(ill)}["Next doubling"] == "none"
    said = " ".join(words.headline(ill))
    assert "No gain of a further doubling is quoted" in said
    assert "doubling of compute buys" not in said
    assert ": none, run in decline" in forecast_table([ill])
    for column in ("gain", "-gain"):
        assert sort_by([ill, well], FORECAST, column) == [well, ill]
    write_report([ill.fit, well.fit], tmp_path)
    twin = (tmp_path / "report.md").read_text()
    assert "buys most for climbing" in twin and "buys most for falling" not in twin


def test_the_fitted_score_of_now_stands_beside_the_measured_one():
    f = known()
    last = words.score(float(f.points.score[-1]))
    name, value, note = facts(forecast(f))[0]
    assert name == "Now" and value != last and f"the last validation measured {last}" in note
    assert f"by the fit (the last validation measured {last})" in words.headline(forecast(f))[0]


def test_a_forecast_near_the_last_evaluation_is_made_there():
    """At twice the window it would be a second number beside the score that was measured."""
    run = climbing(n=41, last=100_000.0)
    half = fit(run, hi=52_000.0)
    assert half.end < 52_000 and default_compute(half) == run.compute[-1]
    ahead = forecast(half)
    assert ahead.at.median[0] == ahead.measured.median
    early = fit(run, hi=10_000.0)
    assert default_compute(early) == 2 * early.end
    assert default_compute(fit(run)) == 200_000.0


def test_the_line_is_the_same_on_every_page():
    f = known()
    x, median, band = quick_curve(f, to=200_000.0, at=[150_000.0])
    drawn = series(f, 200_000.0, [150_000.0])
    assert (x == drawn.x).all() and (median == drawn.median).all() and (band == drawn.band).all()
    assert 150_000.0 in x and f.end in x and len(x) > 60
    # Between two knots the line is as good as straight: a finer one is the same line.
    between = np.sqrt(x[1:] * x[:-1])
    finer = np.concatenate([f.predict(part).median for part in np.array_split(between, 8)])
    assert np.abs(finer - np.interp(np.log(between), np.log(x), median)).max() < 0.004
