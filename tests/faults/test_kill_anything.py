"""kill -9 at any moment. `benchmarks/faults.py` does the same for longer; after every run it checks
steps, prompts, ledger, checkpoints and what is left behind (`faults.problems`)."""

import random

import pytest

from faults import (
    kill_generators,
    lines,
    run_under_faults,
    strike_checker,
    strike_main,
    strike_trainer,
)


def test_a_run_outlives_its_generators_and_its_trainer(tmp_path):
    rng = random.Random(1)

    def strikes(run):
        kill_generators(run, rng, 4)
        strike_trainer(run, rng, "inside a checkpoint")

    run = run_under_faults(tmp_path / "run", strikes)
    assert len(run.strikes) == 5 and all(s.by_itself for s in run.strikes)


def test_a_killed_checker_changes_nothing_in_the_record_but_an_event(tmp_path):
    rng = random.Random(3)

    def strikes(run):
        for _ in range(3):
            strike_checker(run, rng, "any moment")

    run = run_under_faults(tmp_path / "run", strikes)
    assert len(run.strikes) == 3
    usual = ("warning", "note")
    *deaths, end = (e for e in lines(run.out / "events.jsonl") if e["event"] not in usual)
    assert end["event"] == "end" and len(deaths) == 3
    for event in deaths:
        assert event["event"] == "checker"
        assert event["why"].endswith("died: killed by signal 9: replaced")
    steps = lines(run.out / "steps.jsonl")
    assert all(s["filtered"]["unscored"] == 0 for s in steps)
    assert steps[-1]["ledger"]["wasted"]["failed"]["rollouts"] == 0


@pytest.mark.faults
def test_a_run_goes_on_after_its_main_process_was_killed(tmp_path):
    rng = random.Random(2)

    def strikes(run):
        strike_main(run, rng, "any moment")
        strike_main(run, rng, "inside a checkpoint")

    run = run_under_faults(tmp_path / "run", strikes)
    assert len(run.strikes) == 2 and all(s.by_resume for s in run.strikes)
