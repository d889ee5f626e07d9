"""Steps that teach nothing: a warning at once, and after some the end, with what to change."""

import pytest

from scalerl.errors import PipelineError
from scalerl.pipeline.alarms import WINDOW, EmptyStepWatch
from scalerl.recipe import Recipe
from scalerl.runs.lines import StepLine


def step(number, pass_rate=0.0, flat=4, **changes):
    filtered = {"prompts": 4, "rollouts": 16, "unscored": 0, "truncated": 0,
                "zero_variance_prompts": flat} | changes  # fmt: skip
    return StepLine.from_dict({"step": number, "pass_rate": pass_rate, "filtered": filtered,
                               "unscored_why": {"no gold answer": 16}})  # fmt: skip


def empty(*overrides):
    return EmptyStepWatch(Recipe.load("scalerl", "tiny", overrides=overrides))


def test_a_step_with_one_prompt_to_learn_from_is_none():
    steps = empty("filter.empty_steps=2")
    for i in range(9):
        assert steps.check_step(step(i, flat=3)) == []


def test_the_first_of_a_row_is_a_warning_and_the_last_ends_the_run():
    steps = empty("filter.empty_steps=3")
    [line] = steps.check_step(step(7))
    assert line.startswith("step 7 taught nothing: the pass rate is 0")
    assert line.endswith("; the run ends after 3 such steps in a row (filter.empty_steps)")
    assert steps.check_step(step(8)) == []
    with pytest.raises(PipelineError, match=r"^the last 3 steps taught nothing: .* --resume; filt"):
        steps.check_step(step(9))


def test_a_step_that_teaches_something_ends_the_row():
    steps = empty("filter.empty_steps=2")
    assert len(steps.check_step(step(0))) == 1
    for i in range(1, 20, 2):
        assert steps.check_step(step(i, flat=1)) == []
        assert steps.check_step(step(i + 1)) == [], "a row soon after another is not said again"


def test_after_some_steps_that_taught_something_the_next_row_is_said_again():
    steps = empty()
    assert len(steps.check_step(step(1))) == 1
    for i in range(2, 2 + WINDOW):
        assert steps.check_step(step(i, flat=1)) == []
    assert len(steps.check_step(step(2 + WINDOW))) == 1


def test_a_limit_of_0_never_ends_a_run():
    steps = empty("filter.empty_steps=0")
    [line] = steps.check_step(step(1))
    assert "the run ends" not in line
    assert [steps.check_step(step(i)) for i in range(2, 100)] == [[]] * 98


@pytest.mark.parametrize(
    ("changes", "overrides", "words"),
    [
        ({}, [], ["pass rate is 0", "too hard", "form", "another model", "easier prompts",
                  "batch.generations = 16"]),
        ({"pass_rate": 1.0}, [], ["pass rate is 1", "too easy", "harder prompts"]),
        ({"pass_rate": 0.25}, [], ["pass rate is 0.25", "middling", "batch.generations"]),
        ({"unscored": 16}, [], ["no rollout has a reward (no gold answer)", "verifier"]),
        ({"truncated": 16}, [], ["cut off", "filter.truncated", "raise length.answer_tokens"]),
        ({"truncated": 16}, ["length.control=none", "length.max_tokens=40"],
         ["raise length.max_tokens"]),
    ],
)  # fmt: skip
def test_what_to_change_comes_with_the_cause(changes, overrides, words):
    [line] = empty(*overrides).check_step(step(1, **changes))
    assert all(word in line for word in words), line
    assert "\n" not in line
