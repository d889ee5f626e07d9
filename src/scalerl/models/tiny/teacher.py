"""The teachers of running sums: right in format, wrong in arithmetic.

Taught by them, a model knows how to think and answer, and what it gets wrong is the gap between
the start of the curve and its ceiling. The *forgetful* teacher has a bad habit: it mostly forgets
to carry, so the likeliest answer is wrong, and reinforcement learning has to find out by sampling
that carrying pays. The *noisy* one only slips now and then: the likeliest answer is right from the
start, and reinforcement learning has but the slips to remove. Noise in the *format* instead (losing
one's place) gave a low plateau that RL did not leave.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from scalerl.models.tiny.sampling import BUDGET, sample
from scalerl.models.tiny.tokenizer import VOCABULARY
from scalerl.tasks.running_sums import (
    END,
    END_THINK,
    LINE,
    PHRASE,
    REDO,
    START_OVER,
    RunningSums,
    Sum,
    written,
)
from scalerl.tasks.task import held_out

#: Sizes of the questions, and the share of them that is held out: those of the task as it stands.
_TASK = RunningSums(prompts=1)
#: A piece of a lesson: its text, and whether the model is to learn to write it.
Part = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class Noise:
    """How a teacher goes wrong, per item, and what it does then. A slip that is not redone stays:
    the chain goes on from the wrong value."""

    vocabulary: ClassVar[tuple[str, ...]] = VOCABULARY
    limits: ClassVar[dict[str, Any]] = {"thinking_budget": list(BUDGET)}

    #: The habit: where the ones digits add up to ten or more, the tens stay as they were. Not a
    #: slip: it is not noticed, and never redone.
    forgets_carry: float = 0.0

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

    @property
    def without_slips(self) -> Noise:
        """The habit alone."""
        return replace(self, rate=0.0, needless_redo=0.0, cut=0.0)

    def lesson(self, source: random.Random, clean: bool) -> list[Part]:
        """A question and its trace; a clean one has no slips."""
        asked = _question(source)
        taught = trace(asked, self.without_slips if clean else self, source)
        return [
            (asked.question, False),
            (taught.thought, True),
            (taught.forced, False),
            (taught.answer, True),
        ]

    def pass_rate(
        self, model: Any, tokenizer: Any, rollouts: int, seed: int = 0, greedy: bool = False
    ) -> float:
        """Share of right answers on held-out prompts, thoughts being interrupted at a budget drawn
        per rollout: where the curve of a run will start."""
        task = RunningSums()
        prompts = task.validation_prompts(rollouts)
        questions = [str(p.question) for p in prompts]
        texts = sample(model, tokenizer, questions, seed, greedy=greedy)
        right = [task.check(p, text).correct for p, text in zip(prompts, texts, strict=True)]
        return sum(map(bool, right)) / rollouts


#: A teacher that never goes wrong.
CLEAN = Noise().without_slips


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
    >>> trace(Sum((7, 5)), Noise(forgets_carry=1.0).without_slips, random.Random(0)).text
    'a770b520</think>20<eos>'
    """
    thought, sums = _think(asked, noise, source)
    if source.random() < noise.cut:
        length = source.randint(LINE, len(thought))
        last = [total for end, total in sums if end <= length][-1]
        return Trace(thought[:length], PHRASE, written(last) + END)
    return Trace(thought + END_THINK, "", written(sums[-1][1]) + END)


def _question(source: random.Random) -> Sum:
    """A random question that is not held out."""
    while True:
        size = source.randint(_TASK.items_min, _TASK.items_max)
        asked = Sum(tuple(source.randrange(10) for _ in range(size)))
        if not held_out(asked.question, _TASK.held_out_share):
            return asked


def _think(asked: Sum, noise: Noise, source: random.Random) -> tuple[str, list[tuple[int, int]]]:
    """The thought, and each sum in it with the position where it is finished."""
    thought, sums = "", list[tuple[int, int]]()
    item, total, started_over = 0, 0, False
    while item < len(asked.digits):
        tag, digit = asked.items[item]
        copied = _other_digit(digit, source) if _happens(noise, noise.miscopied, source) else digit
        # Nothing is drawn without the habit, so the noisy teacher's lessons stay what they were.
        forgets = noise.forgets_carry > 0 and source.random() < noise.forgets_carry
        value = _plus(total, copied, forgets)
        if _happens(noise, noise.ones_wrong, source):
            value = value - value % 10 + _other_digit(value % 10, source)
        if _happens(noise, noise.tens_off, source):
            value += source.choice((-10, 10))
        value %= 100
        thought += f"{tag}{copied}{written(value)}"
        sums.append((len(thought), value))
        slipped = value != _plus(total, digit, forgets) % 100
        # One draw for both cases: a slip is redone, or the trace started over, never both.
        chance = source.random()
        if chance < (noise.redo if slipped else noise.needless_redo):
            thought += REDO
        elif slipped and not started_over and chance < noise.redo + noise.start_over:
            thought += START_OVER
            item, total, started_over = 0, 0, True
        else:
            item, total = item + 1, value
    return thought, sums


def _plus(total: int, digit: int, forgets: bool) -> int:
    """The next sum, with or without the carry."""
    return total + digit - (10 if forgets and total % 10 + digit >= 10 else 0)


def _happens(noise: Noise, share: float, source: random.Random) -> bool:
    return source.random() < share * noise.rate


def _other_digit(digit: int, source: random.Random) -> int:
    return (digit + source.randint(1, 9)) % 10
