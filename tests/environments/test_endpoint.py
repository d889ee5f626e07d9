"""Drivers that call the model themselves: over HTTP on loopback, and without."""

import asyncio
import json
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import drivers
import httpx
import pytest

from scalerl.environments.driven import DrivenEnvironment
from scalerl.environments.endpoint.app import MAX_BYTES
from scalerl.environments.interface import Action, Outcome, ToolCall
from scalerl.errors import InputError
from scalerl.tasks import make_task
from scalerl.tasks.task import Prompt

PROMPT = Prompt("t/1", "What is 3 + 4?", answer=7)
CALL = Action(
    'I add. <tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>',
    (ToolCall("add", {"a": 3, "b": 4}),),
    token_ids=(5, 6),
    logprobs=(-0.5, -0.25),
)


def task_of(name, **options):
    return make_task(f"environment:drivers:{name}", "", options=options)


async def play(environment, actions, seed=5):
    replies = [await environment.reset(PROMPT, seed)]
    for action in actions:
        replies.append(await environment.step(action))
    return replies


def played(name, *turns, **options):
    """The replies of an episode; leaves nothing behind."""

    async def episode():
        environment = task_of(name, **options).new_environment(PROMPT)
        actions = [Action(t) if isinstance(t, str) else t for t in turns]
        try:
            return await play(environment, actions)
        finally:
            await environment.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    return asyncio.run(episode())


def said(messages):
    return [(m["role"], m["content"]) for m in messages]


class Server:
    """A session with a driver that only waits, to send requests by hand; `turns` answers them."""

    def __init__(self, *turns):
        self.turns = turns

    async def __aenter__(self):
        self.entered = asyncio.Event()

        async def rollout(prompt, client):
            self.client = client
            self.web = httpx.AsyncClient(base_url=client.base_url, timeout=30)
            self.entered.set()
            await asyncio.sleep(3600)

        self.environment = DrivenEnvironment(rollout)
        self.playing = asyncio.create_task(play(self.environment, self.turns))
        await self.entered.wait()
        return self

    async def __aexit__(self, *_):
        self.playing.cancel()
        await self.web.aclose()
        await self.environment.close()

    async def post(self, body=None, key=None, path="/chat/completions", **more):
        fields = {"model": "policy", "messages": [drivers.user("?")], **more}
        content = body if body is not None else json.dumps(fields)
        headers = {"Authorization": f"Bearer {key or self.client.api_key}"}
        return await self.web.post(path, content=content, headers=headers)


def test_an_episode_over_http_with_tools():
    first, second, last = played("calculator", CALL, "7")
    assert said(first.conversation) == [("system", "Be brief."), ("user", "What is 3 + 4?")]
    assert list(first.tools) == [drivers.TOOL]
    assert second.messages == ({"role": "tool", "name": "add", "content": "7"},)
    assert second.conversation is None
    assert isinstance(last, Outcome)
    assert (last.score.correct, last.score.reward) == (True, 1.0)


def test_a_replay_without_token_ids_observes_the_same():
    played_before = played("calculator", CALL, "7")
    assert played("calculator", Action(CALL.text, CALL.tool_calls), "7") == played_before


def test_an_ordinary_function_runs_in_a_thread_and_takes_settings():
    before = set(threading.enumerate())
    first, second, third, last = played("blocking", "a", " b\n", "c", settings={"turns": 3})
    assert said(first.conversation) == [("user", "What is 3 + 4?")]
    assert [said(r.messages) for r in (second, third)] == [[("user", "more (seed 5)")]] * 2
    assert (last.score.reward, last.score.why) == (0.5, "it went on")
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_an_object_with_a_method_is_closed():
    drivers.Rollouts.closed = 0
    _, last = played("Rollouts", "four", settings={"bonus": 0.5}, correct_from=4)
    assert (last.score.reward, last.score.correct) == (4.5, True)
    assert drivers.Rollouts.closed == 2  # the trial when the task is made, and this one


def test_a_history_that_is_rewritten_is_given_whole():
    replies = played("rewriting", CALL, "y", "z", "a", "b", "c")
    _, second, third, fourth, changed, untooled, last = replies
    assert said(second.messages) == [("user", "two")]
    # The turn with the call is shown as the policy wrote it.
    assert said(third.conversation) == [
        ("user", "one"), ("assistant", CALL.text), ("user", "three")]  # fmt: skip
    assert list(third.tools) == [drivers.TOOL]
    made_up = 'so far\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    assert said(fourth.conversation) == [
        ("user", "summary"), ("assistant", made_up), ("tool", "3")]  # fmt: skip
    assert said(changed.conversation)[0] == ("user", "other")
    assert said(untooled.conversation)[-1] == ("user", "5")
    assert untooled.tools == ()
    assert last.score.reward == 1.0


def test_requests_at_once_are_answered_one_after_the_other():
    first, second, third, last = played("at_once", "a", "b", "c")
    shown = [said(reply.conversation) for reply in (first, second, third)]
    assert shown == [[("user", f"part {i}")] for i in range(3)]
    assert last.score.reward == 1.0


@pytest.mark.parametrize("http", [False, True])
def test_a_request_that_is_sent_again_is_not_written_twice(http):
    async def episode(wait):
        settings = {"http": http}
        environment = task_of("impatient", settings=settings).new_environment(PROMPT)
        await environment.reset(PROMPT, 5)
        await asyncio.sleep(wait)
        last = await environment.step(Action("yes"))
        await environment.close()
        return last.score.reward

    # The turn arrives between the two requests, and after the second.
    assert [asyncio.run(episode(wait)) for wait in (0.07, 0.3)] == [1.0, 1.0]


def test_a_request_that_is_given_up_in_the_queue_is_not_written():
    first, second, last = played("fickle", "a", "b")
    assert said(first.conversation) == [("user", "keep")]
    assert said(second.messages) == [("user", "next")]
    assert last.score.reward == 1.0


def test_a_call_that_cannot_be_read_is_counted():
    unread = Action("<tool_call>x", (ToolCall("", problem="not JSON"),))
    _, second, _ = played("blocking", unread, "b")
    assert second.tool_failures == 1


def test_many_sessions_share_one_server_which_stops_with_the_last():
    async def both():
        task = task_of("calculator")
        made = [task.new_environment(PROMPT) for _ in range(20)]
        replies = await asyncio.gather(*(play(each, [CALL, Action("7")]) for each in made))
        ports = {environment.inner._client.base_url for environment in made}
        await asyncio.gather(*(each.close() for each in made))
        return replies, ports

    replies, ports = asyncio.run(both())
    assert all(last.score.reward == 1.0 for *_, last in replies)
    assert len(ports) == 1
    port = int(ports.pop().rpartition(":")[2].partition("/")[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_turn_in_openais_form_with_ids_and_logprobs():
    async def ask():
        async with Server(CALL) as server:
            models = await server.web.get(
                "/models", headers={"Authorization": f"Bearer {server.client.api_key}"}
            )
            options = {"temperature": 0.1, "logprobs": True, "return_token_ids": True}
            with pytest.warns(UserWarning, match="set temperature: ignored, because the recipe"):
                reply = await server.post(tools=[drivers.TOOL], **options)
            return models.json(), reply

    models, reply = asyncio.run(ask())
    assert [model["id"] for model in models["data"]] == ["policy"]
    assert reply.headers["x-scalerl-ignored"] == "temperature"
    choice = reply.json()["choices"][0]
    assert choice["message"]["content"] == "I add."
    call = choice["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("add", {"a": 3, "b": 4})
    assert choice["finish_reason"] == "tool_calls"
    assert choice["token_ids"] == [5, 6]
    tokens = choice["logprobs"]["content"]
    assert [(t["token"], t["logprob"]) for t in tokens] == [
        ("token_id:5", -0.5), ("token_id:6", -0.25)]  # fmt: skip
    assert reply.json()["usage"]["completion_tokens"] == 2


def test_a_stream_says_the_same():
    async def ask():
        async with Server(CALL) as server:
            options = {"include_usage": True}
            return await server.post(tools=[drivers.TOOL], stream=True, stream_options=options)

    reply = asyncio.run(ask())
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, done = [line[6:] for line in reply.text.split("\n") if line]
    assert done == "[DONE]"
    written, last, usage = map(json.loads, events)
    assert written["choices"][0]["delta"]["content"] == "I add."
    assert written["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "add"
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 2)


@pytest.mark.parametrize(
    ("action", "more", "content", "finish"),
    [
        (CALL, {}, CALL.text, "stop"),  # without tools a call is text
        (Action("<tool_call>x", (ToolCall("", problem="not JSON"),)), {"tools": [drivers.TOOL]},
         "<tool_call>x", "stop"),
        (Action("half", truncated=True), {}, "half", "length"),
        (Action("a Observation: b"), {"stop": ["Observation:"]}, "a ", "stop"),
    ],
)  # fmt: skip
def test_what_a_turn_says(action, more, content, finish):
    async def ask():
        async with Server(action) as server:
            return (await server.post(**more)).json()["choices"][0]

    choice = asyncio.run(ask())
    assert choice["message"] == {"role": "assistant", "content": content}
    assert choice["finish_reason"] == finish


def test_positional_arguments_get_the_names_of_the_schema():
    text = "<tool_call>add(3, b=4)</tool_call>"

    async def ask():
        async with Server(Action(text, (ToolCall("add", {"0": 3, "b": 4}),))) as server:
            reply = await server.post(tools=[drivers.TOOL])
            return reply.json()["choices"][0]["message"]

    message = asyncio.run(ask())
    assert message["content"] is None
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 3, "b": 4}


BAD = [
    ({"key": "sk-other"}, 401, "the API key is of no episode under way: use client.api_key"),
    ({"model": "gpt-4"}, 404, "there is no model 'gpt-4' here: ask for 'policy'"),
    ({"body": "{"}, 400, "the body is not JSON: Expecting property name"),
    ({"body": "[" * 100_000}, 400, "the body is not JSON"),
    ({"body": b"\xff"}, 400, "the body is not JSON"),
    ({"body": "[]"}, 400, "the body must be a JSON object with model and messages"),
    ({"body": " " * (MAX_BYTES + 1)}, 413, f"the request is longer than {MAX_BYTES} bytes"),
    ({"messages": None}, 400, "messages must be a list, not None"),
    ({"messages": []}, 400, "messages is empty: give at least one"),
    ({"messages": ["x"]}, 400, "a message must be an object, not str"),
    ({"messages": [{"role": "pirate"}]}, 400, "a message has the role 'pirate': give one of"),
    ({"messages": [drivers.user(3)]}, 400, "the content of a message is int, not text"),
    ({"messages": [drivers.user("\ud800")]}, 400, "a message has half a surrogate pair"),
    ({"messages": [drivers.user([{"type": "image_url"}])]}, 400, "a part of the type 'image_url'"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, 400, "no function with a name"),
    ({"messages": [{"role": "assistant", "tool_calls": 3}]}, 400, "tool_calls must be a list"),
    ({"messages": [{"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": "{"}}]}]}, 400, "are not JSON"),
    ({"tools": [{"name": "f"}]}, 400, 'a tool must be {"type": "function"'),
    ({"stop": [3]}, 400, "stop must be a text or a list of texts"),
    ({"n": 2}, 400, "n = 2 is not supported by this endpoint: leave it out"),
    ({"top_logprobs": 5}, 400, "top_logprobs = 5 is not supported"),
    ({"stream": True, "stream_options": 3}, 400, "stream_options must be an object, not int"),
]  # fmt: skip


def test_bad_requests_are_answered_in_one_line_and_the_session_goes_on():
    async def ask():
        async with Server(Action("fine")) as server:
            answers = [await server.post(**fields) for fields, _, _ in BAD]
            return answers, (await server.post()).json()

    answers, good = asyncio.run(ask())
    for reply, (_, status, why) in zip(answers, BAD, strict=True):
        message = reply.json()["error"]["message"]
        assert (reply.status_code, why in message, "\n" in message) == (status, True, False), reply
    assert good["choices"][0]["message"]["content"] == "fine"


@pytest.mark.parametrize(
    ("name", "turns", "why"),
    [
        ("raises", ["a"], "step failed: the driver raised KeyError: 'no\\nsuch thing'"),
        ("exits", [], "reset failed: the driver raised SystemExit: 3"),
        ("returns_text", ["a"], "step returned str from the driver: return a number"),
        ("returns_nothing", ["a"], "step returned None from the driver: return a number"),
        ("returns_a_list", ["a"], "step returned the reward [1.0], not a finite number"),
        ("never_asks", [], "reset failed: the driver ended without a request to the model"),
        ("blocks_the_loop", [], "chat_in_thread would block all episodes: await client.chat"),
        ("image", [], "a message has a part of the type 'image_url': only text is supported"),
    ],
)
def test_a_driver_that_fails_fails_its_episode_in_one_line(name, turns, why):
    with pytest.raises(InputError) as caught:
        played(name, *turns)
    assert str(caught.value).startswith(f"environment drivers:{name}: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["hangs", "sleeps"])
def test_a_driver_that_never_asks_has_a_deadline(name, monkeypatch):
    drivers.WAKE.clear()
    monkeypatch.setattr("scalerl.environments.driven.GRACE", 0.1)  # `sleeps` cannot be ended

    async def episode():
        environment = DrivenEnvironment(getattr(drivers, name), patience=0.1)
        try:
            await environment.reset(PROMPT, 5)
        finally:
            await environment.close()

    with pytest.raises(InputError, match=r"neither asked the model nor ended in 0\.1 s"):
        asyncio.run(episode())
    drivers.WAKE.set()


def test_settings_that_a_driver_does_not_take_are_known_before_the_run():
    with pytest.raises(InputError, match=r"drivers:blocking cannot be made: TypeError: .*'turn'"):
        task_of("blocking", settings={"turn": 3})


def test_a_driver_in_a_thread_that_is_cut_off_gets_an_error_and_ends():
    async def episode():
        environment = task_of("blocking_and_ended").new_environment(PROMPT)
        await play(environment, [Action("a")])
        assert await environment.cut_off() is None
        await environment.close()

    drivers.SEEN.clear()
    asyncio.run(episode())
    [(thread, why)] = drivers.SEEN
    assert why == "the episode reached a limit of turns or tokens"
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_a_request_after_the_end_is_refused():
    async def episode():
        async with Server() as server:
            waiting = asyncio.create_task(server.post())
            while not server.playing.done():
                await asyncio.sleep(0.01)
            await server.environment.cut_off()
            late = await server.post(messages=[drivers.user("late")])
            await server.environment._client.leave()
            return await waiting, late

    for reply in asyncio.run(episode()):
        assert reply.status_code == 410
        assert reply.json()["error"]["message"] == "the episode reached a limit of turns or tokens"


def test_without_the_extra_only_the_address_is_missing():
    code = (
        "import sys, test_endpoint as t\n"
        "sys.modules['uvicorn'] = None; del sys.modules['scalerl.environments.endpoint.app']\n"
        "print(t.played('blocking', 'a', 'b')[-1].score.reward)\n"
        "try: t.played('calculator')\n"
        "except ValueError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert run.stdout.splitlines() == [
        "0.5",
        "environment drivers:calculator: reset failed: an endpoint for drivers needs uvicorn: "
        "pip install 'scalerl[serve]'",
    ]


def test_nothing_is_left_of_many_episodes_that_end_anyhow():
    """Cut off, closed in the middle, failed or played to the end, a few at a time."""
    chance = random.Random(3)
    names = ["calculator", "blocking", "raises", "impatient", "at_once", "blocking_and_ended"]
    tasks = {name: task_of(name) for name in names}

    async def episode(name, turns, how):
        environment = tasks[name].new_environment(PROMPT)
        try:
            reply = await environment.reset(PROMPT, 5)
            for _ in range(turns):
                if isinstance(reply, Outcome):
                    return
                reply = await environment.step(CALL if chance.random() < 0.5 else Action("7"))
            if how == "cut off":
                await environment.cut_off()
        except InputError:
            pass
        finally:
            await environment.close()

    async def many():
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                how = chance.choice(["cut off", "closed"])
                group.create_task(episode(chance.choice(names), chance.randrange(4), how))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        # Threads end by themselves, a moment after their driver.
        for thread in set(threading.enumerate()) - before:
            thread.join(timeout=30)

    before = set(threading.enumerate())
    files = []
    for _ in range(6):
        asyncio.run(many())
        files.append(len([*Path("/proc/self/fd").iterdir()]))
    assert files[1:] == files[:1] * 5
    assert set(threading.enumerate()) <= before
