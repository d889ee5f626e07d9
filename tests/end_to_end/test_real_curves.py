"""The back-test on real RL curves that are kept beside the project, where they are present.

The bounds are promises made before the method was tuned; the protocol is backtest.py's. Guards
against having fitted these very files are in docs/explanation/calibration.md.
"""

import csv
from pathlib import Path

import pytest

from scalerl import load_runs
from scalerl.curves.backtest import backtest

DATA = Path(__file__).parents[3] / "shared" / "data"
CONTROLS = ("arvind", "tathagata")  # training reward only: noise, not validation

pytestmark = pytest.mark.skipif(
    not (DATA / "runs.csv").exists(), reason="the real curves are not beside the project"
)


def classes():
    with (DATA / "index.csv").open(newline="") as file:
        return {
            row["run_id"]: "control"
            if row["run_id"].startswith(CONTROLS)
            else "declining"
            if row["cls"] in ("decline", "collapse")
            else "healthy"
            for row in csv.DictReader(file)
        }


@pytest.fixture(scope="module")
def steps():
    """On runs of 12 points and more, as the promises and the figures of others were made."""
    runs = load_runs(str(DATA / "runs.csv"), group_by="source")
    return backtest([r for r in runs if len(r) >= 12], classes=classes())


def row(result, method="scalerl", **only):
    (found,) = [r for r in result.summary(run_class="healthy", **only) if r["method"] == method]
    return found


def test_healthy_curves_are_forecast_well_and_honestly(steps):
    ours = row(steps)
    assert ours["tasks"] == 71
    assert ours["crps"] <= 0.0168
    assert ours["skill"] >= 0.5
    assert 0.88 <= ours["cover90"] <= 0.97
    assert 0.42 <= ours["cover50"] <= 0.62
    assert ours["width90"] <= 0.14


@pytest.mark.xfail(
    strict=True,
    reason="kept while the walk was rougher early in the window and no part of it was cut "
    "(calibration.md); with cuts by evidence the median error at half is .0142",
)
def test_a_promise_that_is_not_kept_now(steps):
    assert row(steps, fraction=0.5)["median_error"] <= 0.0125


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75])
def test_never_worse_than_the_papers_procedure(steps, fraction):
    assert row(steps, fraction=fraction)["crps"] <= row(steps, "paper", fraction=fraction)["crps"]


def test_single_held_out_points_are_covered_too(steps):
    assert row(steps)["point_cover90"] >= 0.85


def test_the_rivals_do_what_is_known_of_them(steps):
    """The baselines are the real ones: these are the figures others measured for them."""
    assert row(steps, "paper")["median_error"] == pytest.approx(0.0136, abs=0.001)
    assert row(steps, "paper")["crps"] == pytest.approx(0.0188, abs=0.001)
    assert row(steps, "power law")["crps"] == pytest.approx(0.0307, abs=0.002)
    assert row(steps, "no change")["median_error"] == pytest.approx(0.0201, abs=0.001)
    assert row(steps, "no change")["crps"] == pytest.approx(0.0353, abs=0.003)


def test_other_axes_are_forecast_as_well():
    runs = load_runs(str(DATA / "runs_alt_x.csv"), group_by="source")
    runs = [r for r in runs if not r.name.startswith(CONTROLS)]
    result = backtest(runs, methods=["no change", "scalerl"])
    ours = row(result)
    assert ours["skill"] >= 0.5
    assert ours["cover90"] >= 0.88
    assert ours["crps"] <= 0.0175
