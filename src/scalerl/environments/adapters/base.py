"""What all adapters share: calls that do not block, and scores from rewards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from scalerl.environments.interface import Environment, Observation, Outcome
from scalerl.environments.replies import messages_from, number
from scalerl.environments.threads import OwnThread
from scalerl.errors import InputError
from scalerl.tasks.task import AnswerScore, Message, Prompt


class Adapter(Environment):
    """An object of another library as an environment. Its blocking methods run in a thread of
    their own.

    thing         the object
    correct_from  sum of rewards from which an episode counts as correct in the pass rate
    """

    def __init__(self, thing: Any, correct_from: float = 1.0) -> None:
        self.thing = thing
        self.correct_from = correct_from
        self.thread = OwnThread()
        #: Sum of the rewards so far.
        self.total = 0.0

    async def call(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The result of a function of the object, which may be async or block."""
        return await self.thread.run(function, *args, **named)

    async def close(self) -> None:
        try:
            close = getattr(self.thing, "close", None)
            if callable(close) and self.thread.unfinished:
                # The thread is in a call that was abandoned, and may hang: it closes the object if
                # it ever gets there, without being waited for.
                self.thread.later(close)
            elif callable(close):
                await self.call(close)
        finally:
            self.thread.stop()

    def observed(self, text: Any, reward: Any = None, **more: Any) -> Observation:
        """A reply after which the episode goes on; a reward of 0 is none."""
        found = number(reward) or None
        self.total += found or 0.0
        return Observation(messages_from(text), reward=found, **more)

    def ended(self, reward: Any, *, correct: Any = None, failures: int = 0) -> Outcome:
        """The last reply; `correct` overrides `correct_from`."""
        found = number(reward)
        if found is None:
            return Outcome(AnswerScore.unscored("the environment gave no reward"), None, failures)
        self.total += found
        right = self.total >= self.correct_from if correct is None else bool(correct)
        score = AnswerScore(right, found, f"the environment gave {self.total:g}")
        return Outcome(score, tool_failures=failures)


def row_of(prompt: Prompt, seed: int) -> dict[str, Any]:
    """A prompt as the row of a dataset: its question, its answer and the further columns; with a
    seed where the dataset has none."""
    question = prompt.question if isinstance(prompt.question, str) else list(prompt.question)
    return {"seed": seed, **prompt.columns, "prompt": question, "answer": prompt.answer}


def seed_of(prompt: Prompt, seed: int) -> int:
    """The seed of an episode: the prompt's own where it has one. 32 bits, as NumPy wants it."""
    own = prompt.columns.get("seed")
    return (own if isinstance(own, int) else seed) % 2**32


def chat_of(prompt: Prompt) -> list[Message]:
    """The question of a prompt as messages."""
    if isinstance(prompt.question, str):
        return [{"role": "user", "content": prompt.question}]
    return [dict(message) for message in prompt.question]


def accepted(function: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function takes; raises InputError if it needs another."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(known)
    for p in parameters:
        needed = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if needed and p.name not in known:
            name = getattr(function, "__qualname__", str(function))
            there = ", ".join(sorted(known)) or "none"
            raise InputError(
                f"{name} needs {p.name!r}, which the row does not have (it has {there})"
            )
    return {p.name: known[p.name] for p in parameters if p.name in known}
