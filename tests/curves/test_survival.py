"""Verdicts are given if they would survive, and kept once they were given."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from simulate import PAPER, curve

from scalerl import InputError, compare, fit, load_runs
from scalerl.curves import survival
from scalerl.curves.arms import UNKNOWN_BUDGET, Arm, with_family_prior
from scalerl.curves.decision import KEEP_PROBABILITY, current_verdict
from scalerl.curves.survival import SURVIVAL_PROBABILITY, final_verdict
from scalerl.report import words
from scalerl.runs.planned import planned_end

#: The record of a run that has ended.
RECORD = Path(__file__).parents[2] / "docs/replication/recipes/runs/deepseek-grpo+tiny-s0"


def fits(delta, multiple, seed=0, n=60):
    """Two runs up to this multiple of C_mid, whose ceilings differ by delta."""
    rng = np.random.default_rng((seed, 7))
    laws = {"a": PAPER, "b": dataclasses.replace(PAPER, A=PAPER.A + delta)}
    return [
        fit(*curve(law, multiple * PAPER.C_mid, rng, n=n), name=name) for name, law in laws.items()
    ]


def arms(given, budget=None):
    """As `compare` orders them."""
    made = with_family_prior(Arm(f.name, (f,), budget=budget) for f in given)
    return sorted(made, key=lambda arm: -float(np.median(arm.ceiling)))


@pytest.fixture(scope="module")
def early():
    """Runs whose points give a verdict by its probability alone, too early for it to last."""
    return fits(0.10, 2, seed=2)


def test_a_clear_verdict_survives_and_needs_no_looking_back():
    found = final_verdict(*arms(fits(0.15, 6)), 0.0)
    assert (found.name, found.winner, found.decided_at) == ("higher-ceiling", "b", None)
    assert found.survives == 1.0 and found.tentative is None


def test_a_verdict_that_would_not_survive_is_not_given_and_the_reason_is_said(early):
    a, b = arms(early)
    assert current_verdict(a, b, 0.0).winner == "b"
    found = final_verdict(a, b, 0.0)
    assert (found.name, found.winner) == ("undecided", None)
    assert found.tentative == ("higher-ceiling", "b")
    assert found.survives < SURVIVAL_PROBABILITY
    pair = compare(early, planning=True).pairs[0]
    assert pair.verdict == "undecided" and pair.need is None
    said = (
        "by these points b has the higher ceiling, but that would be withdrawn by twice the "
        f"compute so far with probability {1 - pair.survives:.2f}"
    )
    for text in (str(pair), words.verdict(pair), words.verdict_sentence(pair, 0.9)):
        assert said in text
    d = json.loads(json.dumps(pair.to_dict(), allow_nan=False))
    assert d["tentative"] == {"verdict": "higher-ceiling", "winner": "b"}
    assert d["survives"] == found.survives and not d["budgets_known"]
    assert d["ends"] == pytest.approx([UNKNOWN_BUDGET * f.end for f in early])


def test_runs_that_have_ended_have_nothing_to_survive(early):
    pair = compare(early, budget=early[0].end).pairs[0]
    assert (pair.verdict, pair.winner, pair.survives, pair.ends) == (
        "higher-ceiling",
        "b",
        1.0,
        None,
    )
    assert not any("still the verdict" in line for line in words.pair_details(pair))
    again = compare(early, budget=[f.end for f in early]).pairs[0]
    assert again.to_dict() == pair.to_dict()
    with pytest.raises(InputError, match="3 budgets for 2 runs"):
        compare(early, budget=[1.0, 2.0, 3.0])


def test_the_budget_of_a_recorded_run_is_that_of_its_recipe(tmp_path):
    (run,) = load_runs(str(RECORD))
    assert planned_end(run) == run.compute[-1]  # it has ended
    shutil.copytree(RECORD, tmp_path / "run")
    (tmp_path / "run" / "events.jsonl").write_text("")
    lines = (RECORD / "evals.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "evals.jsonl").write_text("".join(lines[:13]))
    (half,) = load_runs(str(tmp_path / "run"))
    assert half.compute[-1] < 0.6 * run.compute[-1]
    # Not exactly: later steps of this run take more FLOPs.
    assert planned_end(half) == pytest.approx(run.compute[-1], rel=0.2)
    assert planned_end(half.replace(source="")) is None
    (tmp_path / "run" / "recipe.json").unlink()
    (tmp_path / "run" / "recipe.toml").unlink()
    assert planned_end(half) is None


def test_a_verdict_says_how_likely_it_lasts():
    given = fits(0.06, 4, seed=1)
    pair = compare(given, budget=1.5 * given[0].end).pairs[0]
    assert pair.verdict == "higher-ceiling" and pair.survives >= SURVIVAL_PROBABILITY
    said = f"still the verdict at the end of both budgets with probability {pair.survives:.2f}"
    assert said in words.verdict_sentence(pair, 0.9)
    assert said in " ".join(words.pair_details(pair))


def test_a_verdict_that_was_given_is_kept_and_says_since_when(monkeypatch):
    """As if it did not survive from now on, but did at the last earlier look."""
    a, b = arms(fits(0.10, 5, seed=1))
    real = survival.survival

    def as_if(x, y, sd, verdict):
        return 0.5 if x.end == a.end else real(x, y, sd, verdict)

    monkeypatch.setattr(survival, "survival", as_if)
    found = final_verdict(a, b, 0.0)
    assert (found.name, found.winner, found.survives) == ("higher-ceiling", "b", 0.5)
    assert found.decided_at in survival.LOOKS
    monkeypatch.setattr(survival, "survival", lambda *_: 0.5)
    assert final_verdict(a, b, 0.0).tentative == ("higher-ceiling", "b")


def test_a_kept_verdict_ends_below_its_own_threshold():
    """Of pairs near the border, a verdict is either above the threshold of now or kept."""
    for seed in range(6):
        a, b = arms(fits(0.04, 4, seed=seed, n=40))
        found = final_verdict(a, b, 0.0)
        if found.name == "higher-ceiling":
            assert max(found.p_higher) > KEEP_PROBABILITY
            assert found.decided_at is not None or found.survives >= SURVIVAL_PROBABILITY


def test_what_survives_by_simulation_survives_when_the_runs_go_on():
    """Runs that do go on: of verdicts given at half the compute, nine in ten are there at the end;
    of those that the points alone give, fewer."""
    given, tentative = [], []
    for seed in range(16):
        long = fits(0.11, 6, seed=seed, n=40)
        half = [fit(f.run.window(None, 0.5 * f.end)) for f in long]
        end = 1.001 * long[0].end
        then = final_verdict(*arms(half, budget=end), 0.0)
        now = current_verdict(*arms(long), 0.0, KEEP_PROBABILITY)
        if then.name != "undecided":
            given.append(then.agrees(now))
        elif then.tentative is not None:
            tentative.append(then.tentative == (now.name, now.winner))
    assert len(given) >= 6 and np.mean(given) >= 0.9
    assert tentative


def test_the_answer_does_not_depend_on_the_unit_of_compute(early):
    first = final_verdict(*arms(early), 0.0)
    for times in (1.0001, 1000.0):
        scaled = [fit(times * f.run.compute, f.run.score, name=f.name) for f in early]
        assert final_verdict(*arms(scaled), 0.0).survives == first.survives
