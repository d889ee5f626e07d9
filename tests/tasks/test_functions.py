"""One's own reward function, with TRL's signature."""

import asyncio
import json
import sys

import pytest

from scalerl.errors import InputError
from scalerl.tasks import Answer, make_task

MODULE = """
import asyncio, numpy
def length(prompts, completions, **columns):
    return [float(len(c)) for c in completions]
def columns(prompts, completions, answer, level):
    return [1.0 if c == a and l == "hard" else 0.0 for c, a, l in zip(completions, answer, level)]
def raises(prompts, completions, **_):
    raise RuntimeError("two\\nlines")
def short(prompts, completions, **_):
    return [1.0]
def number(prompts, completions, **_):
    return 1.0
def text(prompts, completions, **_):
    return "11"
def odd(prompts, completions, **_):
    return [None, float("nan"), float("inf"), "1", object(), numpy.float32(0.5)]
def chat(prompts, completions, **_):
    return [1.0 if c[0]["role"] == "assistant" and p[0]["role"] == "user" else 0.0
            for p, c in zip(prompts, completions)]
def late(prompts, completions, **_):
    yield 1.0
    raise RuntimeError("too late")
async def slow(prompts, completions, **_):
    await asyncio.sleep(0.05)
    return [float(len(c)) for c in completions]
async def breaks(prompts, completions, **_):
    await asyncio.sleep(0)
    raise RuntimeError("two\\nlines")
class Remote:
    async def __call__(self, prompts, completions, **_):
        return [2.0] * len(completions)
remote = Remote()
constant = 3
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)

    def task(function, question="1+1?", **options):
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps({"prompt": question, "answer": "2", "level": "hard"}) + "\n")
        return make_task(f"function:my_rewards:{function}", str(path), options=options)

    return task


def test_the_reward_is_the_functions_and_the_pass_rate_has_a_threshold(make):
    task = make("length", correct_from=3.0)
    prompt = task.prompts()[0]
    verdicts = task.check_all([Answer(prompt, "ab"), Answer(prompt, "abc")])
    assert [(v.correct, v.reward) for v in verdicts] == [(False, 2.0), (True, 3.0)]


def test_columns_of_the_dataset_arrive_as_lists(make):
    task = make("columns")
    prompt = task.prompts()[0]
    assert [v.reward for v in task.check_all([Answer(prompt, "2"), Answer(prompt, "3")])] == [
        1.0,
        0.0,
    ]


def test_chat_prompts_come_with_chat_completions(make):
    task = make("chat", question=[{"role": "user", "content": "1+1?"}])
    assert task.check(task.prompts()[0], "2").reward == 1.0


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("raises", "RuntimeError: two lines"),
        ("breaks", "RuntimeError: two lines"),
        ("late", "RuntimeError: too late"),
        ("short", "1 rewards for 2 answers"),
        ("number", "float, not a list"),
        ("text", "str, not a list"),
    ],
)
def test_a_function_that_misbehaves_leaves_answers_unscored_with_the_reason(make, function, why):
    task = make(function)
    prompt = task.prompts()[0]
    for verdict in task.check_all([Answer(prompt, "a"), Answer(prompt, "b")]):
        assert (verdict.correct, verdict.reward) == (None, None)
        assert why in verdict.why


def test_rewards_that_are_no_finite_numbers_are_unscored(make):
    task = make("odd")
    verdicts = task.check_all([Answer(task.prompts()[0], "a")] * 6)
    assert [v.reward for v in verdicts] == [None, None, None, None, None, 0.5]
    assert all(v.why for v in verdicts)


@pytest.mark.parametrize("function", ["missing", "constant"])
def test_a_function_that_is_none_is_refused_at_the_start(make, function):
    with pytest.raises(InputError, match="reward function"):
        make(function)


def test_an_async_function_is_waited_for(make):
    task = make("slow", correct_from=3.0)
    prompt = task.prompts()[0]
    assert task.is_async and not make("length").is_async and make("remote").is_async
    assert [v.reward for v in task.check_all([Answer(prompt, "ab"), Answer(prompt, "abc")])] == [
        2.0,
        3.0,
    ]
    assert task.check_all([]) == []
    assert make("remote").check(prompt, "x").reward == 2.0


def test_async_calls_wait_side_by_side_in_one_event_loop(make):
    task = make("slow")
    prompt = task.prompts()[0]

    async def many():
        began = asyncio.get_running_loop().time()
        found = await asyncio.gather(
            *(task.check_together([Answer(prompt, "ab")]) for _ in range(40))
        )
        return found, asyncio.get_running_loop().time() - began

    found, seconds = asyncio.run(many())
    assert [v.reward for [v] in found] == [2.0] * 40
    assert seconds < 1.0  # one after the other they would take 2


def test_a_function_that_is_not_async_can_be_awaited_as_well(make):
    task = make("length")
    prompt = task.prompts()[0]
    assert asyncio.run(task.check_together([Answer(prompt, "ab")]))[0].reward == 2.0


def test_answers_are_handed_over_together(make):
    task = make("length")
    assert task.together and task.judges_together(task.prompts()[0])
