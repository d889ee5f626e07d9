"""The paper's own numbers, from its digitised Figure 1."""

import numpy as np
import pytest

from scalerl import fit, load_run
from scalerl.curves import paper
from scalerl.curves.least_squares import fit_sigmoid

PAPER_8B = load_run("example:paper-8b")
PAPER_MOE = load_run("example:paper-moe")


@pytest.mark.parametrize(
    ("run", "lo", "hi", "a", "b", "mid"),
    [
        (PAPER_8B, 5000, 50000, 0.640, 1.71, 10579),
        (PAPER_MOE, 1500, 16000, 0.710, 1.65, 6952),
    ],
)
def test_papers_procedure_to_the_letter(run, lo, hi, a, b, mid):
    f = fit(run, method="paper", lo=lo, hi=hi)
    assert f.params["A"] == pytest.approx(a)
    assert f.params["B"] == pytest.approx(b, abs=0.005)
    assert f.params["C_mid"] == pytest.approx(mid, abs=1)
    assert f.r0_source == "given"


@pytest.mark.parametrize(
    ("run", "lo", "hi", "a", "b", "mid", "error"),
    [
        (PAPER_8B, 1500, 50000, 0.630, 1.91, 10176, 0.0129),
        (PAPER_8B, 5000, 50000, 0.640, 1.71, 10579, 0.0067),
        (PAPER_8B, 0, 100000, 0.645, 1.69, 10982, None),
        (PAPER_8B, 1500, 25000, 0.610, 2.13, 8967, 0.0203),
        (PAPER_8B, 1500, 12000, 0.780, 1.64, 16624, 0.0743),
        (PAPER_MOE, 1500, 16000, 0.710, 1.65, 6952, 0.0065),
        (PAPER_MOE, 0, 45000, 0.720, 1.56, 7355, None),
    ],
)
def test_the_same_optimum_by_the_fast_search(run, lo, hi, a, b, mid, error):
    w = run.window(lo, hi)
    found = paper.fit_paper_fast(
        w.compute, w.score, run.r0, paper.PAPER_A_GRID, paper.PAPER_MID_GRID
    )
    assert pytest.approx(a) == found.formula.A
    assert pytest.approx(b, abs=0.006) == found.formula.B
    assert found.formula.C_mid == pytest.approx(mid, abs=1)
    if error is not None:
        rest = run.compute > hi
        held_out = np.abs(found.formula.value(run.compute[rest]) - run.score[rest]).mean()
        assert held_out == pytest.approx(error, abs=6e-5)


def test_fast_search_reaches_the_sum_of_squares_of_curve_fit_in_every_cell():
    w = PAPER_8B.window(1500, 50000)
    a_grid, mid_grid = np.linspace(0.5, 0.8, 7), np.linspace(2000, 30000, 8)
    slow = paper.fit_paper(w.compute, w.score, 0.4017, a_grid, mid_grid)
    fast = paper.fit_paper_fast(w.compute, w.score, 0.4017, a_grid, mid_grid)
    # Where no B > 0 helps, curve_fit wanders below 0: such cells are never the best one.
    sane = slow.b_grid > paper.FAST_B[0]
    np.testing.assert_allclose(fast.sse_grid[sane], slow.sse_grid[sane], rtol=1e-5)
    assert slow.sse_grid[~sane].min() > 10 * slow.sse


@pytest.mark.parametrize(
    ("lo", "hi", "a"), [(1500, 50000, 1.000), (0, 100000, 1.000), (5000, 50000, 0.725)]
)
def test_power_law_fails_as_the_paper_says(lo, hi, a):
    f = fit(PAPER_8B, law="power", lo=lo, hi=hi)
    assert f.params["A"] == pytest.approx(a, abs=0.001)
    assert not f.identified


@pytest.mark.parametrize(
    ("run", "lo", "hi", "limit"),
    [
        (PAPER_8B, 1500, 50000, 0.006),
        (PAPER_8B, 1500, 25000, 0.015),
        (PAPER_MOE, 1500, 16000, 0.009),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_held_out_points_lie_near_the_median_and_inside_the_band(run, lo, hi, limit, given):
    f = fit(run, lo=lo, hi=hi, r0=run.r0 if given else None)
    rest = run.compute > hi
    ahead = f.predict(run.compute[rest])
    assert np.abs(ahead.median - run.score[rest]).mean() <= limit
    low, high = ahead.interval(0.9, observed=True).T
    assert ((low <= run.score[rest]) & (run.score[rest] <= high)).all()


def test_ceiling_of_the_whole_run_is_the_papers_within_its_margin():
    f = fit(PAPER_8B, lo=1500)
    assert f.identified
    assert f.params["A"] == pytest.approx(0.645, abs=0.02)


def test_grids_are_rescaled_when_the_unit_is_not_the_papers():
    steps = PAPER_8B.replace(compute=PAPER_8B.compute / 13.5, x_kind="steps")
    a_grid, mid_grid = paper.grids(steps.compute, steps.score, 0.4017, paper_scale=False)
    assert mid_grid[-1] == pytest.approx(2 * steps.compute[-1])
    found = paper.fit_paper_fast(steps.compute, steps.score, 0.4017, a_grid, mid_grid)
    assert pytest.approx(0.645, abs=0.02) == found.formula.A
    assert found.formula.C_mid * 13.5 == pytest.approx(10982, rel=0.15)


@pytest.mark.parametrize("r0", [0.35, 0.4017])
def test_least_squares_is_never_worse_than_the_papers_grid(r0):
    for lo, hi in [(1500, 25000), (1500, 50000), (0, 1e6)]:
        w = PAPER_8B.window(lo, hi)
        cells = paper.fit_paper_fast(
            w.compute, w.score, r0, paper.PAPER_A_GRID, paper.PAPER_MID_GRID
        )
        assert fit_sigmoid(w.compute, w.score, r0=r0).sse <= cells.sse


@pytest.mark.parametrize(
    ("lo", "hi", "a"),
    [(1500, 50000, 0.645), (0, 50000, 0.645), (5000, 50000, 0.645), (0, 100000, 0.655)],
)
def test_every_window_of_the_papers_table_allows_its_ceiling(lo, hi, a):
    """The paper's robustness table: whatever the window, and wherever the evidence says that the
    law begins in it, the interval holds the paper's ceiling and the median is near it."""
    f = fit(PAPER_8B, lo=lo, hi=hi)
    low, high = f.interval("A", 0.9)
    assert low <= a <= high
    assert f.params["A"] == pytest.approx(a, abs=0.035)
    assert sum(p for _, p in f.early) == pytest.approx(1.0)
