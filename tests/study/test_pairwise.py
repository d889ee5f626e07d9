"""A variant beside the reference: compute to a target, crossings, one ceiling, both axes."""

import numpy as np
import pytest

from made_study import made_study
from scalerl import Study, fit
from scalerl.cli import main
from scalerl.cli.study_view import pairwise_text
from scalerl.curves.arms import Arm
from scalerl.errors import InputError
from scalerl.study.pairwise import compute_to, curve_crossing


def arm(name, ceiling, middle, end=250, seed=0):
    """Three runs of a known curve."""
    c = np.linspace(5, end, 40)
    rng = np.random.default_rng((seed, len(name)))
    true = 0.1 + (ceiling - 0.1) / (1 + (middle / c) ** 2)
    noisy = [true + 0.004 * rng.standard_normal(40) for _ in range(3)]
    return Arm(name, tuple(fit(c, y, name=f"{name}-{i}") for i, y in enumerate(noisy)))


def test_compute_to_a_target_is_where_the_curve_passes_it():
    found = compute_to(arm("quick", 0.8, 40), 0.6)
    true = 40 * (0.5 / 0.2) ** 0.5
    assert found.probability == 1.0
    assert found.interval[0] < true < found.interval[1]
    assert found.median == pytest.approx(true, rel=0.05)
    never = compute_to(arm("quick", 0.8, 40), 0.95)
    assert never.probability < 0.1 and np.isinf(never.median)


def test_curves_that_cross_inside_the_budget_are_found_where_they_do():
    quick, high = arm("quick", 0.6, 20), arm("high", 0.9, 80)
    c = np.linspace(5, 250, 4000)
    gap = (0.5 / (1 + (20 / c) ** 2)) - (0.8 / (1 + (80 / c) ** 2))
    true = c[np.flatnonzero(gap < 0)[0]]
    found = curve_crossing(quick, high, 250)
    assert found.at_all > 0.99 and found.within_budget > 0.99 and found.overtakes == "high"
    assert found.interval[0] < true < found.interval[1]
    assert found.compute == pytest.approx(true, rel=0.1)


def test_a_crossing_ahead_is_not_within_the_budget():
    quick, high = arm("quick", 0.6, 40, end=120), arm("high", 0.9, 160, end=120)
    found = curve_crossing(quick, high, 120)
    assert found.at_all > 0.75 and found.within_budget < 0.2 and found.overtakes == "high"
    assert found.compute > 120


def test_alike_curves_and_parallel_ones_do_not_cross():
    a, b, below = arm("a", 0.7, 40), arm("b", 0.7, 40, seed=1), arm("below", 0.5, 40)
    assert curve_crossing(a, b, 250).at_all < 0.1
    assert curve_crossing(a, below, 250).at_all < 0.02


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("beside") / "study"
    made_study(path, variants=4, seeds=3, evals=40, steps=200)
    return Study(path)


def test_rows_have_target_fixed_ceiling_and_the_axes_that_disagree(study):
    reference, _, slower, shorter = study.to_dict()["table"]
    assert reference["target"]["score"] == pytest.approx(0.9 * reference["A"])
    ratio = slower["target"]["compute"]["median"] / reference["target"]["compute"]["median"]
    assert 1.6 < ratio < 2.5, "twice as slow"
    assert slower["fixed_A"]["B"] == pytest.approx(slower["fixed_A"]["B_reference"], rel=0.3)
    assert set(slower["axes"]) == {"gpu_hours", "tokens", "flops"}
    assert {a["side"] for a in slower["axes"].values()} == {"slower"}
    assert slower["axes_disagree"] is None
    # A step of it takes half the hours, and buys as much.
    assert shorter["axes_disagree"] == "faster on device-hours, not on tokens and FLOPs"
    assert shorter["axes"]["gpu_hours"]["compute_ratio"]["median"] == pytest.approx(0.5, rel=0.1)


def test_the_terminal_and_the_page_say_it(study, tmp_path, capsys):
    said = pairwise_text(study.table())
    assert "is faster on device-hours, not on tokens and FLOPs" in " ".join(said.split())
    assert "times narrower than unpaired" in said
    assert max(map(len, said.splitlines())) <= 110
    assert main(["report", str(study.path), "-o", str(tmp_path), "--target", "0.6"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert ">Compared with the reference</h3>" in page and "a pass rate of 0.600" in page
    assert "not on tokens and FLOPs" in page and "narrower" in page


def test_a_notebook_shows_the_table(study):
    shown = study._repr_html_()
    assert shown.count("<tr>") == 1 + len(study.variants) and "on the same prompts" in shown
    assert "Study(" in shown and "the reference" in shown


def test_a_target_that_is_no_score_is_refused(study):
    study.target = 70.0
    try:
        with pytest.raises(InputError, match="a target is a score in"):
            study.table()
    finally:
        study.target = None
