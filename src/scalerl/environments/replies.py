"""Checks of what environments return, so that a mistake is named where it is made."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from scalerl.environments.interface import Action, Environment, Observation, Outcome
from scalerl.errors import InputError
from scalerl.tasks.task import AnswerScore, Message, Prompt
from scalerl.text import one_line

#: Roles of messages that an environment may send.
ROLES = ("system", "user", "tool")


class CheckedEnvironment(Environment):
    """An environment whose replies are checked: a wrong one raises InputError, in one line that
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
            messages_from(reply.messages)
            number(reply.reward)
        except InputError as error:
            raise self._wrong(method, str(error)) from None
        return reply

    def _outcome(self, method: str, reply: Outcome) -> Outcome:
        score = getattr(reply, "score", None)
        if not isinstance(score, AnswerScore):
            raise self._wrong(method, f"returned a score of {kind_of(score)}, not an AnswerScore")
        try:
            number(score.reward)
            number(reply.reward)
        except InputError as error:
            raise self._wrong(method, str(error)) from None
        return reply


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


def messages_from(value: Any, role: str = "user") -> tuple[Message, ...]:
    """Messages from what an environment returned: text, or messages with role and content.

    >>> messages_from("Go on.")
    ({'role': 'user', 'content': 'Go on.'},)
    """
    if isinstance(value, str):
        return ({"role": role, "content": value},) if value else ()
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
        raise InputError(f"returned {kind_of(value)}, not text or messages")
    return tuple(_message(each) for each in value)


def _message(value: Any) -> Message:
    if not isinstance(value, Mapping) or not {"role", "content"} <= value.keys():
        raise InputError(f"returned a message that is {kind_of(value)}, not role and content")
    if not isinstance(value["content"], str):
        raise InputError(
            f"returned a message with {kind_of(value['content'])} as content, not text"
        )
    if value["role"] not in ROLES:
        raise InputError(f"returned a message with the role {value['role']!r}, not user or tool")
    return {k: v for k, v in value.items() if isinstance(v, str)}


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
