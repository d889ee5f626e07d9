"""Environments by import path, whatever library they were written for."""

import asyncio
import gc
import json
import pickle
import subprocess
import sys
import threading
import time

import pytest

from scalerl import Recipe, train
from scalerl.environments.interface import Action, Environment, Observation, Outcome, ToolCall
from scalerl.environments.task import ENVIRONMENTS, adapt
from scalerl.environments.threads import OwnThread
from scalerl.errors import InputError
from scalerl.tasks import make_task
from scalerl.tasks.task import Prompt


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [{"prompt": f"Question {i}", "answer": str(i), "target": 3, "truth": "yes", "seed": i}
             for i in range(60)]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def task_of(name, dataset="", **options):
    return make_task(f"environment:shapes:{name}", dataset, options=options)


def play(task, *turns, prompt=None, seed=5):
    """The replies of an episode: to reset, then to each turn (a text, or tool calls)."""

    async def episode():
        environment = task.new_environment(prompt or task.prompts()[7])
        try:
            replies = [await environment.reset(prompt or task.prompts()[7], seed)]
            for turn in turns:
                calls = () if isinstance(turn, str) else tuple(turn)
                text = turn if isinstance(turn, str) else ""
                replies.append(await environment.step(Action(text, calls)))
            return replies
        finally:
            await environment.close()

    return asyncio.run(episode())


def said(reply):
    return [message["content"] for message in reply.messages]


def test_an_environment_of_ours_with_prompts_and_tools_of_its_own():
    task = task_of("Adder", settings={"bonus": 0.5})
    assert len(task.prompts()) == 50
    assert task.prompts()[3].answer == 6
    add = ToolCall("add", {"a": 7, "b": 7})
    first, second, last = play(task, [add, ToolCall("ad")], "14")
    assert [tool["function"]["name"] for tool in first.tools] == ["add"]
    assert said(second) == ["14", "error: there is no tool 'ad', only add"]
    assert second.tool_failures == 1
    assert last.score.correct
    assert last.score.reward == 1.5


def test_a_plain_class_that_blocks_and_wants_one_thread(rows):
    import shapes

    shapes.Guess.closed = 0
    task = task_of("Guess", rows)
    first, higher, last = play(task, "3", "7")
    assert said(first) == ["Guess! (seed 7)"]  # the row's own seed wins over the episode's
    assert (said(higher), higher.reward) == (["higher"], -0.1)
    assert last == Outcome(last.score)
    assert (last.score.correct, last.score.reward) == (False, 1.0)  # the sum, 0.9, is below 1
    assert shapes.Guess.closed == 1
    assert play(task_of("Guess", rows, correct_from=0.5), "3", "7")[-1].score.correct


def test_an_async_class_with_mappings(rows):
    first, shown, last = play(task_of("AsyncGuess", rows), "abc", "d")
    assert first == Observation()
    assert shown.messages == ({"role": "tool", "content": "ABC"},)
    assert (last.score.correct, last.score.reward) == (True, 0.25)


def test_gymnasiums_shape(rows):
    first, going, last = play(task_of("Gym", rows), "go", "stop")
    assert said(first) == ["start 7"]
    assert (said(going), going.reward) == (["state"], 0.5)
    assert last.score.correct


def test_trls_documented_environment_unchanged():
    task = task_of("IncrementEnv", prompt_count=20)
    assert len(task.prompts()) == 20
    assert {p.question for p in task.prompts()} == {"Begin."}
    assert len({p.id for p in task.prompts()}) == 20
    drawn = [said(play(task, prompt=prompt)[0]) for prompt in task.prompts()]
    # The class draws with the global generator: the same prompt gives the same task again.
    assert drawn == [said(play(task, prompt=p, seed=99)[0]) for p in task.prompts()]
    assert len(set(map(tuple, drawn))) > 2
    prompt = task.prompts()[0]
    target = int(drawn[0][0].split()[-1].rstrip("."))
    calls = [ToolCall("increment", {"step": str(target - 1)}), ToolCall("increment", {"step": 1})]
    first, shown, last = play(task, calls, "Done.", prompt=prompt)
    assert [tool["function"]["name"] for tool in first.tools] == ["increment"]
    described = first.tools[0]["function"]["parameters"]["properties"]["step"]
    assert described == {"type": "integer", "description": "How far to count."}
    assert said(shown) == [str(target - 1), str(target)]
    assert (last.score.correct, last.score.reward) == (True, 1.0)
    assert not play(task, [calls[1]], "Done.", prompt=prompt)[-1].score.correct or target == 1


def test_a_tool_named_step_is_a_tool_where_the_class_scores_itself():
    call = ToolCall("step", {"message": "Hello!"})
    first, shown, last = play(task_of("Echo", prompt_count=20), [call], "Done.")
    assert [tool["function"]["name"] for tool in first.tools] == ["step"]
    assert said(shown) == ["Hello!"]
    assert (last.score.correct, last.score.reward) == (False, 0.6)


def test_trls_classes_without_get_reward_score_by_their_attribute():
    task = task_of("Hunt", prompt_count=20)
    (asked,) = said(play(task)[0])
    found = [play(task, [ToolCall("lookup", {"key": k})], "=")[-1].score for k in asked[:2]]
    assert sorted(score.reward for score in found) == [0.0, 1.0]
    everything = [ToolCall("lookup", {"key": k}) for k in asked[:2] * 2]
    _, shown, last = play(task, everything, "=")
    assert "error: lookup raised ValueError: the hunt is over" in said(shown)
    assert last.score.correct


def test_a_short_run_trains_in_a_class_of_the_shape_of_trls_wordle(tmp_path):
    where = ["placement.backend=inline", "task.name=environment:shapes:Hunt",
             'task.options.instruction=""', "task.options.prompt_count=60", "batch.prompts=8",
             "batch.generations=8", "budget.steps=3", "validation.prompts=2", "validation.k=1",
             "validation.also_temperatures=[]"]  # fmt: skip
    train(Recipe.load("scalerl", "tiny-tools", overrides=where), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").open()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line["reward"] > 0 and line["grad_norm"] > 0
        assert line["play"]["tool_calls"] > 0 and line["play"]["failed"] == 0


def test_seeding_leaves_the_global_generators_as_they_were():
    import random

    random.seed(3)
    expected = random.random()
    task = task_of("IncrementEnv", prompt_count=20)
    random.seed(3)
    play(task)
    assert random.random() == expected


def test_trls_shape_with_a_dataset_and_async_methods(rows):
    task = task_of("AsyncIncrement", rows)
    first, shown, last = play(task, [ToolCall("increment", {"step": 3})], "ok")
    assert first.messages == ()
    assert said(shown) == ["3"]
    assert last.score.correct

    async def cut():
        environment = task.new_environment(task.prompts()[0])
        await environment.reset(task.prompts()[0], 0)
        return await environment.cut_off()

    assert asyncio.run(cut()).score.reward == 0.0


def test_skyrls_shape(rows):
    task = task_of("Sky", rows)
    first, again, last = play(task, "no", "yes")
    assert said(first) == ["Think."]
    assert (said(again), again.reward) == (["Again."], None)
    assert last.score.correct


def test_textarenas_shape_shows_only_what_is_new():
    for name in ("Arena", "wrapped_arena"):
        first, shown, last = play(task_of(name, prompt_count=9), "[3]", "[7]")
        assert said(first) == ["Guess the number 7."]
        assert said(shown) == ["No."]  # neither the player's own words nor the first line again
        assert (last.score.correct, last.score.reward) == (True, 1.0)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("Unmakeable", {}, "environment shapes:Unmakeable cannot be made: OSError: no server"),
        ("Adder", {"settings": {"bonsu": 1}}, "cannot be made: TypeError.*'bonsu'"),
        ("Nothing", {}, "a Nothing is not an environment: it has neither step"),
        ("NoHints", {}, "shapes:NoHints: tool look has no type hint for where"),
        ("NoReward", {}, "shapes:NoReward: NoReward has no get_reward"),
        ("Missing", {}, "environment 'shapes:Missing' cannot be imported: AttributeError"),
        ("WrongPrompts", {}, "shapes:WrongPrompts.prompts returned int, not a list"),
        ("BoundPrompts", {}, "prompts needs an object: make it a classmethod"),
        ("Adder", {"colour": 1}, "task.options do not fit 'environment:shapes:Adder'"),
    ],
)
def test_an_environment_that_cannot_work_is_refused_in_one_line(name, options, problem):
    with pytest.raises(InputError, match=problem) as caught:
        task_of(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "what", "problem"),
    [
        ("step", "bytes", r"returned bytes, not \(text, reward, done\)"),
        ("step", "none", r"returned None, not \(text, reward, done\)"),
        ("text", "bytes", "returned bytes, not text or messages"),
        ("text", "none", "returned None, not text or messages"),
        ("text", "number", "returned int, not text or messages"),
        ("text", "list", "returned a message that is bytes"),
        ("text", "role", "returned a message with the role 'assistant'"),
        ("text", "content", "returned a message with int as content"),
        ("text", "nan", "returned the reward nan, not a finite number"),
        ("text", "words", "returned the reward 'much', not a finite number"),
        ("reset", "bytes", "returned bytes, not text or messages"),
        ("reset", "number", "returned int, not text or messages"),
    ],
)
def test_a_wrong_reply_is_named_in_one_line(where, what, problem):
    task = task_of("Returns", settings={"what": what, "where": where}, prompt_count=9)
    with pytest.raises(InputError, match=f"environment shapes:Returns: .*{problem}") as caught:
        play(task, "x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("bytes", "step returned bytes, not an Observation or Outcome"),
        ("none", "step returned None, not an Observation or Outcome"),
        ("messages", "step returned a message with bytes as content, not text"),
        ("score", "step returned a score of float, not an AnswerScore"),
        ("nan", "step returned the reward nan, not a finite number"),
    ],
)
def test_a_wrong_reply_of_a_subclass_of_ours_is_named_too(what, problem):
    task = task_of("OurReturns", settings={"what": what}, prompt_count=9)
    with pytest.raises(InputError, match=f"environment shapes:OurReturns: {problem}"):
        play(task, "x")


def test_a_row_without_what_reset_needs_says_so():
    with pytest.raises(InputError, match=r"NeedsMore\.reset needs 'elsewhere', which the row does"):
        play(task_of("NeedsMore", prompt_count=9))


def test_registered_names_need_their_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(InputError, match="textarena is not installed: pip install textarena"):
        make_task("environment:textarena", options={"settings": {"game": "x"}})
    with pytest.raises(InputError, match="no environment 'textarea': did you mean 'textarena'"):
        make_task("environment:textarea")
    with pytest.raises(InputError, match="incomplete: write environment:NAME"):
        make_task("environment")


def test_a_registered_class(monkeypatch):
    import shapes

    monkeypatch.setattr(ENVIRONMENTS, "_found", dict(ENVIRONMENTS._found))
    ENVIRONMENTS.register("adder-for-a-test")(shapes.Adder)
    task = make_task("environment:adder-for-a-test")
    assert isinstance(task.new_environment(task.prompts()[0]), Environment)


def test_the_copy_for_workers_is_light_and_makes_environments(rows):
    task = task_of("Guess", rows)
    packed = pickle.dumps(task.for_checking())
    assert len(packed) < 2000
    assert said(play(pickle.loads(packed), prompt=task.prompts()[3])[0]) == ["Guess! (seed 3)"]


def test_a_mixture_asks_its_member(rows):
    task = make_task("environment:shapes:Guess+environment:shapes:Gym", rows)
    prompts = {p.task: p for p in task.prompts()}
    assert said(play(task, prompt=prompts["environment:shapes:Gym"])[0]) == ["start 59"]
    assert make_task("running-sums").new_environment(Prompt("x", "1+1")) is None


def test_a_hanging_call_blocks_neither_the_loop_nor_closing():
    held = threading.Event()

    class Hangs:
        def step(self, text):
            held.wait(60)
            return "late", 0.0, False

        def close(self):
            raise AssertionError("closing would wait behind the call")

    async def play_it():
        environment = adapt(Hangs())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(environment.step(Action("x")), 0.05)
        await asyncio.wait_for(environment.close(), 10)

    before = time.process_time()
    asyncio.run(play_it())
    held.set()
    assert time.process_time() - before < 5


def test_a_thread_of_an_environment_ends_with_it():
    async def use():
        thread = OwnThread()
        assert await thread.run(lambda: 3) == 3
        with pytest.raises(RuntimeError, match="StopIteration"):
            await thread.run(next, iter([]))
        inner = thread._thread
        thread.stop()
        return inner

    inner = asyncio.run(use())
    inner.join(timeout=60)
    assert not inner.is_alive()


def test_a_thread_that_was_never_stopped_ends_with_its_environment():
    async def use():
        thread = OwnThread()
        await thread.run(lambda: 3)
        return thread._thread

    inner = asyncio.run(use())
    gc.collect()
    inner.join(timeout=60)
    assert not inner.is_alive()


def test_importing_environments_loads_nothing_heavy():
    code = (
        "import sys, scalerl.environments.task, scalerl.environments.adapters.mcp\n"
        "heavy = ['torch', 'transformers', 'numpy', 'pydantic', 'mcp', 'textarena']\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
