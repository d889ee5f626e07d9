"""The interface of environments: `reset`, `step` and `close`, one object per episode.

An environment answers the policy's turns until it ends the episode with a score. Its object is made
and used in an environment worker, on an event loop that it shares with many others: `step` may take
as long as it likes to *wait*, and must not block. (`scalerl.environments.adapters` runs ordinary
blocking code in threads.)

An environment is a function of (prompt, seed, actions): the same calls give the same observations.
After a crash or a resume a new object is reset and given the recorded actions again, and what it
observes is compared with what the model was shown. One that cannot be replayed fails its own
episode and no other.

Imports no torch: workers start quickly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalerl.tasks.task import AnswerScore, Message, Prompt

#: The JSON schema of a tool, as chat templates take it: {"type": "function", "function": {…}}.
ToolSchema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the policy wrote."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: Why the call could not be read, for the model; None if it could.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """One turn of the policy."""

    #: Text of the turn, without special tokens.
    text: str
    #: The calls that the text contains, by the model's own format.
    tool_calls: tuple[ToolCall, ...] = ()
    #: Tokens of the turn, as the model sampled them; empty in a replay.
    token_ids: tuple[int, ...] = ()
    #: Log-prob of each token as it was sampled; empty in a replay.
    logprobs: tuple[float, ...] = ()
    #: Whether a limit of tokens cut the turn off.
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """The environment's reply to a turn: the episode goes on."""

    #: Messages that the model is shown next, with the roles "user" or "tool" (or "system", from
    #: `reset`). Without a chat template their contents are appended as plain text.
    messages: tuple[Message, ...] = ()
    #: Reward of the turn; None if it has none of its own.
    reward: float | None = None
    #: Tool calls of the turn that failed.
    tool_failures: int = 0
    #: Numbers for the record of the step: (name, number).
    metrics: tuple[tuple[str, float], ...] = ()
    #: From `reset`, and with `conversation`: the tools that the model may call.
    tools: tuple[ToolSchema, ...] = ()
    #: The whole conversation that the model is shown next, where the environment has rewritten it
    #: (assistant turns as text): the episode continues in a new row. From `reset` it takes the
    #: place of the prompt's question. None: `messages` follow what the model has seen.
    conversation: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The environment's reply to the last turn: the episode is over."""

    score: AnswerScore
    #: Reward of the last turn, besides the score; None if it has none of its own.
    reward: float | None = None
    #: Tool calls of the turn that failed.
    tool_failures: int = 0


class Environment(ABC):
    """Base class of environments. A subclass defines `step`, and mostly `reset`."""

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        """Begin an episode. The messages follow the prompt's own question; all episodes of a group
        have the same prompt and seed, and must get the same messages."""
        return Observation()

    @abstractmethod
    async def step(self, action: Action) -> Observation | Outcome:
        """Reply to a turn of the policy."""

    async def cut_off(self) -> Outcome | None:
        """The outcome of an episode that reached a limit of turns or tokens after the last `step`;
        None: it counts as wrong."""
        return None

    async def close(self) -> None:  # noqa: B027 - most environments hold nothing
        """Release what the environment holds. Called once, also after an error."""
