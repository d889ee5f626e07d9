"""The copy of a task that is sent to another process: light, and with the same verdicts."""

import importlib.util
import json
import pickle
import sys

import pytest

from scalerl.errors import InputError
from scalerl.tasks import Answer, Mixture, make_task
from scalerl.tasks.sandbox import find_sandbox

ROWS = 10_000
SMALL = 100_000  # bytes


def installed(package):
    return importlib.util.find_spec(package) is not None


def isolated():
    try:
        find_sandbox()
    except InputError:
        return False
    return True


REWARDS = """
def same(prompts, completions, answer):
    return [1.0 if a == c else -1.0 for a, c in zip(answer, completions)]
shout = lambda prompts, completions, **_: [float(c.isupper()) for c in completions]
async def wait(prompts, completions, **_):
    return [float(len(c)) for c in completions]
"""


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Paths of data sets by task, and a module with reward functions."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_rewards", raising=False)
    (tmp_path / "their_rewards.py").write_text(REWARDS)

    def write(name, row):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(json.dumps(row(i)) for i in range(ROWS)))
        return str(path)

    yield {
        "math": write("math", lambda i: {"prompt": f"{i} + 1 = ?", "answer": str(i + 1)}),
        "code": write(
            "code", lambda i: {"prompt": f"Add {i}.", "test_list": [f"assert f(1) == {i + 1}"]}
        ),
    }
    sys.modules.pop("their_rewards", None)


def make(kind, rows):
    if kind == "math" and not installed("math_verify"):
        pytest.skip("math-verify is not installed")
    if kind == "code" and not isolated():
        pytest.skip("no sandbox on this machine")
    if kind.startswith("reasoning-gym") and not installed("reasoning_gym"):
        pytest.skip("reasoning-gym is not installed")
    if kind.startswith("reasoning-gym"):
        return make_task(kind, options={"size": 300})
    if kind == "mixture":
        parts = ["running-sums", "function:their_rewards:same"]
        return Mixture([make_task(parts[0]), make_task(parts[1], rows["math"])])
    return make_task(kind, rows["code"] if kind == "code" else rows["math"]
                     if kind != "running-sums" else "")  # fmt: skip


def right(prompt):
    """A right answer, by the task that the prompt belongs to."""
    if prompt.task == "code":
        value = int(prompt.answer.tests[0].rpartition("==")[2])
        return f"```python\ndef f(x): return x + {value - 1}\n```"
    if prompt.task == "running-sums":
        tagged, total, thought = prompt.question.partition("=")[0], 0, ""
        for tag, digit in zip(tagged[::2], tagged[1::2], strict=True):
            total += int(digit)
            thought += tag + digit + f"{total % 100:02d}"[::-1]
        return f"{thought}</think>{prompt.answer}"
    if prompt.task.endswith("shout"):
        return "YES"
    return f"\\boxed{{{prompt.answer}}}" if prompt.task == "math" else str(prompt.answer)


def answers(task):
    """Right and wrong answers to a few prompts of every task, and none."""
    asked = [*task.validation_prompts(4), *task.train_prompts(0)[:2]]
    return [Answer(prompt, text) for prompt in asked for text in (right(prompt), "no idea", "")]


KINDS = [
    *("running-sums", "math", "code", "mixture", "reasoning-gym:leg_counting"),
    *("function:their_rewards:same", "function:their_rewards:shout", "function:their_rewards:wait"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_copy_is_small_and_gives_the_same_verdicts_after_a_pickle(kind, rows):
    with make(kind, rows) as task:
        pickled = pickle.dumps(task.for_checking())
        assert len(pickled) < SMALL
        asked = answers(task)
        expected = task.check_all(asked)
        assert [v.correct for v in expected[::3]] == [True] * 6
        assert [v.correct for v in expected[2::3]] == [False] * 6
        with pickle.loads(pickled) as copy:
            assert copy.check_all(asked) == expected


def test_closing_the_copy_leaves_the_original_at_work(rows):
    with make("math", rows) as task:
        asked = answers(task)[:2]
        expected = task.check_all(asked)
        before = task.pool.killed
        copy = task.for_checking()
        assert copy.check_all(asked) == expected
        copy.close()
        assert task.check_all(asked) == expected and task.pool.killed == before


def test_the_copy_leaves_the_originals_prompts_alone(rows):
    task = make("function:their_rewards:same", rows)
    copy = task.for_checking()
    assert len(task.prompts()) == ROWS and not copy.prompts()


def test_a_mixture_says_which_answers_are_judged_together(rows):
    mixture = make("mixture", rows)
    for prompt in mixture.validation_prompts(6):
        assert mixture.scores_together(prompt) == prompt.task.startswith("function:")
        assert mixture.for_checking().scores_together(prompt) == mixture.scores_together(prompt)
