"""The environment `tiny-guess`: find a number by guesses, against an opponent that gives nothing
away.

A prompt is the name of a game (two letters) and a range. The policy guesses a number a turn, and
the reply is whether the number is higher or lower. The opponent has not chosen a number yet: its
answer leaves as many numbers possible as it can, and where both answers leave equally many, the
prompt and the episode's seed decide. It gives in when one number is left and is guessed.

    prompt   dk12-18:
    turn 1   15
    reply    higher
    turn 2   17
    reply    lower
    turn 3   16         right: the episode ends

So luck does not help. With t guesses, bisection finds any number of a range of 2^t - 1, and nothing
does in a larger range: the limit of turns sets the highest possible pass rate (`ceiling`).
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scalerl.environments.games.pool import balanced_rows
from scalerl.environments.interface import Action, Environment, Observation, Outcome
from scalerl.errors import InputError
from scalerl.tasks.task import AnswerScore, Prompt, seed_from

NAME = "tiny-guess"
HIGHER = "higher"
LOWER = "lower"
#: The reply to a turn that is no number. The turn is lost.
UNREADABLE = "?"
#: Numbers are 0 to this one, written with two digits.
LARGEST = 31
#: Sizes of the ranges. Four turns are enough for eight of them, and leave some slack: of 12 numbers
#: three may be guessed first.
WIDTHS = (*range(5, 13), 16, 20)
#: Prompts of each size: for training, and held out.
TRAIN_PROMPTS = 400
HELD_OUT_PROMPTS = 20
_QUESTION = re.compile(r"[a-z]{2}(\d\d)-(\d\d):")
_NUMBER = re.compile(r"\d\d")


def ceiling(widths: Iterable[int], turns: int) -> float:
    """The highest pass rate on ranges of these sizes: the share that bisection finishes in time.

    >>> [ceiling(WIDTHS, turns=t) for t in (3, 4, 5)]
    [0.3, 0.8, 1.0]
    """
    widest: int = 2**turns - 1
    possible = [width <= widest for width in widths]
    if not possible:
        raise InputError("a ceiling needs at least one prompt: give the size of its range")
    return sum(possible) / len(possible)


@dataclass(slots=True)
class Opponent:
    """The numbers that are still possible, low to high, and the opponent's answers.

    >>> opponent = Opponent(12, 18, place=0)
    >>> opponent.reply(13), opponent.low, opponent.high
    ('higher', 14, 18)
    """

    low: int
    high: int
    #: Decides between answers that leave equally many numbers.
    place: int

    def reply(self, guess: int) -> str | None:
        """The answer to a guess; None if the guess is the last number that is possible."""
        below, above = guess - self.low, self.high - guess
        if below == above == 0:
            return None
        # Also true of guesses outside: the side with all numbers is the larger one.
        tie = seed_from(self.place, self.low, self.high) % 2 == 0
        if above > below or (above == below and tie):
            self.low = max(self.low, guess + 1)
            return HIGHER
        self.high = min(self.high, guess - 1)
        return LOWER


class GuessTheNumber(Environment):
    """An episode of `tiny-guess`."""

    def __init__(self) -> None:
        self._opponent = Opponent(0, 0, 0)

    @staticmethod
    def prompts() -> list[dict[str, Any]]:
        """4,000 prompts for training and 200 held-out ones, equally many of each size."""
        return balanced_rows(WIDTHS, question, TRAIN_PROMPTS, HELD_OUT_PROMPTS)

    @staticmethod
    def ceiling(prompts: Iterable[Prompt], turns: int) -> float:
        """The highest possible pass rate on these prompts with this limit of turns."""
        ranges = (range_of(str(p.question)) for p in prompts)
        return ceiling((high - low + 1 for low, high in ranges), turns)

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        self._opponent = Opponent(*range_of(str(prompt.question)), seed_from(seed, prompt.question))
        return Observation()

    async def step(self, action: Action) -> Observation | Outcome:
        guess = action.text.strip()
        if _NUMBER.fullmatch(guess) is None:
            return Observation(({"role": "user", "content": UNREADABLE},))
        hint = self._opponent.reply(int(guess))
        if hint is None:
            return Outcome(AnswerScore(True, 1.0, "right"))
        return Observation(({"role": "user", "content": hint},))


def range_of(asked: str) -> tuple[int, int]:
    """The lowest and the highest number of a prompt's range.

    >>> range_of("dk12-18:")
    (12, 18)
    """
    found = _QUESTION.fullmatch(asked)
    if found is None:
        raise InputError(f"{asked!r} is no prompt of {NAME}: write it as dk12-18:")
    return int(found[1]), int(found[2])


def written(number: int) -> str:
    """A number as the game writes it.

    >>> written(7)
    '07'
    """
    return f"{number:02d}"


def question(width: int, source: random.Random) -> str:
    """A random prompt with a range of this size."""
    low = source.randint(0, LARGEST + 1 - width)
    name = "".join(source.choices(string.ascii_lowercase, k=2))
    return f"{name}{written(low)}-{written(low + width - 1)}:"
