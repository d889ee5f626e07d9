"""Datasets of reasoning-gym by name."""

import importlib.util

import pytest

from scalerl.errors import InputError
from scalerl.tasks import make_task
from scalerl.tasks.reasoning_gym import ReasoningGym

installed = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
)


@installed
@pytest.mark.parametrize("name", ["leg_counting", "basic_arithmetic", "spell_backward"])
def test_its_own_answers_are_right_and_others_wrong(name):
    task = make_task(f"reasoning-gym:{name}", options={"size": 40})
    for prompt in task.train_prompts(0)[:5]:
        right = f"<think>hm</think>So <answer>{prompt.answer}</answer>"
        assert task.check(prompt, right).reward == 1.0
        assert task.check(prompt, f"<think>hm</think>{prompt.answer}").correct
        assert task.check(prompt, "<think>hm</think><answer>no idea</answer>").reward == -1.0
        assert task.check(prompt, f"<think>{prompt.answer}").correct is False


@installed
def test_questions_are_seeded_and_the_split_holds():
    one, other = (ReasoningGym("leg_counting", size=200, data_seed=s) for s in (3, 3))
    assert one.train_prompts(0) == other.train_prompts(0)
    train = {p.id for p in one.train_prompts(0)}
    assert not train & {p.id for p in one.validation_prompts(10)}
    elsewhere = ReasoningGym("leg_counting", size=200, data_seed=4)
    assert not train & {p.id for p in elsewhere.validation_prompts(10)}


@installed
def test_options_of_the_dataset_are_passed_on():
    task = make_task("reasoning-gym:leg_counting", options={"size": 5, "max_animals": 3})
    assert len(task.prompts()) == 5
    with pytest.raises(InputError, match="reasoning-gym:leg_counting refuses its options"):
        make_task("reasoning-gym:leg_counting", options={"size": 5, "max_animal": 3})


@installed
def test_a_wrong_name_gets_the_nearest():
    with pytest.raises(InputError, match="did you mean 'leg_counting'"):
        ReasoningGym("leg_countin")


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install reasoning-gym"):
        ReasoningGym("leg_counting")
