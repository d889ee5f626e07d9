"""What a task is: prompts, some of them held out for good, and a check of answers.

A task never raises over an answer: what cannot be checked is `Checked(None, None, why)`, which the
run counts and goes on. What a user can put right (a missing file, no sandbox) is an `InputError`,
raised when the task is made and not in the middle of a run.
"""

from __future__ import annotations

import copy
import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias

from scalerl.errors import InputError
from scalerl.tasks.split import digest, rank
from scalerl.text import one_line

#: One message of a chat: {"role": "user", "content": "…"}.
Message: TypeAlias = dict[str, str]
#: What the model is given: plain text, or chat messages for the tokenizer's chat template.
Question: TypeAlias = str | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question of a task, with what is needed to check an answer."""

    #: The same in every run: the task's name and a hash of the question's content.
    id: str
    question: Question
    #: What the check compares with; its kind is the task's own affair.
    answer: Any = None
    #: Name of the task that checks it.
    task: str = ""
    #: Further columns of the dataset, handed to reward functions.
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> float:
        """Where the question lies in [0, 1): the lowest are held out."""
        return rank(self.id.rpartition("/")[2])

    @property
    def is_chat(self) -> bool:
        """Whether the question is messages, to be rendered by a chat template."""
        return not isinstance(self.question, str)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a checker judges: an answer to a prompt."""

    prompt: Prompt
    #: As the task reads it, without special tokens.
    text: str
    #: As the model wrote it.
    token_ids: tuple[int, ...] = ()
    #: Optimiser steps that the run had taken when it was handed over.
    step: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict on one answer; `correct` and `reward` are None where it could not be scored."""

    correct: bool | None
    reward: float | None
    #: One line: what was found, or why there is no score.
    why: str
    #: Whether the check was never brought to an end: it took too long, or its checker died of it.
    gave_up: bool = False
    #: Numbers that the verifier tells beside it, for the record of the step: (name, number).
    metrics: tuple[tuple[str, float], ...] = ()

    @classmethod
    def unscored(cls, why: str) -> Checked:
        """No score, for this reason."""
        return cls(None, None, one_line(why))

    @property
    def scored(self) -> bool:
        return self.reward is not None


@dataclass(frozen=True, slots=True)
class Rules:
    """What all tasks of a run share: what an answer earns, and where the thought ends."""

    reward_correct: float = 1.0
    reward_wrong: float = -1.0
    think_open: str = "<think>"
    #: Only what follows is checked.
    think_close: str = "</think>"

    def verdict(self, correct: bool | None, why: str) -> Checked:
        """The verdict with its reward."""
        if correct is None:
            return Checked.unscored(why)
        return Checked(correct, self.reward_correct if correct else self.reward_wrong, why)

    def final_text(self, question: Question, completion: str) -> str | None:
        """What follows the thought; None while a thought that was opened is not closed.

        >>> Rules().final_text("2+2=", "<think>hm</think> 4"), Rules().final_text("2+2=", "4")
        (' 4', '4')
        """
        _, closed, after = completion.rpartition(self.think_close)
        if closed:
            return after
        opened = isinstance(question, str) and self.think_open in question
        return None if opened or self.think_open in completion else completion


DEFAULT_RULES = Rules()


class Task(ABC):
    """Base of all tasks: subclasses say what all prompts are and how one answer is judged.

    The held-out share is chosen by a hash of the question, not by position or seed: a question is
    on one side for ever, whatever the seed, the order or the number asked for.
    """

    #: Whether one call judges many answers, so that they are best handed over together.
    together: bool = False

    def __init__(
        self, name: str, *, rules: Rules = DEFAULT_RULES, held_out_share: float = 0.05
    ) -> None:
        if not 0.0 < held_out_share < 1.0:
            raise InputError(
                f"held_out_share {held_out_share} of task {name}: give a share between 0 and 1"
            )
        self.name = name
        self.rules = rules
        self.held_out_share = held_out_share
        #: What a user should know of its data before a run starts.
        self.notes: list[str] = []

    @abstractmethod
    def prompts(self) -> Sequence[Prompt]:
        """Every prompt of the task, on either side of the split, without repetition."""

    @abstractmethod
    def judge(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        """Whether the answer is right (None: cannot be told), and why."""

    def train_prompts(self, seed: int) -> list[Prompt]:
        """What training may ask, in an order given by the seed. Never a held-out prompt, nor one
        of a downstream set."""
        elsewhere = {p.id for prompts in self.downstream().values() for p in prompts}
        chosen = [p for p in self.prompts() if not self.is_held_out(p) and p.id not in elsewhere]
        random.Random(f"{self.name}|{seed}").shuffle(chosen)
        return chosen

    def validation_prompts(self, n: int) -> list[Prompt]:
        """The first n held-out prompts: the same ones in every run, a smaller n being a part of a
        larger one."""
        found = sorted((p for p in self.prompts() if self.is_held_out(p)), key=lambda p: p.rank)
        if len(found) < n:
            raise InputError(
                f"task {self.name} holds out {len(found)} prompts, not {n}: ask for fewer "
                f"(validation.prompts) or raise held_out_share ({self.held_out_share})"
            )
        return found[:n]

    def downstream(self) -> Mapping[str, Sequence[Prompt]]:
        """Further sets, each with a curve of its own; training never asks their questions."""
        return {}

    def is_held_out(self, prompt: Prompt) -> bool:
        """Which side of the split a prompt is on."""
        return prompt.rank < self.held_out_share

    def check(self, prompt: Prompt, completion: str) -> Checked:
        """The verdict on one answer. Never raises over the answer."""
        try:
            correct, why = self.judge(prompt, completion)
        except (Exception, SystemExit) as error:  # what a checker trips over is data
            return Checked.unscored(named(error))
        return self.rules.verdict(correct, why)

    def check_all(self, answers: Sequence[Answer]) -> list[Checked]:
        """Verdicts on many answers, in their order; tasks with worker processes use them all."""
        return [self.check(answer.prompt, answer.text) for answer in answers]

    @property
    def is_async(self) -> bool:
        """Whether `check_together` leaves its event loop free while it waits."""
        return False

    @property
    def can_be_cancelled(self) -> bool:
        """Whether nothing of `check_together` goes on after it was cancelled."""
        return self.is_async

    async def check_together(self, answers: Sequence[Answer]) -> list[Checked]:
        """`check_all` for an event loop. Only where `is_async` does it not block the loop."""
        return self.check_all(answers)

    def part(self, prompt: Prompt) -> Task:
        """The task that judges a prompt's answers: this one, or the part of a mixture."""
        return self

    def judges_together(self, prompt: Prompt) -> bool:
        """Whether answers to this prompt are best handed over together."""
        return self.part(prompt).together

    def for_checking(self) -> Self:
        """A light copy to send to another process, where it checks answers: it holds no data set
        and nothing that runs, starts what it needs there when first used, and is closed there."""
        return copy.copy(self)

    def close(self) -> None:  # noqa: B027 - most tasks hold nothing
        """Give back what the task started (worker processes)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def make_prompt(
    task: str,
    question: Question,
    answer: Any,
    columns: Mapping[str, Any] | None = None,
    content: Question | None = None,
) -> Prompt:
    """A prompt with the id that belongs to its content: the question without the instructions that
    a task adds, so that changing those moves nothing across the split.

    >>> make_prompt("sums", "1+1=", "2").id == make_prompt("sums", " 1+1= ", "2").id
    True
    """
    key = digest(question if content is None else content)
    return Prompt(f"{task}/{key}", question, answer, task, columns or {})


def named(error: BaseException) -> str:
    """What an exception says: its kind and its text.

    >>> named(KeyError("gold")), named(SystemExit())
    ("KeyError: 'gold'", 'SystemExit')
    """
    kind, text = type(error).__name__, str(error)
    return f"{kind}: {text}" if text else kind


def seed_from(*parts: object) -> int:
    """A seed that depends on all parts and on nothing else."""
    text = "|".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
