"""One's own reward function, with TRL's signature."""

import asyncio
import json
import pickle
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
waiting = []
most = []
async def slow(prompts, completions, **_):
    waiting.append(1)
    await asyncio.sleep(0.05)
    most.append(len(waiting))
    waiting.pop()
    return [float(len(c)) for c in completions]
async def breaks(prompts, completions, **_):
    await asyncio.sleep(0)
    raise RuntimeError("two\\nlines")
class Remote:
    async def __call__(self, prompts, completions, **_):
        return [2.0] * len(completions)
remote = Remote()
def ids(prompts, completions, completion_ids, trainer_state):
    return [float(len(i) + trainer_state.global_step) for i in completion_ids]
def logs(prompts, completions, log_metric, log_extra, **_):
    log_metric("brevity", 0.25)
    log_extra("extracted", [c.upper() for c in completions])
    return [1.0] * len(completions)
def leaves(prompts, completions, **_):
    raise SystemExit("no judge today")
async def leaves_later(prompts, completions, **_):
    raise SystemExit("no judge today")
def right(prompts, completions, answer, **_):
    return [1.0 if c == a else 0.0 for c, a in zip(completions, answer)]
def brief(prompts, completions, **_):
    return [None if c == "?" else 1.0 / len(c) for c in completions]
async def judge(prompts, completions, **_):
    await asyncio.sleep(0.01)
    return [None if c == "?" else 0.5 for c in completions]
def silent(prompts, completions, **_):
    return [None] * len(completions)
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
        paths = ",".join(f"my_rewards:{name}" for name in function.split(","))
        return make_task(f"function:{paths}", str(path), options=options)

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
        ("leaves", "my_rewards:leaves raised SystemExit: no judge today"),
        ("leaves_later", "my_rewards:leaves_later raised SystemExit: no judge today"),
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
        return await asyncio.gather(
            *(task.check_together([Answer(prompt, "ab")]) for _ in range(40))
        )

    found = asyncio.run(many())
    assert [v.reward for [v] in found] == [2.0] * 40
    assert max(sys.modules["my_rewards"].most) == 40, "calls that waited at once"


def test_a_function_that_is_not_async_can_be_awaited_as_well(make):
    task = make("length")
    prompt = task.prompts()[0]
    assert asyncio.run(task.check_together([Answer(prompt, "ab")]))[0].reward == 2.0


def test_answers_are_handed_over_together(make):
    task = make("length")
    assert task.together and task.scores_together(task.prompts()[0])


def test_token_ids_and_the_step_of_the_run_arrive_as_in_trl(make):
    task = make("ids")
    prompt = task.prompts()[0]
    found = task.check_all([Answer(prompt, "ab", (5, 6, 7), 40), Answer(prompt, "c", (8,), 40)])
    assert [v.reward for v in found] == [43.0, 41.0]


def test_what_a_function_logs_is_kept(make):
    task = make("logs")
    prompt = task.prompts()[0]
    first, second = task.check_all([Answer(prompt, "ab"), Answer(prompt, "c")])
    assert first.metrics == (("reward/brevity", 0.25),) and second.metrics == ()
    assert first.why.endswith("gave 1; extracted = AB") and second.why.endswith("extracted = C")


def test_several_rewards_are_added_with_weights_and_the_first_says_what_is_right(make):
    task = make("right,brief", reward_weights=[1.0, 0.5])
    prompt = task.prompts()[0]
    found = task.check_all([Answer(prompt, text) for text in ("2", "3", "?")])
    assert [(v.correct, v.reward) for v in found] == [(True, 1.5), (False, 0.5), (False, 0.0)]
    assert found[0].metrics == (("reward/my_rewards:right", 1.0), ("reward/my_rewards:brief", 1.0))
    assert found[2].why.endswith("gave 0, nothing")


def test_without_weights_rewards_count_alike(make):
    task = make("right,brief,judge")
    assert task.check(task.prompts()[0], "2").reward == 2.5


def test_ordinary_and_async_rewards_are_added(make):
    task = make("right,judge", reward_weights=[1, 2])
    prompt = task.prompts()[0]
    assert task.is_async and not task.can_be_cancelled
    assert [v.reward for v in task.check_all([Answer(prompt, "2"), Answer(prompt, "?")])] == [2, 0]


def test_an_answer_is_unscored_only_if_no_function_can_say(make):
    task = make("brief,silent")
    assert task.check(task.prompts()[0], "2").reward == 1.0
    assert task.check(task.prompts()[0], "?").reward is None
    only_shaped = make("silent,brief").check(task.prompts()[0], "2")
    assert (only_shaped.correct, only_shaped.reward) == (None, 1.0)


@pytest.mark.parametrize("broken", ["raises", "breaks", "short", "leaves", "leaves_later", "odd"])
def test_the_function_that_fails_is_named_and_half_a_reward_is_none(make, broken):
    task = make(f"right,{broken}")
    for verdict in task.check_all([Answer(task.prompts()[0], "2")] * 2):
        assert not verdict.scored and f"my_rewards:{broken} " in verdict.why


@pytest.mark.parametrize(
    ("weights", "why"),
    [([1.0], "1 numbers for 2 reward functions"), ([1.0, "x"], "give finite numbers"),
     ("ab", "one per function"), ([1.0, float("nan")], "give finite numbers")],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(make, weights, why):
    with pytest.raises(InputError, match=why):
        make("right,brief", reward_weights=weights)


def test_a_task_of_several_functions_travels_to_checkers(make):
    task = pickle.loads(pickle.dumps(make("right,brief").for_checking()))
    assert task.check(make("right").prompts()[0], "2").reward == 2.0
