"""The environment `tiny-tools`: a sum of numbers that only a tool can look up.

A prompt names n different keys. The tool `lookup` returns the digit behind a key; the digits follow
from the prompt and the episode's seed, so nothing but the tool can give them. After every reply the
policy writes the sum so far (modulo 10) and looks up the next key; a turn without a call is its
answer and ends the episode.

    prompt   dkq=
    turn 1   <tool_call>{"name": "lookup", "arguments": {"key": "d"}}</tool_call>
    tool     7
    turn 2   7<tool_call>{"name": "lookup", "arguments": {"key": "k"}}</tool_call>
    tool     5
    turn 3   2<tool_call>{"name": "lookup", "arguments": {"key": "q"}}</tool_call>
    tool     9
    turn 4   =1

An answer is correct if it is the sum **and every key was looked up**: a guess does not count. One
call a turn is answered, so n keys take n + 1 turns, and the limit of turns sets the highest
possible pass rate (`ceiling`).
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterable
from typing import Any

from scalerl.environments.games.pool import balanced_rows
from scalerl.environments.interface import Action, Environment, Observation, Outcome
from scalerl.environments.tools import ToolBox
from scalerl.errors import InputError
from scalerl.tasks.task import AnswerScore, Prompt, seed_from

NAME = "tiny-tools"
KEYS = string.ascii_lowercase
#: Ends a prompt, and begins an answer.
EQUALS = "="
#: A call of the tool in the format of Hermes and Qwen, before and after the key.
CALL = '<tool_call>{"name": "lookup", "arguments": {"key": "'
CALL_END = '"}}</tool_call>'
#: Numbers of keys that are asked for. One key would make only 26 different prompts.
SIZES = range(2, 10)
#: Prompts of each size: for training, and held out.
TRAIN_PROMPTS = 500
HELD_OUT_PROMPTS = 25


def ceiling(sizes: Iterable[int], turns: int) -> float:
    """The highest pass rate on prompts with these numbers of keys: the share that can be looked up,
    one a turn, before the turn of the answer.

    >>> ceiling(range(2, 10), turns=8)
    0.75
    """
    possible = [size + 1 <= turns for size in sizes]
    if not possible:
        raise InputError("a ceiling needs at least one prompt: give its number of keys")
    return sum(possible) / len(possible)


class Lookups(Environment):
    """An episode of `tiny-tools`."""

    def __init__(self) -> None:
        self._keys = ""
        self._place = 0
        self._asked: set[str] = set()
        self._tools = ToolBox([self.lookup])

    @staticmethod
    def prompts() -> list[dict[str, Any]]:
        """4,000 prompts for training and 200 held-out ones, equally many of each size."""
        return balanced_rows(SIZES, question, TRAIN_PROMPTS, HELD_OUT_PROMPTS)

    @staticmethod
    def ceiling(prompts: Iterable[Prompt], turns: int) -> float:
        """The highest possible pass rate on these prompts with this limit of turns."""
        return ceiling((len(keys_of(p)) for p in prompts), turns)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._keys = keys_of(prompt)
        self._place = seed_from(seed, prompt.question)
        return Observation(tools=self._tools.schemas)

    async def lookup(self, key: str) -> str:
        """Look up the digit behind a key.

        Args:
            key: A letter from a to z.
        """
        if len(key) != 1 or key not in KEYS:
            raise ValueError("no such key")
        self._asked.add(key)
        return str(digit_behind(self._place, key))

    async def step(self, action: Action) -> Observation | Outcome:
        if not action.tool_calls:
            return Outcome(self._score(action.text.strip()))
        messages, failed = await self._tools.run(action.tool_calls[:1])
        return Observation(messages, tool_failures=failed)

    async def close(self) -> None:
        self._tools.close()

    def _score(self, text: str) -> AnswerScore:
        total = sum(digit_behind(self._place, key) for key in self._keys) % 10
        missing = [key for key in self._keys if key not in self._asked]
        if missing:
            return AnswerScore(False, -1.0, f"{missing[0]} was not looked up")
        if text != f"{EQUALS}{total}":
            return AnswerScore(False, -1.0, f"{text[:20]!r} is not '{EQUALS}{total}'")
        return AnswerScore(True, 1.0, "right")


def keys_of(prompt: Prompt) -> str:
    """The keys that a prompt asks for, in order."""
    return str(prompt.question).removesuffix(EQUALS)


def digit_behind(place: int, key: str) -> int:
    """The digit behind a key in one episode."""
    return seed_from(place, key) % 10


def question(size: int, source: random.Random) -> str:
    """A random prompt with this number of keys."""
    return "".join(source.sample(KEYS, size)) + EQUALS
