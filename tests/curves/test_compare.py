"""Comparison: paper's rule, groups, crossings, many runs, refusals."""

import dataclasses
import json

import numpy as np
import pytest
from simulate import PAPER, curve

from scalerl import InputError, Run, compare, fit, load_runs
from scalerl.report import words


def run(name, seed=0, end=60000.0, group=None, **changes):
    law = dataclasses.replace(PAPER, **changes)
    return Run(name, *curve(law, end, np.random.default_rng(seed)), x_kind="steps", group=group)


def test_papers_rule_prefers_the_higher_ceiling_then_the_larger_b():
    high, low = run("high", A=0.70), run("low", seed=1)
    pair = compare(high, low).pairs[0]
    assert (pair.paper_verdict, pair.paper_winner) == ("higher-ceiling", "high")
    steep, shallow = run("steep", B=2.4), run("shallow", seed=1, B=1.5, A=0.65)
    pair = compare(steep, shallow).pairs[0]
    assert (pair.paper_verdict, pair.paper_winner) == ("faster", "steep")
    assert pair.fixed_a["A"] == pytest.approx(0.645, abs=0.02)
    slopes = {pair.a: pair.fixed_a["B_a"], pair.b: pair.fixed_a["B_b"]}
    assert slopes["steep"] > slopes["shallow"]


def test_crossing_of_a_slow_run_with_the_higher_ceiling():
    fast = run("fast", C_mid=3000.0, A=0.60)
    slow = run("slow", seed=1, C_mid=14000.0, A=0.72, end=20000.0)
    crossing = compare(fast, slow).pairs[0].crossing
    assert crossing is not None and crossing.overtakes == "slow"
    assert crossing.probability > 0.6
    truth = 14000.0 * ((0.60 - 0.3) / (0.72 - 0.60)) ** (1 / 1.7)
    assert crossing.compute is None or 0.3 * truth < crossing.compute < 4 * truth


def test_replicates_are_grouped_and_widen_or_narrow_the_seed_spread():
    a = [run(f"a{i}", seed=i, group="A") for i in range(3)]
    b = [run(f"b{i}", seed=10 + i, group="B", A=0.70) for i in range(3)]
    result = compare(a, b, group_by="recipe")
    assert result.scope == "recipes"
    assert [arm.name for arm in result.arms] == ["B", "A"]
    assert result.pairs[0].verdict == "higher-ceiling" and result.pairs[0].winner == "B"
    assert result.seed_sd < 0.01  # these replicates agree better than assumed
    scattered = [run(f"c{i}", seed=20 + i, group="C", A=0.60 + 0.04 * i) for i in range(3)]
    assert compare(a, scattered, group_by="recipe").seed_sd > 0.015


def test_a_declining_run_wins_nothing():
    bad = run("bad")
    bad.score[45:] -= np.linspace(0.02, 0.25, len(bad.score) - 45)
    pair = compare(bad, run("good", seed=1)).pairs[0]
    assert pair.winner != "bad" and "declining" in pair.alarm
    low = run("low", seed=1)
    low.score[:] *= 0.5
    pair = compare(bad, low).pairs[0]
    assert pair.verdict == "undecided" and pair.winner is None and "declining" in pair.alarm


def test_two_open_ceilings_get_no_verdict_and_the_reason_is_said():
    pair = compare(
        run("long", A=0.98, end=12000.0), run("short", seed=1, A=0.98, end=6000.0)
    ).pairs[0]
    assert pair.both_open and pair.verdict == "undecided"
    assert pair.p_a_higher + pair.p_b_higher < 1.0
    assert "both may be perfect" in words.verdict(pair)
    assert "both may be perfect" in words.verdict_sentence(pair, 0.9)
    long = compare(run("high", A=0.98), run("low", seed=1)).pairs[0]
    assert not long.both_open and long.winner == "high"
    # Of several pairs, each sentence says which two it is about.
    said = words.verdict_sentence(long, 0.9)
    assert said.startswith("high has a higher ceiling than low, by 0.")


def test_undecided_pairs_say_what_would_decide():
    short = [run("a", end=12000.0), run("b", seed=1, end=12000.0, A=0.70)]
    pair = compare(*short, planning=True).pairs[0]
    assert pair.verdict == "undecided"
    assert pair.need is not None and (pair.need.multiple is None or pair.need.multiple > 1)
    assert "undecided" in str(pair)


def test_many_runs_are_compared_with_the_leader_and_ranked_in_full():
    runs = [run(f"r{i}", seed=i, A=0.5 + 0.01 * i) for i in range(30)]
    result = compare(runs)
    assert len(result.pairs) == 29
    assert {p.a for p in result.pairs} == {result.arms[0].name}
    assert result.p_higher.shape == (30, 30)
    np.testing.assert_allclose(result.p_higher + result.p_higher.T, 1.0, atol=0.02)
    assert result.p_higher[0, -1] > 0.99


def test_fits_by_the_papers_procedure_get_our_verdict_too():
    grid = {"a_grid": np.linspace(0.5, 0.8, 13), "mid_grid": np.linspace(2000, 20000, 10)}
    fits = [fit(r, method="paper", **grid) for r in (run("a"), run("b", seed=1, A=0.75))]
    result = compare(*fits)
    assert result.pairs[0].winner == "b"
    assert [f.method for f in result.fits] == ["paper", "paper"]


def test_refusals_are_one_line():
    a = run("a")
    for items, options in [
        ((a,), {}),
        ((a, a.replace(x_kind="tokens")), {}),
        ((a, run("b", group="A")), {"law": "power"}),
        ((run("a", group="A"), run("b", group="A")), {"group_by": "recipe"}),
    ]:
        with pytest.raises(InputError) as error:
            compare(*items, **options)
        assert "\n" not in str(error.value)


def test_equal_names_are_kept_apart():
    result = compare(run("same"), run("same", seed=1))
    assert len({arm.name for arm in result.arms}) == 2


def test_comparison_dictionary_has_the_promised_keys():
    d = compare(load_runs("example:paper-8b", "example:paper-moe")).to_dict()
    pair = d["pairs"][0]
    assert {
        "a",
        "b",
        "paper_verdict",
        "verdict",
        "winner",
        "delta_A",
        "fixed_A",
        "crossing",
    } <= set(pair)
    assert set(pair["delta_A"]) == {"median", "interval"}
    assert set(pair["fixed_A"]) == {"A", "B_a", "B_b"}
    json.dumps(d, allow_nan=False)
