"""What a validation leaves beside its line: which prompts were answered right, and how often; and
some answers to read.

Two runs that were asked the same prompts are compared prompt by prompt, which tells them apart far
sooner than their pass rates do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, NamedTuple

from scalerl.runs.fields import Record, about, record

#: Answers of each kind that are kept from a set, and characters of each.
KEPT, CHARACTERS = 2, 4_000


class PromptScore(NamedTuple):
    """Answers to one prompt, in JSON `[right, scored, asked]`."""

    right: int
    scored: int
    asked: int


@record
class AnswerSample(Record):
    """One answer."""

    prompt: str = about("id of the prompt")
    question: str = about("text of the prompt")
    answer: str = about("what was answered, cut at 4,000 characters")
    correct: bool | None = about("whether it is right; null where it could not be scored")
    why: str = about("what the check found, in one line")
    finish: str = about("`stop`, `length`, `interrupted` or `failed`")
    set: str = about('name of its set; "" for the held-out prompts of the task itself', default="")


@record
class AnswerLine(Record):
    """One answer of `scalerl eval`, a line of `answers/step_N.jsonl`. The lines of a prompt are
    appended together, when all its answers are checked."""

    FOLDER: ClassVar[str] = "answers"

    prompt: str = about("id of the prompt", needed=True)
    n: int = about("which of its k answers, from 0", needed=True)
    task: str = about("task of the prompt: of a mixture, which part")
    question: str = about("text of the prompt")
    answer: str = about("what was answered")
    correct: bool | None = about("whether it is right; null where it could not be scored")
    reward: float | None = about("what it earned; null where it could not be scored")
    why: str = about("what the check found, in one line")
    tokens: int = about("length of the answer", unit="tokens")
    truncated: bool = about("whether it was cut off")
    finish: str = about("`stop`, `length`, `interrupted` or `failed`")


@record
class EvalAnswers(Record):
    """The answers of one validation."""

    FOLDER: ClassVar[str] = "evals"

    step: int = about("the validation's step", needed=True)
    sets: dict[str, dict[str, PromptScore]] = about(
        'per set ("": the held-out prompts of the task itself) and prompt id: '
        "`[right, scored, asked]`, numbers of answers"
    )
    answers: tuple[AnswerSample, ...] = about(
        "of every set up to two that are right, two wrong, two interrupted"
    )

    @staticmethod
    def of(step: int, answers: Iterable[AnswerSample]) -> EvalAnswers:
        """Count them all and keep the first few of each kind: in the same order at every
        validation, so that the same prompts are there to read each time.

        >>> said = AnswerSample("p1", "2+2=", "4", True, "equal", "stop")
        >>> found = EvalAnswers.of(5, [said, said, said])
        >>> found.sets, len(found.answers)
        ({'': {'p1': PromptScore(right=3, scored=3, asked=3)}}, 2)
        """
        sets: dict[str, dict[str, PromptScore]] = {}
        kept: list[AnswerSample] = []
        seen: Counter[tuple[str, str]] = Counter()
        for one in answers:
            of_set = sets.setdefault(one.set, {})
            old = of_set.get(one.prompt, PromptScore(0, 0, 0))
            of_set[one.prompt] = PromptScore(
                old.right + (one.correct is True),
                old.scored + (one.correct is not None),
                old.asked + 1,
            )
            kind = _kind(one)
            if kind is not None and seen[one.set, kind] < KEPT:
                seen[one.set, kind] += 1
                kept.append(replace(one, question=_cut(one.question), answer=_cut(one.answer)))
        return EvalAnswers(step, sets, tuple(kept))


def _kind(one: AnswerSample) -> str | None:
    if one.finish == "interrupted":
        return "interrupted"
    return {True: "right", False: "wrong", None: None}[one.correct]


def _cut(text: str) -> str:
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
