"""Generators that join and leave while a run of real processes goes on."""

import os
import random
import signal

import pytest

from faults import lines, run_under_faults, scale, strike_generators
from scalerl.cli import main

pytestmark = pytest.mark.faults


def generators(run):
    return sorted(n for n in run.status["pids"] if n.startswith("generator "))


def test_generators_join_and_leave_and_the_record_is_whole(tmp_path, capsys):
    def strikes(run):
        scale(run, 3)
        scale(run, 1)
        # One that hangs when it is told to go has left all the same.
        scale(run, 2)
        os.kill(run.pid("generator 1"), signal.SIGSTOP)
        main(["scale", str(run.out), "--generators", "1"])
        run.wait(lambda: generators(run) == ["generator 0"], "the frozen one to be gone")

    run = run_under_faults(tmp_path / "run", strikes, "placement.patience=10")
    events = [e for e in lines(run.out / "events.jsonl") if e["event"] == "scale"]
    assert [e["why"] for e in events] == [
        "placement.generators 2 → 3", "placement.generators 3 → 1",
        "placement.generators 1 → 2", "placement.generators 2 → 1",
    ]  # fmt: skip
    assert "generators = 1\n" in (run.out / "recipe.toml").read_text()
    assert main(["scale", str(run.out), "--generators", "2"]) == 2
    assert "is not running: go on with it" in capsys.readouterr().err


def test_a_run_whose_weights_are_broadcast_outlives_its_generators_and_lets_others_in(tmp_path):
    def strikes(run):
        rng = random.Random(0)
        strike_generators(run, rng, "any moment")
        scale(run, 3)
        strike_generators(run, rng, "both at once")
        scale(run, 1)

    run = run_under_faults(tmp_path / "run", strikes, "placement.weights=collective")
    assert len(run.strikes) == 3 and all(s.by_itself for s in run.strikes)
