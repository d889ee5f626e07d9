"""Drivers: programs that call the model themselves, as users write them."""

import asyncio
import json
import threading
from functools import partial
from types import SimpleNamespace

import httpx

from scalerl.tasks.task import AnswerScore

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def user(text):
    return {"role": "user", "content": text}


async def calculator(prompt, client):
    """Async, over HTTP, with a tool: the example of the docs."""
    messages = [{"role": "system", "content": "Be brief."}, user(prompt.question)]
    headers = {"Authorization": f"Bearer {client.api_key}"}
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers, timeout=600) as web:
        while True:
            body = {"model": client.model, "messages": messages, "tools": [TOOL]}
            reply = (await web.post("/chat/completions", json=body)).raise_for_status().json()
            message = reply["choices"][0]["message"]
            messages.append(message)
            if "tool_calls" not in message:
                return float(message["content"] == str(prompt.answer))
            for call in message["tool_calls"]:
                given = json.loads(call["function"]["arguments"])
                total = str(given["a"] + given["b"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": total})


def blocking(prompt, client, turns=2):
    """An ordinary function, without HTTP."""
    messages = [user(prompt.question)]
    for _ in range(turns):
        reply = client.chat_in_thread(messages)
        messages += [reply.message, user(f"more (seed {client.seed})")]
    return AnswerScore(True, 0.5, "it went on")


class Rollouts:
    """An object with a method, and something to close."""

    closed = 0

    def __init__(self, bonus=0.0):
        self.bonus = bonus

    async def rollout(self, prompt, client):
        reply = await client.chat([user(prompt.question)])
        return self.bonus + len(reply.text)

    def close(self):
        type(self).closed += 1


async def rewriting(prompt, client):
    """Goes on from an earlier prefix, then from a summary of its own."""
    first = [user("one")]
    reply = await client.chat(first, [TOOL])
    await client.chat([*first, reply.message, user("two")], [TOOL])
    await client.chat([*first, reply.message, user("three")], [TOOL])
    made_up = {"role": "assistant", "content": "so far", "tool_calls": [
        {"id": "x", "function": {"name": "add", "arguments": '{"b": 2, "a": 1}'}}]}  # fmt: skip
    summary = [user("summary"), made_up, {"role": "tool", "tool_call_id": "x", "content": "3"}]
    reply = await client.chat(summary, [TOOL])
    other = [user("other"), *summary[1:], reply.message, user("4")]
    reply = await client.chat(other, [TOOL])
    await client.chat([*other, reply.message, user("5")])
    return 1.0


async def at_once(prompt, client):
    """Three requests at a time."""
    asked = [client.chat([user(f"part {i}")]) for i in range(3)]
    return float("".join(reply.text for reply in await asyncio.gather(*asked)) == "abc")


async def impatient(prompt, client, http=False):
    """Hangs up, and sends the same request again, as clients do after a timeout."""

    async def over_http():
        headers = {"Authorization": f"Bearer {client.api_key}"}
        body = {"model": client.model, "messages": [user("slow?")]}
        async with httpx.AsyncClient(base_url=client.base_url, headers=headers) as web:
            reply = await web.post("/chat/completions", json=body)
        return SimpleNamespace(text=reply.json()["choices"][0]["message"]["content"])

    ask = over_http if http else partial(client.chat, [user("slow?")])
    try:
        await asyncio.wait_for(ask(), 0.05)
    except TimeoutError:
        await asyncio.sleep(0.05)
        return float((await ask()).text == "yes")
    return -1.0


async def fickle(prompt, client):
    """Gives up one of two requests before its turn has come."""
    asked = [asyncio.create_task(client.chat([user(text)])) for text in ("keep", "drop")]
    while len(client._session._queue) < 1:  # the first is with the policy, the second waits
        await asyncio.sleep(0)
    asked[1].cancel()
    first = await asked[0]
    await client.chat([user("keep"), first.message, user("next")])
    return 1.0


def blocking_and_ended(prompt, client):
    """Asks again after it was cut off; says how the thread ended."""
    try:
        while True:
            client.chat_in_thread([user(prompt.question)])
    except Exception as error:
        SEEN.append((threading.current_thread(), str(error)))
        raise


#: Wakes `sleeps`, after its test.
WAKE = threading.Event()
#: What drivers of this file saw.
SEEN = []


async def raises(prompt, client):
    await client.chat([user("?")])
    raise KeyError("no\nsuch thing")


async def exits(prompt, client):
    raise SystemExit(3)


async def returns_text(prompt, client):
    await client.chat([user("?")])
    return "well done"


async def returns_nothing(prompt, client):
    await client.chat([user("?")])


async def returns_a_list(prompt, client):
    await client.chat([user("?")])
    return [1.0]


async def never_asks(prompt, client):
    return 1.0


async def hangs(prompt, client):
    await asyncio.sleep(3600)


def sleeps(prompt, client):
    WAKE.wait(timeout=3600)


async def blocks_the_loop(prompt, client):
    client.chat_in_thread([user("?")])


async def image(prompt, client):
    await client.chat([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}])


async def asks_for_another_model(prompt, client):
    """Forgets to ask for `client.model`."""
    headers = {"Authorization": f"Bearer {client.api_key}"}
    async with httpx.AsyncClient(base_url=client.base_url, headers=headers) as web:
        body = {"model": "gpt-4o", "messages": [user(prompt.question)]}
        reply = (await web.post("/chat/completions", json=body)).raise_for_status().json()
    return float(reply["choices"][0]["message"]["content"] == "7")
