"""The learning rate of each step, against Transformers' schedules; and in whole runs."""

import json

import pytest
import torch
from transformers import get_scheduler

from scalerl.algorithm.learning_rate import LearningRate
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.study.definition import StudyDefinition, variants
from scalerl.training import recipe_of, train

WARMUP, STEPS = 5, 30
#: A run of the tiny model in one process, without validations on the way.
SMALL = ["scalerl", "tiny", "placement.backend=inline",
         "batch.prompts=2", "batch.generations=2", "validation.prompts=2", "validation.k=1",
         "validation.every=99", "checkpoint.every=2", "optimiser.warmup_steps=2",
         "optimiser.lr=1.0e-5"]  # fmt: skip


def rate_of(**settings):
    return LearningRate.from_recipe(OptimiserSection(**settings))


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_after_warm_up_it_is_transformers_schedule(decay):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    theirs = get_scheduler(decay, optimiser, WARMUP, STEPS)
    ours = rate_of(lr=0.3, warmup_steps=WARMUP, decay=decay, decay_start=WARMUP,
                   decay_steps=STEPS - WARMUP)  # fmt: skip
    for step in range(STEPS):
        if step >= WARMUP:
            assert ours.after(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-15), step
        optimiser.step()
        theirs.step()


def test_it_stays_constant_between_warm_up_and_decay_and_at_the_floor_after_it():
    rate = rate_of(lr=2.0, warmup_steps=4, decay="cosine", decay_start=10, decay_steps=10,
                   min_lr_ratio=0.25)  # fmt: skip
    found = [rate.after(step) for step in range(30)]
    assert found[:4] == [0.5, 1.0, 1.5, 2.0] and set(found[4:11]) == {2.0}
    assert found[15] == pytest.approx(1.25) and set(found[20:]) == {0.5}
    assert found[10:21] == sorted(found[10:21], reverse=True)


def test_a_constant_rate_is_what_it_was_bit_for_bit():
    rate = rate_of(lr=5e-7, warmup_steps=100)
    assert [rate.after(v) for v in range(150)] == [
        5e-7 * min((v + 1) / 100, 1.0) for v in range(150)
    ]


def rates(out):
    lines = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    return [line["lr"] for line in lines]


def test_a_run_decays_to_its_end_and_goes_on_exactly_after_a_resume(tmp_path):
    decay = ["optimiser.decay=linear", "optimiser.min_lr_ratio=0.2"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train([*SMALL, *decay, "budget.steps=6"], whole)
    expected = [1e-5 * share for share in (0.5, 1.0, 1.0, 0.8, 0.6, 0.4)]
    assert rates(whole) == pytest.approx(expected)
    train([*SMALL, *decay, "optimiser.decay_steps=4", "budget.steps=3"], parts)
    train(recipe_of(parts).replace({"budget.steps": 8}), parts, resume=True)
    assert rates(parts)[:6] == rates(whole)
    assert rates(parts)[6:] == pytest.approx([2e-6, 2e-6]), "the floor, not a new decay"


def test_another_decay_starts_from_its_own_constants():
    recipe = Recipe.load("scalerl", overrides=["optimiser.decay=linear", "budget.steps=500"])
    fixed = recipe.with_decay_fixed()
    assert (fixed.optimiser.decay_start, fixed.optimiser.decay_steps) == (100, 400)
    assert fixed.replace({"budget.steps": 900}).with_decay_fixed().optimiser.decay_steps == 400
    plain = fixed.replace({"optimiser.decay": "constant"})
    assert plain.optimiser == Recipe.load("scalerl").optimiser


def test_a_study_decays_over_its_whole_budget_and_not_over_the_screening():
    asked = StudyDefinition(recipe=("scalerl", "tiny", "optimiser.decay=cosine"), steps=200,
                            seeds=1, sweep={"optimiser.warmup_steps": (20,)})  # fmt: skip
    found = variants(asked)
    tiny = Recipe.load("scalerl", "tiny").optimiser.warmup_steps
    ends = {n: (r.optimiser.decay_start, r.optimiser.decay_steps) for n, r in found.items()}
    assert ends == {"scalerl+tiny": (tiny, 200 - tiny), "warmup_steps-20": (20, 180)}
