"""Runs whose truth is known: do the intervals hold it, and are verdicts right or silent?

Rates are over seeded simulations; bounds are the promised ones, not fitted to the outcome.
"""

import dataclasses

import numpy as np
import pytest
from simulate import PAPER, curve, random_law

from scalerl import compare, fit
from scalerl.curves.arms import WINNER_PROBABILITY, Arm
from scalerl.curves.decision import decide

PAIRS = 100


@pytest.mark.parametrize("multiple", [0.5, 1, 2, 4])
def test_ceiling_interval_covers_the_truth(multiple):
    held = []
    for seed in range(120):
        rng = np.random.default_rng((seed, 1))
        law = random_law(rng)
        f = fit(*curve(law, multiple * law.C_mid, rng, n=40, sd=0.008))
        low, high = f.quantiles("A", [0.05, 0.95])
        held.append(low <= law.A <= high)
    assert np.mean(held) >= 0.88


@pytest.mark.parametrize(
    ("multiple", "narrowest", "widest", "identified"),
    [(0.5, 0.35, 1.0, False), (1, 0.35, 1.0, False), (6, 0.0, 0.06, True), (12.5, 0.0, 0.04, True)],
)
def test_ceiling_is_identified_when_it_can_be(multiple, narrowest, widest, identified):
    widths, flags = [], []
    for seed in range(30):
        rng = np.random.default_rng((seed, 2))
        f = fit(*curve(PAPER, multiple * PAPER.C_mid, rng, n=40, rho=0.0))
        low, high = f.quantiles("A", [0.025, 0.975])
        widths.append(high - low)
        flags.append(f.identified)
    assert narrowest <= np.mean(widths) <= widest
    assert np.mean(np.array(flags) == identified) >= 0.95


def verdicts(multiple, delta_a, spread=0.0, mid=1.0, pairs=PAIRS, **options):
    """Verdicts on pairs of runs whose recipes differ by delta_a and a factor `mid` in C_mid."""
    out = []
    for seed in range(pairs):
        rng = np.random.default_rng((seed, 3, int(10 * multiple)))
        fits = []
        for name, shift, factor in (("a", 0.0, 1.0), ("b", delta_a, mid)):
            law = dataclasses.replace(
                PAPER,
                A=PAPER.A + shift + spread * rng.standard_normal(),
                C_mid=PAPER.C_mid * factor,
            )
            fits.append(fit(*curve(law, multiple * PAPER.C_mid, rng), name=name))
        # The runs have ended: a look ahead would only add to the time of the test.
        out.append(compare(*fits, budget=fits[0].end, **options).pairs[0])
    return out


def share(found, **wanted):
    return np.mean([all(getattr(p, k) == v for k, v in wanted.items()) for p in found])


def told_apart(found):
    return np.mean([p.winner is not None for p in found])


@pytest.mark.parametrize(("multiple", "right"), [(1, 0.0), (2, 0.0), (4, 0.25), (8, 0.70)])
def test_higher_ceiling_is_found_and_never_the_wrong_one(multiple, right):
    found = verdicts(multiple, 0.03)
    assert share(found, verdict="higher-ceiling", winner="b") >= right
    assert share(found, verdict="higher-ceiling", winner="a") <= 0.02


@pytest.mark.parametrize("multiple", [1, 2, 4, 8])
def test_runs_that_do_not_differ_are_rarely_told_apart(multiple):
    found = verdicts(multiple, 0.0)
    assert told_apart(found) <= 0.08


@pytest.mark.parametrize("multiple", [2, 4, 8])
def test_recipes_keep_the_error_rates_when_seeds_move_the_ceiling(multiple):
    options = {"seed_sd": 0.01}
    differ = verdicts(multiple, 0.03, spread=0.01, **options)
    assert share(differ, verdict="higher-ceiling", winner="a") <= 0.02
    alike = verdicts(multiple, 0.0, spread=0.01, **options)
    assert told_apart(alike) <= 0.08


def test_a_verdict_on_runs_ignores_seed_variance_and_errs_on_recipes():
    """Why the two scopes exist: judged as runs, equal recipes look different."""
    found = verdicts(8, 0.0, spread=0.01, pairs=60)
    assert share(found, verdict="higher-ceiling") > 0.15


def test_same_ceiling_but_faster_is_found_on_long_runs():
    found = verdicts(8, 0.0, mid=1.5, pairs=30)
    assert share(found, verdict="faster", winner="a") >= 0.6
    assert share(found, winner="b") == 0.0


def unequal(windows, ceilings, pairs):
    """Verdicts on a long run and a short one: where their windows end in C_mid, their ceilings."""
    out = []
    for seed in range(pairs):
        rng = np.random.default_rng((seed, 4, *(int(10 * w) for w in windows)))
        arms = []
        for name, window, a in zip(("long", "short"), windows, ceilings, strict=True):
            law = dataclasses.replace(PAPER, A=a)
            arms.append(Arm(name, (fit(*curve(law, window * PAPER.C_mid, rng), name=name),)))
        arms.sort(key=lambda arm: -float(np.median(arm.ceiling)))
        out.append(decide(*arms, seed_sd=0.0))
    return out


@pytest.mark.parametrize("windows", [(2.5, 1), (4, 1), (2, 0.5)])
@pytest.mark.parametrize("ceiling", [0.97, 0.99])
def test_equal_ceilings_near_1_are_not_told_apart_by_the_end_of_the_scale(windows, ceiling):
    found = unequal(windows, (ceiling, ceiling), pairs=40)
    assert np.mean([v.winner is not None for v in found]) <= 1 - WINNER_PROBABILITY


@pytest.mark.parametrize(
    ("windows", "ceilings", "winner"),
    [
        ((8, 2), (0.97, 0.67), "long"),
        ((8, 2), (0.87, 0.97), "short"),
        ((8, 8), (0.97, 0.94), "long"),
    ],
)
def test_ceilings_near_1_that_differ_are_found_where_the_points_bound_them(
    windows, ceilings, winner
):
    found = unequal(windows, ceilings, pairs=30)
    # Two in three: curves may near their ceilings faster or more slowly than a sigmoid.
    assert share(found, name="higher-ceiling", winner=winner) >= 0.66


def test_draws_in_which_both_ceilings_are_perfect_count_for_neither():
    """Seen to 2.5 and 1 C_mid, these equal runs were called different by 0.3 and more."""
    for verdict in unequal((2.5, 1), (0.99, 0.99), pairs=5):
        assert sum(verdict.p_higher) < 0.97
        assert verdict.name == "undecided"


def test_the_papers_rule_decides_where_nothing_can_be_decided():
    """The reason for a second verdict: at 1 C_mid the paper's rule calls most equal pairs."""
    found = verdicts(1, 0.0, pairs=40)
    assert share(found, paper_verdict="higher-ceiling") > 0.5
