"""Runs of a recipe as one arm, and what arms tell each other."""

import dataclasses

import numpy as np
import pytest
from simulate import PAPER, curve

from scalerl import compare, fit
from scalerl.curves.arms import SEED_SD, Arm, pooled, seed_spread, with_family_prior
from scalerl.curves.shared_prior import FamilyPrior


def runs(recipe, seeds, multiple, spread=0.0, noise=0.01, **law):
    """Fits of several seeds of a recipe, and the mean of their true ceilings."""
    fits, tops = [], []
    for seed in range(seeds):
        rng = np.random.default_rng((seed, *recipe.encode()))
        own = dataclasses.replace(PAPER, **law)
        own = dataclasses.replace(own, A=own.A + spread * rng.standard_normal())
        tops.append(own.A)
        c, y = curve(own, multiple * PAPER.C_mid, rng, n=24, sd=noise)
        found = fit(c, y, name=f"{recipe}-{seed}")
        fits.append(dataclasses.replace(found, run=found.run.replace(group=recipe)))
    return tuple(fits), float(np.mean(tops))


def width(draws):
    low, high = np.quantile(draws, [0.05, 0.95])
    return high - low


def test_three_seeds_know_the_ceiling_better_than_one():
    fits, _ = runs("mine", 3, 6)
    assert width(Arm("mine", fits).ceiling) < 0.8 * np.mean(
        [width(Arm("one", (f,)).ceiling) for f in fits]
    )


def test_short_runs_are_not_made_sure_by_their_number():
    """A mean of three fits that each know nothing of the ceiling would look known."""
    fits, _ = runs("mine", 3, 0.5)
    averaged = np.mean([f.predictive.parameter("A") for f in fits], axis=0)
    # Not by much: the prior bounds the ceiling of a short run from above.
    assert width(Arm("mine", fits).ceiling) > 1.03 * width(averaged)


def test_points_of_all_seeds_make_one_curve_in_order():
    fits, _ = runs("mine", 3, 4)
    curve_of_all = pooled("mine", fits)
    assert len(curve_of_all) == sum(len(f.points) for f in fits)
    assert (np.diff(curve_of_all.compute) >= 0).all() and curve_of_all.group == "mine"
    assert np.sort(curve_of_all.score) == pytest.approx(
        np.sort(np.concatenate([f.points.score for f in fits]))
    )


def test_a_shorter_seed_counts_for_less():
    fits, _ = runs("mine", 1, 8)
    short, _ = runs("other", 1, 4)
    assert Arm("mine", fits + short).seeds == pytest.approx(1.5)


def test_what_a_fit_does_not_know_is_no_spread_between_seeds():
    """Short runs: the medians of their ceilings scatter by .03 though all have one ceiling."""
    alike = [Arm(name, runs(name, 3, 1.5)[0]) for name in ("a", "b", "c", "d")]
    medians = [[np.median(f.predictive.parameter("A")) for f in a.fits] for a in alike]
    assert np.mean([np.std(m, ddof=1) for m in medians]) > 2 * SEED_SD
    assert seed_spread(alike) < 1.5 * SEED_SD
    apart = [Arm(n, runs(n, 4, 12, spread=0.04, noise=0.003)[0]) for n in ("a", "b", "c", "d")]
    assert 0.02 < seed_spread(apart) < 0.08


def test_kin_narrow_differences_and_still_hold_them():
    held, narrower = [], []
    for start in range(4):
        alone = [Arm(n, runs(n, 1, 8)[0]) for n in (f"{start}-{i}" for i in range(8))]
        among = with_family_prior(alone)
        for i in range(0, 8, 2):
            before = alone[i].ceiling - alone[i + 1].ceiling
            after = among[i].ceiling - among[i + 1].ceiling
            low, high = np.quantile(after, [0.05, 0.95])
            held.append(low <= 0.0 <= high)
            narrower.append(width(after) / width(before))
    assert np.mean(held) >= 0.88
    assert np.mean(narrower) < 0.85


def test_a_run_alone_learns_nothing_from_itself():
    (f,), _ = runs("mine", 1, 4)
    assert FamilyPrior([f]).for_run(f) is None
    assert with_family_prior([Arm("mine", (f,))])[0].fit is f


def test_a_run_without_a_gain_is_not_talked_into_one():
    rng = np.random.default_rng(0)
    c = np.linspace(1000, 30000, 24)
    flat = fit(c, 0.3 + 0.01 * rng.standard_normal(24), name="flat")
    others = [Arm(n, runs(n, 1, 6)[0]) for n in "abcdef"]
    law = next(
        a.fit for a in with_family_prior([*others, Arm("flat", (flat,))]) if a.name == "flat"
    )
    assert flat.no_gain > 0.5 and law.no_gain > 0.5 and not law.identified


def test_replicates_of_recipes_find_a_difference_of_003():
    """Eight recipes of three seeds, of which one is higher: told apart, and the others are not."""
    fits = [f for name in "abcdefg" for f in runs(name, 3, 8, spread=0.01)[0]]
    fits += runs("high", 3, 8, spread=0.01, A=PAPER.A + 0.03)[0]
    found = compare(fits, group_by="recipe")
    told = [p for p in found.pairs if p.winner is not None]
    assert sum(p.winner == "high" for p in told) >= 4
    assert sum(p.winner != "high" for p in told) <= 1
