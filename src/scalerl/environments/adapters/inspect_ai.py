"""A model of inspect-ai with turns that the policy writes.

    async def rollout(prompt, client):
        model = inspect_model(client)
        messages, output = await model.generate_loop(prompt.question, tools=[…])
        return float(output.completion == prompt.answer)

So do agents that `inspect_ai.agent.run` runs. Those that must be inside of an `eval_async`, as
`react`, work too, but inspect-ai allows one `eval_async` at a time in a process.
"""

from __future__ import annotations

from typing import Any

from scalerl.environments.adapters.imports import imported
from scalerl.environments.driven import PolicyClient

#: Reasons for the end of a turn, as inspect-ai calls them.
_REASONS = {"length": "max_tokens"}


def inspect_model(client: PolicyClient) -> Any:
    """The policy as an `inspect_ai.model.Model`."""
    models = imported("inspect_ai.model", "inspect-ai")
    called = imported("inspect_ai.tool", "inspect-ai").ToolCall

    @models.modelapi(name="scalerl")  # agents ask the registry for the name of their model
    class PolicyApi(models.ModelAPI):  # type: ignore[misc, name-defined]
        async def generate(
            self, input: list[Any], tools: list[Any], tool_choice: Any, config: Any
        ) -> Any:
            schemas = [] if tool_choice == "none" else map(_schema, tools)
            reply = await client.chat(map(_message, input), schemas, config.stop_seqs or ())
            calls = [
                called(id=key, function=name, arguments=dict(arguments))
                for key, name, arguments in reply.calls
            ]
            turn = models.ChatMessageAssistant(
                content=reply.text, tool_calls=calls or None, source="generate"
            )
            reason = _REASONS.get(reply.finish, reply.finish)
            choice = models.ChatCompletionChoice(message=turn, stop_reason=reason)
            return models.ModelOutput(model=client.model, choices=[choice])

        async def count_text_tokens(self, text: str) -> int:
            return len(text) // 4  # inspect-ai's own loads a tokenizer from the net

    return models.Model(PolicyApi(client.model), models.GenerateConfig())


def _message(message: Any) -> dict[str, Any]:
    """A message of inspect-ai in OpenAI's form."""
    found = {"role": message.role, "content": message.text}
    if message.role == "tool":
        found |= {"tool_call_id": message.tool_call_id, "name": message.function}
        if message.error is not None:
            found["content"] = message.error.message
    calls = getattr(message, "tool_calls", None) or ()
    if calls:
        found["tool_calls"] = [
            {"id": c.id, "function": {"name": c.function, "arguments": c.arguments}} for c in calls
        ]
    return found


def _schema(tool: Any) -> dict[str, Any]:
    parameters = tool.parameters.model_dump(mode="json", exclude_none=True)
    facts = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": facts}
