"""The last evaluation after a fitted window stands beside its forecast: on the page, in its twin,
in the JSON and in the terminal."""

import json
import re

import numpy as np
import pytest
from made_runs import climbing

from scalerl.cli import main
from scalerl.curves.fit import fit
from scalerl.curves.forecast import forecast
from scalerl.curves.noise import sampling_interval
from scalerl.report import words
from scalerl.report.html import write_report

WINDOW = ["example:paper-8b", "--from", "1500", "--to", "50000"]


def test_report_and_forecast_put_the_measured_end_beside_its_forecast(tmp_path, capsys):
    assert main(["report", *WINDOW, "-o", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert main(["forecast", *WINDOW]) == 0
    forecast_printed = " ".join(capsys.readouterr().out.split())
    end = json.loads((tmp_path / "report.json").read_text())["forecasts"][0]["measured"]
    assert end["compute"] == pytest.approx(89367, rel=1e-3) and end["inside"] is True
    low, high = end["forecast"]["observed_interval"]
    assert low <= end["score"] <= high
    score, median = words.score(end["score"]), words.score(end["forecast"]["median"])
    observed = words.to((low, high))
    sentence = (
        f"Measured at 89.4k GPU-hours: {score}. Forecast there: {median} (90 % of one "
        f"evaluation: {observed}); the measured value lies inside."
    )
    twin = (tmp_path / "report.md").read_text()
    page = re.sub(r"<[^>]*>", " ", (tmp_path / "report.html").read_text())
    for text in (printed, forecast_printed, twin, page):
        assert sentence in text
    tile = f"- Measured at 89.4k: **{score}** inside the forecast {median}, {observed}"
    assert tile in twin
    row = twin.split("Last evaluation after the fitted window")[1].split("\n")[4]
    assert row.endswith(f"| {observed} | inside |") and f"| {score} |" in row


def test_a_measured_end_has_the_interval_of_its_samples_and_may_lie_outside(tmp_path):
    run = climbing(n=40, last=120_000.0)
    fallen = np.where(run.compute > 60_000.0, 0.2, run.score)
    run = run.replace(score=fallen, n_eval=np.full(40, 800.0))
    ahead = forecast(run, hi=60_000.0)
    end = ahead.measured
    assert end is not None and not end.inside and end.score == 0.2
    assert end.sampling == sampling_interval(0.2, 800.0, 0.9)
    assert end.sampling[0] < 0.2 < end.sampling[1]
    write_report([ahead.fit], tmp_path, forecasts=[ahead])
    twin = (tmp_path / "report.md").read_text()
    assert f"0.200 (90 % by its samples: {words.to(end.sampling)})" in twin
    assert "the measured value lies outside." in twin and "| outside |" in twin


def test_nothing_is_measured_after_a_window_that_holds_the_whole_run(tmp_path):
    ahead = forecast(fit(climbing()))
    assert ahead.measured is None and ahead.to_dict()["measured"] is None
    write_report([ahead.fit], tmp_path)
    assert "Measured" not in (tmp_path / "report.md").read_text()
