"""The loop and a trainer that refuses batches, on the virtual clock."""

import pytest
from worlds import RandomWorld

from scalerl.errors import PipelineError
from scalerl.pipeline.learner import MAX_REFUSALS
from scalerl.runs.lines import EventLine, StepLine
from scalerl.trainer.interface import NonFiniteGradient
from scalerl.trainer.simulated import SimulatedTrainer


class Refusing(SimulatedTrainer):
    """Finds no finite gradient in its batches of these numbers."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers = numbers
        self.calls = 0

    def step(self, groups):
        self.calls += 1
        if self.calls in self.numbers:
            raise NonFiniteGradient(f"the gradient of step {self.version + 1} is nan")
        return super().step(groups)


def always(spec):
    return Refusing(range(1, 1000))


def twice(spec):
    return Refusing((2, 3))


def world(trainer):
    """A pipeline run without faults, and room for a few batches."""
    found = RandomWorld(
        3,
        **{"placement.trainer": f"test_loop:{trainer}", "placement.deterministic": False,
           "schedule.name": "pipeline", "filter.zero_variance": "drop",
           "checkpoint.every": 100},
    )  # fmt: skip
    assert not found.world.faults and not found.world.hangs
    return found


def test_three_refused_batches_in_a_row_end_the_run_with_the_knob_to_turn(tmp_path):
    run = world("always")
    with pytest.raises(PipelineError, match=r"3 batches in a row: lower optimiser\.lr"):
        run.live(tmp_path / "run")
    refused = [e for e in run.store.read(EventLine) if e.event == "refused"]
    assert len(refused) == MAX_REFUSALS == 3
    assert all(len(e.prompts) == run.prompts for e in refused)
    assert len({p for e in refused for p in e.prompts}) == 3 * run.prompts, "each batch once"
    assert run.store.read(StepLine) == []


def test_a_refused_batch_is_left_out_and_counted_and_the_run_goes_on(tmp_path):
    run = world("twice")
    run.live(tmp_path / "run")
    refused = [e for e in run.store.read(EventLine) if e.event == "refused"]
    assert [e.step for e in refused] == [1, 1]
    ledger = run.crew.loop.ledger.to_line()
    rollouts = 2 * run.prompts * run.generations
    assert ledger.wasted.failed.rollouts == rollouts
    assert ledger.samples == run.steps * run.prompts * run.generations + rollouts
