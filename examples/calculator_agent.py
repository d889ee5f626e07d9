"""An agent with a calculator that calls the model by OpenAI's client, to be trained as it is.

    pip install openai 'scalerl[serve]'
    PYTHONPATH=examples scalerl train scalerl my.toml \\
        task.name=environment:calculator_agent:rollout task.dataset=sums.jsonl --out runs/agent

The rows of `sums.jsonl` have a `prompt` and an `answer`: {"prompt": "17 * 23 = ?", "answer": "391"}
"""

from __future__ import annotations

import json
from typing import Any

import openai

CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiply two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


async def rollout(prompt: Any, client: Any) -> float:
    """One episode: ask, run the tools, and compare the last reply with the answer."""
    messages: list[Any] = [{"role": "user", "content": prompt.question}]
    async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as model:
        while True:
            reply = await model.chat.completions.create(
                model=client.model, messages=messages, tools=[CALCULATOR]
            )
            turn = reply.choices[0].message
            messages.append(turn)
            if not turn.tool_calls:
                return float((turn.content or "").strip() == str(prompt.answer))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": run(call.function.arguments)}
                for call in turn.tool_calls
            ]


def run(arguments: str) -> str:
    """The product, or what was wrong with the call, for the model to read."""
    try:
        found = json.loads(arguments)
        return str(int(found["a"]) * int(found["b"]))
    except (ValueError, TypeError, KeyError) as error:
        return f"error: {error!r}"
