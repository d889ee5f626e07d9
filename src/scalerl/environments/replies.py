"""Checks of what environments return, so that a mistake is named where it is made."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scalerl.environments.interface import Action, Environment, Observation, Outcome, ToolSchema
from scalerl.errors import InputError
from scalerl.tasks.task import AnswerScore, Message, Prompt
from scalerl.text import one_line

#: Roles of messages that an environment may send.
ROLES = ("system", "user", "tool")


class CheckedEnvironment(Environment):
    """An environment with replies that are checked: a wrong one raises InputError, in one line that
    names the environment."""

    def __init__(self, inner: Environment, name: str) -> None:
        self.inner = inner
        self._name = name

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        reply = await self._named("reset", self.inner.reset(prompt, seed))
        if not isinstance(reply, Observation):
            raise self._wrong("reset", f"returned {kind_of(reply)}, not an Observation")
        return self._checked("reset", reply)

    async def step(self, action: Action) -> Observation | Outcome:
        reply = await self._named("step", self.inner.step(action))
        if isinstance(reply, Outcome):
            return self._outcome("step", reply)
        if not isinstance(reply, Observation):
            raise self._wrong("step", f"returned {kind_of(reply)}, not an Observation or Outcome")
        return self._checked("step", reply)

    async def cut_off(self) -> Outcome | None:
        reply = await self._named("cut_off", self.inner.cut_off())
        return None if reply is None else self._outcome("cut_off", reply)

    async def close(self) -> None:
        await self.inner.close()

    async def _named(self, method: str, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except InputError as error:
            raise self._wrong(method, str(error)) from None

    def _wrong(self, method: str, what: str) -> InputError:
        return InputError(one_line(f"environment {self._name}: {method} {what}"))

    def _checked(self, method: str, reply: Observation) -> Observation:
        try:
            return observation_from(reply)
        except InputError as error:
            raise self._wrong(method, str(error)) from None

    def _outcome(self, method: str, reply: Any) -> Outcome:
        try:
            return outcome_from(reply)
        except InputError as error:
            raise self._wrong(method, str(error)) from None


def observation_from(reply: Observation) -> Observation:
    """An observation of plain values only, so that it can be sent to another process; raises
    InputError where a field has the wrong type."""
    whole = reply.conversation
    return Observation(
        messages_from(reply.messages),
        number(reply.reward),
        _count(reply.tool_failures),
        _metrics(reply.metrics),
        _tools(reply.tools),
        None if whole is None else messages_from(whole, roles=(*ROLES, "assistant")),
    )


def outcome_from(reply: Any) -> Outcome:
    """The same of an outcome."""
    score = getattr(reply, "score", None)
    if not isinstance(score, AnswerScore):
        raise InputError(f"returned a score of {kind_of(score)}, not an AnswerScore")
    found = AnswerScore(
        None if score.correct is None else bool(score.correct),
        number(score.reward),
        one_line(str(score.why)),
        bool(score.gave_up),
        _metrics(score.metrics),
    )
    return Outcome(found, number(reply.reward), _count(reply.tool_failures))


def fingerprint(reply: Observation | Outcome | None) -> str:
    """A hash of what the model is shown and of what counts: messages, tools, rewards and the end of
    the episode; not of metrics, which may be timings. Empty for None.

    >>> fingerprint(Observation(reward=1.0)) == fingerprint(Observation(reward=1.0, metrics=()))
    True
    """
    if reply is None:
        return ""
    counts: list[Any] = (
        ["outcome", reply.score.correct, reply.score.reward, reply.reward]
        if isinstance(reply, Outcome)
        else [reply.messages, reply.tools, reply.conversation, reply.reward]
    )
    text = json.dumps(counts, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def shortened(reply: Observation, most: int) -> Observation:
    """The observation with at most `most` characters of text; what is beyond is cut off."""
    whole = reply.conversation
    return replace(
        reply,
        messages=_cut(reply.messages, most),
        conversation=None if whole is None else _cut(whole, most),
    )


def _cut(messages: Sequence[Message], most: int) -> tuple[Message, ...]:
    if sum(len(message["content"]) for message in messages) <= most:
        return tuple(messages)
    found = []
    for message in messages:
        found.append({**message, "content": message["content"][:most]})
        most -= len(found[-1]["content"])
    return tuple(found)


def kind_of(value: Any) -> str:
    """The type of a value, in words.

    >>> kind_of(None), kind_of(b""), kind_of(3)
    ('None', 'bytes', 'int')
    """
    return "None" if value is None else type(value).__name__


def text_from(value: Any) -> str:
    """A text that an environment returned; raises InputError for anything else."""
    if not isinstance(value, str):
        raise InputError(f"returned {kind_of(value)}, not text")
    return value


def messages_from(
    value: Any, role: str = "user", roles: Sequence[str] = ROLES
) -> tuple[Message, ...]:
    """Messages from what an environment returned: text, or messages with role and content.

    >>> messages_from("Go on.")
    ({'role': 'user', 'content': 'Go on.'},)
    """
    if isinstance(value, str):
        return ({"role": role, "content": value},) if value else ()
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
        raise InputError(f"returned {kind_of(value)}, not text or messages")
    return tuple(_message(each, roles) for each in value)


def _message(value: Any, roles: Sequence[str]) -> Message:
    if not isinstance(value, Mapping) or not {"role", "content"} <= value.keys():
        raise InputError(f"returned a message that is {kind_of(value)}, not role and content")
    if not isinstance(value["content"], str):
        raise InputError(
            f"returned a message with {kind_of(value['content'])} as content, not text"
        )
    if value["role"] not in roles:
        raise InputError(f"returned a message with the role {value['role']!r}, not user or tool")
    return {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, str)}


def _metrics(value: Any) -> tuple[tuple[str, float], ...]:
    try:
        return tuple((str(name), float(found)) for name, found in value)
    except (TypeError, ValueError, OverflowError):
        raise InputError("returned metrics that are not pairs of a name and a number") from None


def _tools(value: Any) -> tuple[ToolSchema, ...]:
    try:
        found = json.loads(json.dumps(list(value)))
    except (TypeError, ValueError, RecursionError):
        raise InputError("returned tools that are not JSON schemas") from None
    if not all(isinstance(each, dict) for each in found):
        raise InputError("returned tools that are not JSON schemas")
    return tuple(found)


def _count(value: Any) -> int:
    if not isinstance(value, int):
        raise InputError(f"returned {kind_of(value)} as the number of failed tool calls")
    return value


def number(value: Any) -> float | None:
    """A reward that an environment returned; None stays None."""
    if value is None:
        return None
    try:
        found = float("nan") if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        shown = one_line(repr(value), 60)
        raise InputError(f"returned the reward {shown}, not a finite number")
    return found
