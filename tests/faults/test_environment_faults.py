"""Whole runs in environments that hang, crash, block, raise, lie, talk too much and leak, while
generators, trainer and environment workers are killed: nothing is lost, doubled or left behind."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from faults import (
    GENERATIONS,
    PROMPTS,
    kill_generators,
    lines,
    run_under_faults,
    strike_trainer,
)

HERE = Path(__file__).parent
#: Shares of turns that go wrong. Episodes have some three turns at first.
FAULTS = ("slow = 0.05, hangs = 0.002, blocks = 0.001, crashes = 0.002, raises = 0.01, "
          "returns_bytes = 0.01, talks = 0.02, differs = 0.02, leaks = 0.02")  # fmt: skip
SETTINGS = ["task.name=environment:bad_environments:BadLookups",
            f"task.options.settings={{{FAULTS}}}", "placement.check_seconds=3",
            "placement.patience=20", "environment.turns=6"]  # fmt: skip


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{os.environ.get('PYTHONPATH', '')}")


def kill_a_checker(run, rng):
    """Kill a worker, if no environment has done so, and see the run go on."""
    with suppress(ProcessLookupError):
        os.kill(run.pid(rng.choice(["checker 0", "checker 1"])), signal.SIGKILL)
    before = run.step
    run.wait(lambda: run.step > before, "the next step")


def play(tmp_path, strikes, episodes):
    """A run of so many episodes; its lines of steps."""

    def all_of_it(run):
        strikes(run)
        run.wait(lambda: run.step * PROMPTS * GENERATIONS >= episodes, f"{episodes} episodes")

    run = run_under_faults(tmp_path / "run", all_of_it, *SETTINGS, overlay="tiny-tools")
    steps = lines(run.out / "steps.jsonl")
    assert all(s["filtered"]["rollouts"] == PROMPTS * GENERATIONS for s in steps)
    return steps


def test_a_run_goes_on_in_bad_environments(tmp_path):
    steps = play(tmp_path, lambda run: kill_a_checker(run, random.Random(1)), 300)
    assert any(s["play"]["failed"] > 0 for s in steps), "some went wrong"
    assert sum(s["play"]["failed"] for s in steps) / len(steps) < 0.5, "and most did not"


@pytest.mark.faults
def test_a_thousand_episodes_in_bad_environments_under_kills(tmp_path):
    rng = random.Random(7)

    def strikes(run):
        for _ in range(5):
            kill_a_checker(run, rng)
        kill_generators(run, rng, 3)
        strike_trainer(run, rng, "any moment")
        kill_a_checker(run, rng)

    play(tmp_path, strikes, 1_000)
