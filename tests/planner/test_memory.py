"""Memory by counting, against what was measured."""

import json
from pathlib import Path

import pytest

from scalerl.planner.accelerators import Accelerator
from scalerl.planner.memory import generator_memory, trainer_memory
from scalerl.planner.model_shape import ModelShape
from scalerl.planner.placements import Placement, memory_need
from scalerl.recipe import Recipe

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
#: The model of benchmarks/scale_out.py, and its batch: 16 rollouts of 48 tokens and their prompts.
SMOL = ModelShape("smol", 30, 576, 1536, 9, 3, 64, 49152, 2048, tied=True)
TOKENS = 16 * 64


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_needs_what_was_measured(ranks):
    rows = json.loads((RESULTS / "scale_out.json").read_text())["fsdp"]["rows"]
    measured = [r for r in rows if r["ranks"] == ranks and r["gives_back"] and r["threads"] == 1]
    counted = trainer_memory(SMOL, "float32", ranks, TOKENS // ranks, recompute=False)
    assert counted.total / 1e6 == pytest.approx(measured[0]["megabytes_a_rank"], rel=0.1)


def test_recomputing_and_sharding_save_memory():
    shape = ModelShape.named("meta-llama/Llama-3.1-8B-Instruct")
    kept = trainer_memory(shape, "bfloat16", 8, 16384, recompute=False)
    less = trainer_memory(shape, "bfloat16", 8, 16384, recompute=True)
    assert less.activations < kept.activations / 5 and less.states == kept.states
    assert trainer_memory(shape, "bfloat16", 16, 16384, recompute=True).states == less.states / 2


def test_a_cache_is_what_the_weights_leave():
    shape, h100 = ModelShape.named("Qwen/Qwen2.5-32B"), Accelerator.named("h100-sxm")
    one, four = (generator_memory(shape, "bfloat16", n, h100) for n in (1, 4))
    assert one.cache_tokens < four.cache_tokens / 40
    assert four.weights == pytest.approx(one.weights / 4)


def test_a_plan_that_does_not_fit_says_by_how_much_and_where():
    recipe = Recipe.load("scalerl")
    shape, device = ModelShape.named(recipe.model.path), Accelerator.named("rtx-4090")
    need = memory_need(shape, device, recipe, Placement(4, 4, "pipeline", 8))
    assert need.problem and "a trainer rank needs" in need.problem and "rtx-4090" in need.problem
    recipe = recipe.replace({"placement.activations": "recompute", "model.dtype": "bfloat16"})
    need = memory_need(shape, device, recipe, Placement(4, 64, "pipeline", 8))
    assert need.problem and "a generator of 1 rtx-4090 lacks" in need.problem
