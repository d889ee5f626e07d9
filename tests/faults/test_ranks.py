"""A trainer of two ranks under faults: one that dies or freezes takes the other along, and the
run goes back to its last checkpoint and says which it was."""

import os
import random
import signal

import pytest

from faults import EVERY, lines, run_under_faults, strike_trainer

pytestmark = pytest.mark.faults
TWO = ("placement.trainers=2", "placement.generators=2")


def losses(run):
    return [e["why"] for e in lines(run.out / "events.jsonl") if e["event"] == "lost"]


def test_a_run_outlives_each_rank_of_its_trainer(tmp_path):
    rng = random.Random(4)

    def strikes(run):
        for how in ("any moment", "inside a checkpoint", "right after a step"):
            strike_trainer(run, rng, how)

    run = run_under_faults(tmp_path / "run", strikes, *TWO)
    assert len(losses(run)) == 3
    for why in losses(run):
        assert why in {f"trainer rank {i} died: killed by signal 9" for i in (0, 1)}


def test_a_frozen_rank_is_named_after_the_deadline_of_a_collective(tmp_path):
    def strikes(run):
        run.wait(lambda: run.step >= EVERY + 1, "the first checkpoint")
        os.kill(run.pid("trainer rank 1"), signal.SIGSTOP)
        run.wait(lambda: run.resumes, "the way back")
        back = run.resumes[-1]
        run.wait(lambda: run.step > back, "the next step")

    run = run_under_faults(tmp_path / "run", strikes, *TWO, "placement.patience=10")
    (why,) = losses(run)
    assert why.startswith("trainer is stuck: trainer rank 1 did not answer the other ranks (")
