"""The rules by which a run is stable, unstable or undecided, and what a table makes of it."""

import math
from pathlib import Path

import numpy as np
import pytest

from scalerl import compare, fit
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.record import Run
from scalerl.study.members import Member
from scalerl.study.stability import Stability, assess_lines, half_check
from scalerl.study.table import MemberFinding, StudyArms, rows

STEPS = 100


def steps(**columns):
    """Lines of a healthy run, with some columns replaced by functions of the step."""
    found = []
    for step in range(1, STEPS + 1):
        line = {"step": step, "loss": 0.1, "grad_norm": 0.5, "ess": 0.95, "truncated": 0.01}
        line |= {key: of(step) for key, of in columns.items()}
        found.append(StepLine.from_dict(line))
    return found


def evals(rate=lambda step: 0.2 + 0.4 * step / STEPS, stderr=0.01):
    return [
        EvalLine.from_dict({"step": s, "pass_rate": rate(s), "stderr": stderr})
        for s in range(0, STEPS + 1, 5)
    ]


def test_a_healthy_run_is_stable():
    assert assess_lines(steps(), evals()) == Stability("stable")


def test_a_short_run_is_undecided():
    found = assess_lines(steps()[:5], evals()[:2])
    assert found.state == "undecided" and "too few" in found.why


@pytest.mark.parametrize(
    ("columns", "rule", "step"),
    [
        ({"loss": lambda s: math.nan if s == 40 else 0.1}, "non-finite", 40),
        ({"grad_norm": lambda s: None if s == 50 else 0.5}, "non-finite", 50),
        ({"non_finite": lambda s: int(s >= 30)}, "non-finite", 34),
        ({"grad_norm": lambda s: 30.0 if s > 60 else 0.5}, "gradient", 63),
        ({"ess": lambda s: 0.3 if s > 50 else 0.95}, "ratio", 54),
        ({"truncated": lambda s: 0.0 if s <= 50 else 0.2}, "truncation", 56),
    ],
)
def test_each_rule_says_when_it_was_broken(columns, rule, step):
    found = assess_lines(steps(**columns), evals())
    assert (found.state, found.rule, found.step) == ("unstable", rule, step)
    assert f"since step {step}, by the rule {rule}" in str(found)


@pytest.mark.parametrize(
    "columns",
    [
        {"non_finite": lambda s: int(s % 3 == 0)},
        {"grad_norm": lambda s: 40.0 if s % 10 == 0 else 0.5},
        {"truncated": lambda s: 0.3 if 30 < s < 45 else 0.01},
        {"truncated": lambda s: 0.4 * math.exp(-s / 15)},
        {"truncated": lambda s: 0.07},
    ],
)
def test_what_passes_is_not_unstable(columns):
    assert assess_lines(steps(**columns), evals()).state == "stable"


@pytest.mark.parametrize("share", [lambda s: 0.5 - 0.003 * s, lambda s: 0.2])
def test_truncation_that_was_high_from_the_beginning_and_did_not_rise_is_undecided(share):
    found = assess_lines(steps(truncated=share), evals())
    assert found.state == "undecided" and found.rule == "truncation"


def test_truncation_that_was_high_and_rises_is_unstable():
    found = assess_lines(steps(truncated=lambda s: 0.15 + 0.002 * s), evals())
    assert (found.state, found.rule) == ("unstable", "truncation")


def test_the_limit_of_truncation_is_the_recipes():
    lines = steps(truncated=lambda s: 0.07 if s > 50 else 0.01)
    assert assess_lines(lines, evals(), critical=0.05).state == "unstable"
    assert assess_lines(lines, evals()).state == "stable"


def test_a_collapse_is_told_from_a_dip():
    fallen = evals(lambda s: 0.5 if s < 70 else 0.3)
    found = assess_lines(steps(), fallen)
    assert (found.rule, found.step) == ("collapse", 70) and "0.300 from 0.500" in found.why
    dip = evals(lambda s: 0.3 if s == 50 else 0.5)
    assert assess_lines(steps(), dip).state == "stable"
    noisy = evals(lambda s: 0.5 if s < 70 else 0.35, stderr=0.05)
    assert assess_lines(steps(), noisy).state == "stable", "within what the validations can tell"


def test_the_first_broken_rule_counts():
    found = assess_lines(
        steps(ess=lambda s: 0.3 if s > 80 else 0.95, truncated=lambda s: 0.0 if s < 50 else 0.3),
        evals(lambda s: 0.5 if s < 90 else 0.1),
    )
    assert found.rule == "truncation"


def curve(score, name="run", group=None, n=41, seed=0):
    compute = np.linspace(0, 1000, n)
    rng = np.random.default_rng(seed)
    noisy = np.clip(score(compute) + rng.normal(0, 0.008, n), 0, 1)
    return Run(name, compute, noisy, "flops", n_eval=np.full(n, 3000.0), group=group)


def climb(a=0.7, mid=120.0):
    return lambda c: 0.2 + (a - 0.2) / (1 + (mid / np.maximum(c, 1e-9)) ** 1.8)


def test_a_run_that_leaves_its_own_forecast_downwards_is_unstable():
    healthy = half_check(curve(climb()))
    assert healthy.held and assess_lines(steps(), evals(), half=healthy).state == "stable"
    sagging = half_check(curve(lambda c: climb()(c) - 0.12 * (c > 550)))
    assert not sagging.held and sagging.fell
    found = assess_lines(steps(), evals(), half=sagging)
    assert found.rule == "hold-out" and "its first half gave" in found.why


def test_a_run_above_its_forecast_did_not_hold_but_is_stable():
    rising = half_check(curve(lambda c: climb()(c) + 0.15 * (c > 550)))
    assert not rising.held and rising.seen > rising.interval[1]
    assert assess_lines(steps(), evals(), half=rising).state == "stable"


def test_few_points_are_not_checked_at_half():
    assert half_check(curve(climb(), n=8)) is None


def finding(variant, seed, score, state="stable"):
    run = curve(score, f"{variant}-s{seed}", variant, seed=seed)
    stability = Stability(state, *(("collapse", 80, "fell") if state == "unstable" else ()))
    fitted = None if state == "unstable" else fit(run)
    return MemberFinding(member(variant, seed), stability, fitted, half_check(run))


def member(variant, seed):
    recipe = Recipe.load("scalerl", "tiny")
    return Member(f"{variant}-s{seed}", variant, seed, recipe, Path("none"), Path("none"))


def table_of(found):
    arms = StudyArms.from_findings(found)
    return rows(found, "ref", arms, arms.pairs("ref"))


def test_the_table_gives_a_verdict_against_the_reference_and_leaves_unstable_members_out():
    found = table_of(
        [finding("ref", s, climb()) for s in (0, 1)]
        + [finding("higher", 0, climb(0.85)), finding("higher", 1, climb(0.85))]
        + [finding("broken", 0, climb(0.3), "unstable")]
        + [finding("half", 0, climb(0.5)), finding("half", 1, climb(0.2), "unstable")]
    )
    table = {row.variant: row for row in found}
    assert list(table) == ["ref", "higher", "broken", "half"]
    assert table["ref"].verdict == "reference" and table["ref"].held == (2, 2)
    assert (table["higher"].verdict, table["higher"].winner) == ("higher-ceiling", "higher")
    low, high = table["higher"].intervals["A"]
    assert low < 0.85 < high and table["higher"].seeds == 2
    assert table["broken"].verdict == "unstable" and table["broken"].estimates["A"] is None
    assert table["half"].seeds == 1 and table["half"].winner == "ref"
    told = table["half"].to_dict()["stability"]
    assert told["state"] == "unstable" and told["seeds"]["1"]["rule"] == "collapse"
    assert told["seeds"]["1"]["step"] == 80


def test_a_table_before_there_is_anything_to_compare():
    alone = table_of([finding("ref", 0, climb())])
    assert alone[0].verdict == "reference" and alone[0].estimates["A"] is not None
    empty = MemberFinding(member("other", 0), Stability("undecided"))
    two = table_of([finding("ref", 0, climb()), empty])
    assert two[1].verdict is None and two[1].words == "nothing to fit yet"


def test_a_verdict_of_the_table_is_that_of_all_recipes_compared_together():
    found = [finding(v, s, climb(a)) for v, a in (("ref", 0.7), ("b", 0.66), ("c", 0.8))
             for s in (0, 1)]  # fmt: skip
    together = compare([f.fit for f in found], group_by="recipe")
    expected = {
        (p.b if p.a == "ref" else p.a): (p.verdict, p.winner, str(p))
        for p in together.pairs
        if "ref" in (p.a, p.b)
    }
    table = {r.variant: (r.verdict, r.winner, r.words) for r in table_of(found)[1:]}
    assert table == expected
