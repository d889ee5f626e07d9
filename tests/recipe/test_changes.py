"""One rule about what may change when a run is resumed."""

import pytest

from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.recipe.diff import FIXED, FIXED_PHASES, allowed_changes
from scalerl.recipe.problems import known_fields

TINY = Recipe.load("scalerl", "tiny")
OFF_POLICY = Recipe.load("scalerl", "tiny", overrides=["schedule.name=off-policy"])


@pytest.mark.parametrize(
    "change",
    ["optimiser.lr=1e-6", "optimiser.grad_clip=0.5", "schedule.k=1", "batch.prompts=8",
     "batch.generations=4", "length.answer_tokens=99", "validation.every=3", "budget.steps=7",
     "placement.generators=2", "loss.ratio_cap=4", "sampling.temperature=0.9", "checkpoint.keep=5",
     "compute.axis=steps", "loss.name=dapo"],
)  # fmt: skip
def test_knobs_may_be_turned(change):
    key = change.partition("=")[0]
    changed = Recipe.load(TINY.to_dict(), overrides=[change])
    assert key in [d.path for d in allowed_changes(TINY, changed)]


@pytest.mark.parametrize(
    ("change", "why"),
    [("seed=1", "random draw"), ("model.path=other", "weights of this model"),
     ("model.dtype=bfloat16", "weights of this model"), ("task.name=math", "different questions"),
     ("task.options.prompts=7", "different questions"), ("curriculum.threshold=0.5", "dropped"),
     ("compute.count_validation=true", "compute before and after"),
     ("optimiser.name=my.module:sgd", "state of this optimiser"),
     ("schedule.name=off-policy", "in progress")],
)  # fmt: skip
def test_what_makes_the_continuation_meaningless_is_refused_with_the_reason(change, why):
    with pytest.raises(InputError, match=f"cannot change from .* {why}.* --out$"):
        allowed_changes(TINY, Recipe.load(TINY.to_dict(), overrides=[change]))


@pytest.mark.parametrize("change", ["schedule.k=1", "batch.prompts=8"])
def test_an_off_policy_run_keeps_the_size_of_its_phases(change):
    with pytest.raises(InputError, match="off-policy"):
        allowed_changes(OFF_POLICY, Recipe.load(OFF_POLICY.to_dict(), overrides=[change]))


def test_the_rule_names_fields_that_there_are():
    known = set(known_fields()) | {key.partition(".")[0] for key in known_fields()}
    assert known >= set(FIXED) | set(FIXED_PHASES)
