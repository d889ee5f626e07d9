"""A model of smolagents with turns that the policy writes.

    def rollout(prompt, client):
        agent = smolagents.CodeAgent(tools=[], model=smolagents_model(client))
        return float(agent.run(prompt.question) == prompt.answer)

smolagents writes the history anew after each step (it adds a line «Calling tools: …»), so that each
step begins a new row of the episode.
"""

from __future__ import annotations

from typing import Any

from scalerl.environments.adapters.imports import imported
from scalerl.environments.driven import PolicyClient
from scalerl.errors import InputError


def smolagents_model(client: PolicyClient) -> Any:
    """The policy as a `smolagents.Model`, for a driver that is an ordinary function."""
    models = imported("smolagents.models", "smolagents")

    class PolicyModel(models.Model):  # type: ignore[misc, name-defined]
        def generate(
            self,
            messages: list[Any],
            stop_sequences: list[str] | None = None,
            response_format: dict[str, str] | None = None,
            tools_to_call_from: list[Any] | None = None,
            **options: Any,
        ) -> Any:
            if response_format is not None:
                raise InputError("response_format is not supported: take an agent without")
            asked = self._prepare_completion_kwargs(
                messages, stop_sequences, tools_to_call_from=tools_to_call_from
            )
            reply = client.chat_in_thread(
                asked["messages"], asked.get("tools", ()), asked.get("stop", ())
            )
            usage = models.TokenUsage(0, len(reply.action.token_ids))
            return models.ChatMessage.from_dict(reply.message, reply, usage)

    return PolicyModel(model_id=client.model)
