"""Environments of aviary (the package `fhaviary`), with their tools."""

from __future__ import annotations

from typing import Any

from scalerl.environments.adapters.base import Adapter
from scalerl.environments.adapters.imports import imported
from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.tasks.task import Message, Prompt


class AviaryEnvironment(Adapter):
    """An environment of aviary."""

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        messages, tools = await self.call(self.thing.reset)
        shown = self.observed(_messages(messages))
        schemas = tuple(tool.model_dump(mode="json", exclude_none=True) for tool in tools)
        return Observation(shown.messages, tools=schemas)

    async def step(self, action: Action) -> Observation | Outcome:
        problems = [call.problem for call in action.tool_calls if call.problem]
        if problems:  # aviary would not see a call that cannot be read
            replies: list[Message] = [{"role": "tool", "content": f"error: {p}"} for p in problems]
            return Observation(tuple(replies), tool_failures=len(problems))
        messages, reward, done, truncated = await self.call(self.thing.step, _request(action))
        failed = sum(m["content"].startswith("Encountered exception") for m in _messages(messages))
        if done or truncated:
            return self.ended(reward, failures=failed)
        return self.observed(_messages(messages), reward, tool_failures=failed)


def _request(action: Action) -> Any:
    core = imported("aviary.core", "fhaviary")
    if not action.tool_calls:
        return core.Message(role="assistant", content=action.text)
    calls = [
        core.ToolCall(id=f"call{i:05d}", function={"name": c.name, "arguments": dict(c.arguments)})
        for i, c in enumerate(action.tool_calls)
    ]
    return core.ToolRequestMessage(content=action.text, tool_calls=calls)


def _messages(found: Any) -> list[Message]:
    return [{"role": m.role, "content": m.content or ""} for m in found]
