"""Real engine and trainer in one process on the virtual clock: it learns, and repeats itself."""

import json

import pytest

from scalerl import Recipe, train

SMALL = ["placement.backend=inline", "batch.prompts=4", "batch.generations=4", "budget.steps=3",
         "validation.prompts=6", "validation.k=1", "validation.every=2",
         "task.options.prompts=200", "task.options.items_max=6"]  # fmt: skip
#: What a real clock says, here too.
REAL = {"seconds"}


def lines(path):
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for line in found:
        line.get("ledger", {}).pop("cpu_seconds", None)
    return [{k: v for k, v in line.items() if k not in REAL} for line in found]


def test_a_real_run_on_the_virtual_clock_repeats_itself_bit_for_bit(tmp_path):
    recipe = Recipe.load("scalerl", "tiny", overrides=SMALL)
    ends = [train(recipe, tmp_path / name) for name in ("first", "second")]
    assert ends[0] == ends[1] and ends[0].steps == 3
    for name in ("steps.jsonl", "evals.jsonl"):
        assert lines(tmp_path / "first" / name) == lines(tmp_path / "second" / name)
    steps = lines(tmp_path / "first" / "steps.jsonl")
    assert all(step["grad_norm"] > 0 for step in steps)
    assert any(step["mixed_versions"] > 0 for step in steps), "weights change in flight"
    # Time is the world's: 0.3 s for a step.
    assert steps[0]["ledger"]["spent"]["train"] == pytest.approx(0.3)


def test_with_a_lag_every_token_is_exactly_that_old(tmp_path):
    recipe = Recipe.load(
        "scalerl", "tiny-short", overrides=[*SMALL, "schedule.name=lag", "schedule.k=2",
                                            "budget.steps=4"]
    )  # fmt: skip
    train(recipe, tmp_path / "run")
    found = [list(step["staleness"]["histogram"]) for step in lines(tmp_path / "run/steps.jsonl")]
    assert found == [["0"], ["1"], ["2"], ["2"]]
