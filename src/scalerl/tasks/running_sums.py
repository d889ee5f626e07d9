"""The tasks `running-sums` and `carry-sums`, which come with scalerl and have a known ceiling.

A prompt is n digits, each with a letter, n from `items_min` to `items_max`. The model has to write
for every item its letter, its digit and the running sum, then the last sum again as its answer.
Sums are modulo 100, two digits, ones first (12 is `21`): the carry is then known when it is needed.

    prompt      a7b5c9=<think>
    completion  a770b521c912</think>12<eos>

`~` after an item redoes it, `~~` starts over; both cost tokens. A thought that reaches its budget
is interrupted by `!</think>` and answered with the last sum it finished.

An answer is correct if it is the sum **and the thought ended by itself with the last item's line**
(`c912</think>` above): a guess, or a sum completed after an interruption, does not count. A line
takes 4 tokens and `</think>` one, so n items can be correct only with a thinking budget of at least
4n + 1 tokens, and the pass rate cannot exceed `ceiling`. The budget moves the ceiling; learning
rate, batch and staleness move the efficiency.

`carry-sums` uses only the digits 5 to 9, where most lines carry. It has the same ceiling and is
harder for the tiny model, which was taught to forget the carry: its second task, for mixtures.
"""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from scalerl.errors import InputError
from scalerl.tasks.task import DEFAULT_RULES, Prompt, Rules, Task, make_prompt, seed_from
from scalerl.tasks.task import held_out as is_held_out

NAME = "running-sums"
CARRY_NAME = "carry-sums"
#: Tokens of one line of a thought: letter, digit, and a sum of two digits.
LINE = 4
# Marks in a thought: redo the last item, start over, interrupted.
REDO = "~"
START_OVER = "~~"
CUT = "!"
THINK = "<think>"
END_THINK = "</think>"
END = "<eos>"
#: Text that the length control appends to a thought at the end of its budget.
PHRASE = CUT + END_THINK
#: Seed of the questions. Changing it changes the training prompts of every run of these tasks.
POOL_SEED = 20251013


def written(value: int) -> str:
    """A sum modulo 100 as the task writes it: two digits, ones first.

    >>> written(12), written(7), written(103)
    ('21', '70', '30')
    """
    return f"{value % 100:02d}"[::-1]


@dataclass(frozen=True, slots=True)
class Sum:
    """One question: the digits, tagged a, b, c … in order.

    >>> Sum((7, 5, 9)).question, Sum((7, 5, 9)).answer, Sum((7, 5, 9)).thought
    ('a7b5c9=<think>', '12', 'a770b521c912')
    """

    digits: tuple[int, ...]

    @property
    def question(self) -> str:
        tagged = "".join(f"{tag}{digit}" for tag, digit in self.items)
        return f"{tagged}={THINK}"

    @property
    def items(self) -> list[tuple[str, int]]:
        return list(zip(string.ascii_lowercase, self.digits, strict=False))

    @property
    def answer(self) -> str:
        return written(sum(self.digits))

    @property
    def last_line(self) -> str:
        """The line with which a complete thought ends."""
        tag, digit = self.items[-1]
        return f"{tag}{digit}{self.answer}"

    @property
    def thought(self) -> str:
        """The thought without any mistake."""
        total, lines = 0, []
        for tag, digit in self.items:
            total += digit
            lines.append(f"{tag}{digit}{written(total)}")
        return "".join(lines)

    @classmethod
    def parse(cls, question: str) -> Sum:
        """The sum that a question asks for."""
        tagged = question.removesuffix(THINK).removesuffix("=")
        return cls(tuple(int(digit) for digit in tagged[1::2]))


def score_answer(asked: Sum, completion: str) -> tuple[bool, str]:
    """Whether a completion answers the question correctly, and why.

    >>> score_answer(Sum((7, 5)), "a770b521</think>21<eos>")
    (True, 'right')
    >>> score_answer(Sum((7, 5)), "a770b521!</think>21<eos>")
    (False, 'the thought was interrupted')
    >>> score_answer(Sum((7, 5)), "a770</think>21<eos>")
    (False, 'the thought does not end with b521')
    """
    thought, closed, final = completion.partition(END_THINK)
    if not closed:
        return False, "no answer: the thought is not closed"
    answer = final.partition(END)[0]
    if answer != asked.answer:
        return False, f"{answer[:20]!r} is not {asked.answer!r}"
    if thought.endswith(CUT):
        return False, "the thought was interrupted"
    if not thought.endswith(asked.last_line):
        return False, f"the thought does not end with {asked.last_line}"
    return True, "right"


def ceiling(budget_min: int, budget_max: int, n_min: int = 2, n_max: int = 16) -> float:
    """The highest pass rate of the taught format: the mean over n of P(budget ≥ 4n + 1), with n
    uniform over n_min … n_max and the budget, in tokens, over budget_min … budget_max.

    >>> round(ceiling(56, 64), 4), round(ceiling(48, 56), 4)
    (0.8889, 0.7556)
    """
    return ceiling_of(range(n_min, n_max + 1), budget_min, budget_max)


def ceiling_of(items: Iterable[int], budget_min: int, budget_max: int) -> float:
    """The ceiling for prompts with these numbers of items, as of a validation set."""
    budgets = budget_max - budget_min + 1
    if budgets < 1:
        raise InputError(f"thinking budgets {budget_min} to {budget_max}: give the smaller first")
    shares = [min(max(budget_max - LINE * n, 0), budgets) / budgets for n in items]
    if not shares:
        raise InputError("a ceiling needs at least one prompt: give its number of items")
    return sum(shares) / len(shares)


class RunningSums(Task):
    """The task `running-sums`. Options: items_min, items_max, prompts (size of the training pool).

    >>> task = RunningSums(prompts=100)
    >>> prompt = task.train_prompts(seed=0)[0]
    >>> task.check(prompt, Sum.parse(prompt.question).thought + "</think>" + prompt.answer).reward
    1.0
    """

    title: ClassVar[str] = NAME
    digits: ClassVar[range] = range(10)

    def __init__(
        self,
        dataset: str = "",
        *,
        rules: Rules = DEFAULT_RULES,
        items_min: int = 2,
        items_max: int = 16,
        prompts: int = 4000,
        held_out_share: float = 0.2,
    ) -> None:
        super().__init__(self.title, rules=rules, held_out_share=held_out_share)
        if dataset:
            raise InputError(
                f"{self.title} makes its own prompts: leave task.dataset = {dataset!r} out"
            )
        if (rules.think_open, rules.think_close) != (DEFAULT_RULES.think_open, END_THINK):
            raise InputError(
                f"the tiny model ends its thoughts with {END_THINK}: leave task.think_open and "
                f"task.think_close out for {self.title}"
            )
        if not 2 <= items_min <= items_max <= len(string.ascii_lowercase):
            raise InputError(
                f"items_min={items_min}, items_max={items_max} of {self.title}: "
                "give 2 <= items_min <= items_max <= 26"
            )
        if prompts < 1:
            raise InputError(f"prompts={prompts} of {self.title}: give 1 or more")
        self.items_min, self.items_max, self.pool = items_min, items_max, prompts

    @property
    def sizes(self) -> range:
        """The numbers of items that are asked."""
        return range(self.items_min, self.items_max + 1)

    def prompts(self) -> list[Prompt]:
        """The training pool, and held-out prompts in proportion to `held_out_share`."""
        n_held_out = max(round(self.pool * self.held_out_share / (1 - self.held_out_share)), 1)
        return self._draw(self.pool, False) + self._draw(n_held_out, True)

    def train_prompts(self, seed: int) -> list[Prompt]:
        """The training pool, in an order given by the seed."""
        chosen = self._draw(self.pool, False)
        random.Random(f"{self.name}|{seed}").shuffle(chosen)
        return chosen

    def validation_prompts(self, n: int) -> list[Prompt]:
        """n held-out questions, equally many of each size."""
        return self._draw(n, True)

    def score(self, prompt: Prompt, completion: str) -> tuple[bool, str]:
        return score_answer(Sum.parse(str(prompt.question)), completion)

    def ceiling(self, prompts: Sequence[Prompt], budget_min: int, budget_max: int) -> float:
        """The highest possible pass rate on these prompts."""
        sizes = (len(Sum.parse(str(p.question)).digits) for p in prompts)
        return ceiling_of(sizes, budget_min, budget_max)

    def _draw(self, n: int, held_out: bool) -> list[Prompt]:
        """n different questions of one side of the split, sizes in turn. A size that is used up is
        left out: 2 items make only 100 questions."""
        sources = [
            _questions(size, self.digits, held_out, self.held_out_share) for size in self.sizes
        ]
        found: list[Prompt] = []
        while sources and len(found) < n:
            for source in list(sources):
                asked = next(source, None)
                if asked is None:
                    sources.remove(source)
                elif len(found) < n:
                    found.append(make_prompt(self.name, asked.question, asked.answer))
        if len(found) < n:
            raise InputError(
                f"there are only {len(found)} questions with {self.items_min} to {self.items_max} "
                f"items on this side of the split, not {n}: raise items_max or ask for fewer"
            )
        return found


class CarrySums(RunningSums):
    """The task `carry-sums`: running sums of large digits. Options as for `running-sums`.

    >>> Sum.parse(CarrySums(prompts=100).train_prompts(seed=0)[0].question).digits
    (9, 7, 7, 6, 6, 5, 6, 9, 9, 8)
    """

    title = CARRY_NAME
    digits = range(5, 10)


def _questions(size: int, digits: range, held_out: bool, share: float) -> Iterator[Sum]:
    """Different questions of one size and side of the split, in a fixed order."""
    source = random.Random(seed_from(POOL_SEED, size))
    # Up to 1,000 questions are listed and shuffled: drawing at random would repeat itself.
    if size <= 3:
        every = [Sum(each) for each in itertools.product(digits, repeat=size)]
        source.shuffle(every)
        yield from (s for s in every if is_held_out(s.question, share) == held_out)
        return
    seen = set[tuple[int, ...]]()
    while len(seen) < len(digits) ** size:
        asked = Sum(tuple(digits[source.randrange(len(digits))] for _ in range(size)))
        if asked.digits not in seen:
            seen.add(asked.digits)
            if is_held_out(asked.question, share) == held_out:
                yield asked
