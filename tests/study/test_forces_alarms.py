"""Scoring signs of a collapse on made records."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def alarms():
    import forces_alarms

    return forces_alarms


def rows(ess):
    return [{"step": i + 1, "ess": value} for i, value in enumerate(ess)]


def made(alarms, name, force, ess, collapse=None):
    values = {sign.name: alarms.smoothed(sign, rows(ess)) for sign in alarms.SIGNS}
    return alarms.Watched(name, force, collapse, tuple(range(1, len(ess) + 1)), values)


def test_a_sign_that_falls_before_the_collapse_is_caught_with_its_lead(alarms):
    sign = next(s for s in alarms.SIGNS if s.name == "effective sample size")
    healthy = [made(alarms, f"h{i}", f, [0.9 + 0.001 * i] * 60)
               for i, f in enumerate("ababab")]  # fmt: skip
    falls = made(alarms, "c", "a", [0.95] * 30 + [0.3] * 30, collapse=50)
    late = made(alarms, "l", "b", [0.95] * 60, collapse=50)
    runs = [*healthy, falls, late]
    fixed = alarms.score(runs, lambda run: alarms.first_on(run, sign, 0.5))
    # The mean of five steps is below .5 from the fourth fallen one on.
    assert fixed == {"caught": 1, "collapsed": 2, "lead": 50 - 34, "false": 0, "healthy": 6}
    chosen = next(
        r for r in alarms.scores(runs) if r["sign"] == sign.name and "chosen" in r["rule"]
    )
    assert chosen["caught"] == 1 and chosen["lead"] > 16, "a threshold near the healthy runs"
    assert alarms.watchdog(falls) == 34 and alarms.watchdog(late) is None


def test_a_threshold_is_chosen_without_the_force_that_it_judges(alarms):
    sign = next(s for s in alarms.SIGNS if s.name == "effective sample size")
    runs = [made(alarms, "x", "a", [0.2] * 30), made(alarms, "y", "b", [0.9] * 30)]
    assert alarms.threshold([runs[1]], sign) == pytest.approx(0.9)
    found = next(r for r in alarms.scores(runs) if r["sign"] == sign.name and "chosen" in r["rule"])
    assert found["false"] == 1, "a is below what b's healthy runs give"
    assert np.isnan(alarms.smoothed(sign, rows([0.5] * 4))).all()
