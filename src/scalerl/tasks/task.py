"""The interface of a task: its prompts, a fixed held-out share of them, and a check of answers.

A check never raises because of an answer. An answer that cannot be checked gets
`AnswerScore(None, None, why)`; the run counts it and continues. What a user can fix (a missing
file, no sandbox) is an `InputError`, raised when the task is made and not in the middle of a run.
"""

from __future__ import annotations

import copy
import hashlib
import random
import unicodedata
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, TypeVar

from scalerl.errors import InputError
from scalerl.text import one_line

A = TypeVar("A")
B = TypeVar("B")
#: One message of a chat: {"role": "user", "content": "…"}.
Message: TypeAlias = dict[str, str]
#: What the model is given: plain text, or chat messages for the tokenizer's chat template.
Question: TypeAlias = str | tuple[Message, ...]

#: Part of the hash that decides which questions are held out. Changing it moves questions between
#: training and validation: results before and after cannot be compared.
SALT = "scalerl held-out 1"


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
    """An answer to a prompt, as it is handed over to be checked."""

    prompt: Prompt
    #: Text of the answer, without special tokens.
    text: str
    #: Tokens of the answer, as the model sampled them.
    token_ids: tuple[int, ...] = ()
    #: Optimiser steps that the run had taken when the answer was handed over.
    step: int = 0


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """What checking an answer returns; `correct` and `reward` are None if it has no score."""

    correct: bool | None
    reward: float | None
    #: One line: what was found, or why there is no score.
    why: str
    #: Whether the check did not finish: it took too long, or its process died.
    gave_up: bool = False
    #: Further numbers from the verifier for the record of the step: (name, number).
    metrics: tuple[tuple[str, float], ...] = ()

    @classmethod
    def unscored(cls, why: str) -> AnswerScore:
        """An answer without a score, and the reason."""
        return cls(None, None, one_line(why))

    @property
    def scored(self) -> bool:
        return self.reward is not None


@dataclass(frozen=True, slots=True)
class Rules:
    """What all tasks of a run share: the rewards, and the tags around a thought."""

    reward_correct: float = 1.0
    reward_wrong: float = -1.0
    think_open: str = "<think>"
    #: Only text after this tag is checked.
    think_close: str = "</think>"

    def score(self, correct: bool | None, why: str) -> AnswerScore:
        """The score with its reward; without one if `correct` is None."""
        if correct is None:
            return AnswerScore.unscored(why)
        return AnswerScore(correct, self.reward_correct if correct else self.reward_wrong, why)

    def final_text(self, question: Question, completion: str) -> str | None:
        """The text after the thought; None if a thought was opened and not closed.

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
    """Base class of all tasks. A subclass defines `prompts` and `score`.

    The held-out share is chosen by a hash of the question, not by position or seed: a question
    stays on its side of the split whatever the seed, the order or the number of prompts.
    """

    #: Whether all answers to a prompt are best scored in one call of `check_all`.
    together: bool = False
    #: Whether episodes are played in an environment (`new_environment`).
    has_environment: bool = False

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
        #: Lines about the data that a user should read before a run starts.
        self.notes: list[str] = []

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Keep `judge`, the name of `score` before version 0.2, working in subclasses."""
        super().__init_subclass__(**arguments)
        if "judge" in cls.__dict__ and "score" not in cls.__dict__:
            warnings.warn(
                f"{cls.__name__}.judge is now called score: rename the method",
                DeprecationWarning,
                stacklevel=3,  # past ABCMeta, to the class statement
            )
            cls.score = cls.__dict__["judge"]  # type: ignore[method-assign]
        elif "score" in cls.__dict__:
            # Each class has a `judge` of its own, so that `super().judge(…)` in a subclass that
            # was written for the old name calls the parent's `score`, not its own.
            score = cls.__dict__["score"]

            def judge(self: Task, prompt: Prompt, completion: str) -> Any:
                warnings.warn("judge is now called score", DeprecationWarning, stacklevel=2)
                return score(self, prompt, completion)

            cls.judge = judge  # type: ignore[attr-defined]

    @abstractmethod
    def prompts(self) -> Sequence[Prompt]:
        """Every prompt of the task, on either side of the split, without repetition."""

    @abstractmethod
    def score(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        """Whether the answer is correct (None: cannot be decided), and the reason in one line."""

    def train_prompts(self, seed: int) -> list[Prompt]:
        """The prompts for training, in an order given by the seed: none that is held out, and none
        of a downstream set."""
        elsewhere = {p.id for prompts in self.downstream().values() for p in prompts}
        chosen = [p for p in self.prompts() if not self.is_held_out(p) and p.id not in elsewhere]
        random.Random(f"{self.name}|{seed}").shuffle(chosen)
        return chosen

    def validation_prompts(self, n: int) -> list[Prompt]:
        """The first n held-out prompts, the same in every run. A smaller n gives a subset."""
        found = sorted((p for p in self.prompts() if self.is_held_out(p)), key=lambda p: p.rank)
        if len(found) < n:
            raise InputError(
                f"task {self.name} holds out {len(found)} prompts, but {n} are needed: lower "
                f"validation.prompts, or raise held_out_share ({self.held_out_share})"
            )
        return found[:n]

    def downstream(self) -> Mapping[str, Sequence[Prompt]]:
        """Further test sets by name, each with its own curve; training never uses their prompts."""
        return {}

    def is_held_out(self, prompt: Prompt) -> bool:
        """Whether a prompt is on the held-out side of the split."""
        return prompt.rank < self.held_out_share

    def check(self, prompt: Prompt, completion: str) -> AnswerScore:
        """The score of one answer. Never raises because of the answer."""
        try:
            correct, why = self.score(prompt, completion)
        except (Exception, SystemExit) as error:  # a verifier that fails must not end the run
            return AnswerScore.unscored(named(error))
        return self.rules.score(correct, why)

    def check_all(self, answers: Sequence[Answer]) -> list[AnswerScore]:
        """The scores of many answers, in their order."""
        return [self.check(answer.prompt, answer.text) for answer in answers]

    @property
    def is_async(self) -> bool:
        """Whether `check_together` leaves its event loop free while it waits."""
        return False

    @property
    def can_be_cancelled(self) -> bool:
        """Whether cancelling `check_together` stops all of its work."""
        return self.is_async

    async def check_together(self, answers: Sequence[Answer]) -> list[AnswerScore]:
        """`check_all` for an event loop. It blocks the loop unless `is_async`."""
        return self.check_all(answers)

    def member_for(self, prompt: Prompt) -> Task:
        """The task that scores answers to this prompt: this one, or a member of a mixture."""
        return self

    def members(self) -> Sequence[Task]:
        """The tasks of a mixture; this one, if it is none."""
        return (self,)

    def scores_together(self, prompt: Prompt) -> bool:
        """Whether all answers to this prompt are best scored in one call."""
        return self.member_for(prompt).together

    def new_environment(self, prompt: Prompt) -> Any | None:
        """A new `scalerl.environments.interface.Environment` for an episode of this prompt; None
        for a task of a single turn, with answers that `check` scores."""
        return None

    def for_checking(self) -> Self:
        """A small copy to send to a checker process. It holds no dataset and no running process;
        it starts what it needs when first used, and is closed there."""
        return copy.copy(self)

    def close(self) -> None:  # noqa: B027 - most tasks hold nothing
        """Stop what the task started (worker processes)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def normal(question: str | Sequence[dict[str, str]]) -> str:
    """The question as the split sees it: in Unicode NFKC form, any white space as one blank, so
    that copies of a question that differ only in these stay on one side.

    >>> normal(" Two\\n  lines ") == normal("Two lines")
    True
    """
    if not isinstance(question, str):
        question = "\x1e".join(f"{m['role']}\x1f{m['content']}" for m in question)
    return " ".join(unicodedata.normalize("NFKC", question).split())


def digest(question: str | Sequence[dict[str, str]]) -> str:
    """16 hex digits that depend only on the question."""
    text = f"{SALT}|{normal(question)}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def rank(found: str) -> float:
    """A digest as a number in [0, 1): questions below the held-out share are held out."""
    # 53 bits are what a float holds exactly.
    return (int(found, 16) >> 11) / 2**53


def held_out(question: str | Sequence[dict[str, str]], share: float) -> bool:
    """Whether the question belongs to the held-out share.

    >>> sum(held_out(f"question {i}", 0.1) for i in range(1000))
    102
    """
    return rank(digest(question)) < share


def make_prompt(
    task: str,
    question: Question,
    answer: Any,
    columns: Mapping[str, Any] | None = None,
    content: Question | None = None,
) -> Prompt:
    """A prompt with an id made from its content. `content` is the question without the
    instructions that a task adds, so that changing those moves nothing across the split.

    >>> make_prompt("sums", "1+1=", "2").id == make_prompt("sums", " 1+1= ", "2").id
    True
    """
    key = digest(question if content is None else content)
    return Prompt(f"{task}/{key}", question, answer, task, columns or {})


def named(error: BaseException) -> str:
    """An exception as text: its class and its message.

    >>> named(KeyError("gold")), named(SystemExit())
    ("KeyError: 'gold'", 'SystemExit')
    """
    kind, text = type(error).__name__, str(error)
    return f"{kind}: {text}" if text else kind


def seed_from(*parts: object) -> int:
    """A seed that depends on all parts and on nothing else."""
    text = "|".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def map_threads(function: Callable[[A], B], items: Sequence[A], workers: int) -> list[B]:
    """The function applied to every item, in order, in this many threads."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(function, items))
