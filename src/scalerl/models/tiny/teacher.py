"""The noisy teacher of running sums: right in format, wrong in arithmetic now and then.

Taught by it, a model knows how to think and answer but slips; reinforcement learning has the slips
to remove, which makes the gap between the start of the curve and its ceiling. Noise in the
*format* instead (losing one's place) gave a low plateau that RL did not leave.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from scalerl.tasks.running_sums import (
    END,
    END_THINK,
    LINE,
    PHRASE,
    REDO,
    START_OVER,
    Sum,
    written,
)


@dataclass(frozen=True, slots=True)
class Noise:
    """How often the teacher slips, per item, and what it does then. A slip that is not redone
    stays: the chain goes on from the wrong value."""

    #: Base rate ε of the three kinds of slip.
    rate: float = 0.2
    miscopied: float = 0.3
    ones_wrong: float = 0.7
    tens_off: float = 0.35
    #: After a slip: redo the item, or start over (once a trace).
    redo: float = 0.3
    start_over: float = 0.06
    #: After a right item: redo it all the same.
    needless_redo: float = 0.06
    #: Share of traces cut anywhere and answered with the last finished sum.
    cut: float = 0.1


CLEAN = Noise(rate=0.0, needless_redo=0.0, cut=0.0)


@dataclass(frozen=True, slots=True)
class Trace:
    """A lesson: what the model is to write, and a phrase in it that it is not to learn to write."""

    thought: str
    #: Empty, or the phrase of the length control.
    forced: str
    answer: str

    @property
    def text(self) -> str:
        return self.thought + self.forced + self.answer


def trace(asked: Sum, noise: Noise, source: random.Random) -> Trace:
    """The teacher's answer to one question.

    >>> trace(Sum((7, 5)), CLEAN, random.Random(0)).text
    'a770b521</think>21<eos>'
    """
    thought, sums = _think(asked, noise, source)
    if source.random() < noise.cut:
        length = source.randint(LINE, len(thought))
        last = [total for end, total in sums if end <= length][-1]
        return Trace(thought[:length], PHRASE, written(last) + END)
    return Trace(thought + END_THINK, "", written(sums[-1][1]) + END)


def _think(asked: Sum, noise: Noise, source: random.Random) -> tuple[str, list[tuple[int, int]]]:
    """The thought, and each sum in it with the position where it is finished."""
    thought, sums = "", list[tuple[int, int]]()
    item, total, started_over = 0, 0, False
    while item < len(asked.digits):
        tag, digit = asked.items[item]
        copied = _other_digit(digit, source) if _happens(noise, noise.miscopied, source) else digit
        value = total + copied
        if _happens(noise, noise.ones_wrong, source):
            value = value - value % 10 + _other_digit(value % 10, source)
        if _happens(noise, noise.tens_off, source):
            value += source.choice((-10, 10))
        value %= 100
        thought += f"{tag}{copied}{written(value)}"
        sums.append((len(thought), value))
        slipped = value != (total + digit) % 100
        chance = source.random()
        if chance < (noise.redo if slipped else noise.needless_redo):
            thought += REDO
        elif slipped and not started_over and chance < noise.redo + noise.start_over:
            thought += START_OVER
            item, total, started_over = 0, 0, True
        else:
            item, total = item + 1, value
    return thought, sums


def _happens(noise: Noise, share: float, source: random.Random) -> bool:
    return source.random() < share * noise.rate


def _other_digit(digit: int, source: random.Random) -> int:
    return (digit + source.randint(1, 9)) % 10
