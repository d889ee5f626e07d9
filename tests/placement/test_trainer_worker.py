"""The trainer's side of the conversation: one answer to every message."""

import errno
import os

import numpy as np
import pytest
import torch

from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.algorithm.options import options_from_recipe
from scalerl.errors import PipelineError
from scalerl.models.load import load_model, model_path
from scalerl.pipeline import messages as m
from scalerl.placement.trainer_worker import TrainerWorker
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.local import LocalTrainer
from scalerl.weights.interface import DirectWeights

#: The options of the default recipe.
SCALERL = options_from_recipe(Recipe())
#: What a trainer is made with, where a test says nothing else.
TRAINER = {"head_precision": "fp32", "temperature": 1.0, "token_budget": 8192}


def groups(prompts=3, length=12):
    rng = np.random.default_rng(0)

    def episode(prompt, reward):
        turn = Turn.from_lists(
            rng.integers(5, 15, length), logprobs=[-2.0] * length, forced=np.arange(length) == 3
        )
        return Episode.from_turn(prompt, turn).with_reward(reward, None)

    def group(name):
        prompt = rng.integers(5, 15, 6)
        return Group(name, tuple(episode(prompt, float(i % 2)) for i in range(4)))

    return tuple(group(f"p{p}") for p in range(prompts))


@pytest.fixture
def part():
    """The real trainer, without its process, on a clock of our own."""
    trainer = LocalTrainer(
        load_model(model_path("tiny"), "float32", "cpu"), SCALERL, OptimiserSection(), **TRAINER
    )
    channel = DirectWeights()
    found = TrainerWorker(trainer, channel, lambda: 7.5)
    assert found.start() == m.WorkerReady(0)
    return found


def published(part):
    return part.sender.newest()


def test_a_step_is_answered_with_its_report_and_published_when_it_is_to_be(part):
    before = {k: v.clone() for k, v in part.sender.weights.items()}
    stepped = part.answer(m.TrainStep(groups(), publish=False), began=5.0)
    assert stepped.report.version == 1 and stepped.seconds == 2.5
    assert published(part) == 0
    assert all(torch.equal(v, before[k]) for k, v in part.sender.weights.items())
    part.answer(m.TrainStep(groups(), publish=True), began=5.0)
    assert published(part) == 2
    assert any(not torch.equal(v, before[k]) for k, v in part.sender.weights.items())


def test_weights_are_published_when_that_is_asked(part):
    part.answer(m.TrainStep(groups(), publish=False), 0.0)
    assert part.answer(m.PublishWeights(), 0.0) == m.TrainerDone()
    assert published(part) == 1


def test_a_gradient_that_is_not_finite_is_refused_with_its_prompts(part):
    before = {k: v.clone() for k, v in part.trainer.weights().items()}
    parameter = next(part.trainer.model.parameters())
    poison = parameter.register_hook(lambda gradient: gradient * float("nan"))
    answer = part.answer(m.TrainStep(groups(), publish=True), began=5.0)
    poison.remove()
    assert isinstance(answer, m.StepRefused) and "prompts p0, p1, p2" in answer.reason
    assert answer.seconds == 2.5 and published(part) == 0
    assert all(torch.equal(v, before[k]) for k, v in part.trainer.weights().items())
    assert isinstance(part.answer(m.TrainStep(groups(), publish=True), 0.0), m.StepDone)


def test_scores_are_compared_on_the_tokens_that_the_policy_wrote(part):
    asked = groups(prompts=2)
    gaps = part.answer(m.CompareLogprobs(asked), 0.0).gaps
    assert len(gaps) == 2 * 4 * 11  # one of twelve is forced
    scored = part.trainer.score(asked)[0][0]
    expected = np.abs(scored + 2.0)[np.arange(12) != 3]
    np.testing.assert_allclose(gaps[:11], expected, rtol=1e-6)


def test_a_checkpoint_that_cannot_be_written_is_the_disks_affair(part, tmp_path, monkeypatch):
    (tmp_path / "fine").mkdir()
    assert part.answer(m.SaveCheckpoint(str(tmp_path / "fine")), 0.0) == m.TrainerDone()

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(part.trainer, "save", full)
    assert part.answer(m.SaveCheckpoint(str(tmp_path)), 0.0) == m.TrainerDone(
        problem="No space left on device"
    )


def test_what_the_trainer_does_not_understand_is_named(part):
    with pytest.raises(PipelineError, match="the trainer does not understand 'AdvanceAndHold'"):
        part.answer(m.AdvanceAndHold(1, 1), 0.0)
