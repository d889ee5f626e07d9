"""mean@k on held-out prompts, at further temperatures, and on downstream sets, each a curve of its
own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.algorithm.rollout import Rollout
from scalerl.engine.interface import Request, RolloutResult
from scalerl.pipeline.setup import MAIN, TEMPERATURE, RunSetup
from scalerl.runs.lines import AnswerSample, EvalAnswers, SetScore
from scalerl.tasks.task import Answer, AnswerScore, Prompt, seed_from


@dataclass(slots=True, eq=False)
class ValidationPrompt:
    """One held-out prompt, and what was answered."""

    set: str
    prompt: Prompt
    request: Request
    rollouts: dict[int, Rollout] = field(default_factory=dict)
    scores: tuple[AnswerScore, ...] = ()

    def in_order(self) -> list[Rollout]:
        return [self.rollouts[row] for row in sorted(self.rollouts)]


@dataclass(slots=True, eq=False)
class Validation:
    """One validation; the same prompts and seeds each time."""

    setup: RunSetup
    asked: dict[str, ValidationPrompt] = field(default_factory=dict)
    #: Prompts without answers, and without scores.
    unwritten: int = 0
    missing: int = 0

    @staticmethod
    def from_setup(setup: RunSetup) -> Validation:
        """k rollouts for every prompt of every set."""
        found = Validation(setup)
        for each in setup.sets:
            for i, prompt in enumerate(each.prompts):
                seeds = {
                    j: seed_from(setup.recipe.seed, "validation", each.name, prompt.id, j)
                    for j in range(each.k)
                }
                request = Request(
                    f"validation/{each.name}/{i}",
                    tuple(setup.tokens_of(prompt).tolist()),
                    setup.validation_control,
                    seeds,
                    each.sampling,
                )
                found.asked[request.id] = ValidationPrompt(each.name, prompt, request)
        return found

    @property
    def progress(self) -> tuple[int, int, int]:
        """Answers written, answers checked, and all there will be."""
        found = self.asked.values()
        return (
            sum(len(a.rollouts) for a in found),
            sum(len(a.scores) for a in found),
            sum(len(a.request.seeds) for a in found),
        )

    def unanswered(self) -> Validation:
        """The same questions, not yet answered."""
        asked = {n: ValidationPrompt(a.set, a.prompt, a.request) for n, a in self.asked.items()}
        return Validation(self.setup, asked, len(asked), len(asked))

    def wrote(self, written: RolloutResult, step: int) -> list[Answer] | None:
        """One answer more; all answers to its prompt if these are now complete."""
        asked = self.asked.get(written.request)
        if asked is None:
            return None
        asked.rollouts[written.row] = written.rollout
        if len(asked.rollouts) < len(asked.request.seeds):
            return None
        self.unwritten -= 1
        return [self.setup.answer(asked.prompt, r.token_ids, step) for r in asked.in_order()]

    def add_scores(self, request: str, scores: Sequence[AnswerScore]) -> None:
        self.missing -= not self.asked[request].scores
        self.asked[request].scores = tuple(scores)

    def recheck(self, step: int) -> dict[str, list[Answer]]:
        """The answers to prompts that were not scored altogether, to be checked again. (They are
        not written again: the same weights and seeds would write the same.)"""
        again = {}
        for name, asked in self.asked.items():
            if any(v.correct is None for v in asked.scores):
                asked.scores = ()
                again[name] = [
                    self.setup.answer(asked.prompt, r.token_ids, step) for r in asked.in_order()
                ]
        self.missing = len(again)
        return again

    @property
    def main(self) -> SetScore:
        """The score of the held-out prompts of the task itself."""
        return self._scores()[MAIN]

    @property
    def nothing_scored(self) -> str | None:
        """What is wrong, if not a single answer could be scored: such a task teaches nothing."""
        score = self.main
        if score.scored:
            return None
        return (
            f"not one of {score.n_prompts * score.k} answers of the first validation could be "
            f"scored: {score.failed}; repair the verifier (task.name, task.options), then --resume"
        )

    def _scores(self) -> dict[str, SetScore]:
        sets: dict[str, list[ValidationPrompt]] = {}
        for asked in self.asked.values():
            sets.setdefault(asked.set, []).append(asked)
        return {s.name: set_score([a.scores for a in sets[s.name]], s.k) for s in self.setup.sets}

    def score(self) -> dict[str, Any]:
        """The fields of an evaluation's line that speak of answers."""
        scores = self._scores()
        main = scores.pop(MAIN)
        heated = {text: scores.pop(TEMPERATURE + text) for text in self.setup.temperatures}
        asked = [a for a in self.asked.values() if a.set == MAIN]
        rollouts = [r for a in asked for r in a.in_order()]
        return {
            "pass_rate": main.pass_rate,
            "stderr": main.stderr,
            "n_prompts": main.n_prompts,
            "k": main.k,
            "scored": main.scored,
            "unscored": len(rollouts) - (main.scored or 0),
            "failed": main.failed,
            "truncated": float(np.mean([r.truncated for r in rollouts])),
            "tasks": by_task((a.prompt.task, a.scores) for a in asked),
            "downstream": scores or None,
            "temperatures": heated or None,
        }

    def answers(self, step: int) -> EvalAnswers:
        """Who was right how often, and some answers to read."""
        return EvalAnswers.from_answers(
            step,
            (
                AnswerSample(
                    prompt=asked.prompt.id,
                    question=question_text(asked.prompt),
                    answer=self.setup.text_of(rollout.token_ids),
                    correct=score.correct,
                    why=score.why,
                    finish=rollout.finish,
                    set=asked.set,
                )
                for asked in self.asked.values()
                for rollout, score in zip(asked.in_order(), asked.scores, strict=True)
            ),
        )


def by_task(asked: Iterable[tuple[str, Sequence[AnswerScore]]]) -> dict[str, float]:
    """Pass rate of each task of a mixture, by the tasks and scores of prompts."""
    tasks: dict[str, list[float]] = {}
    for task, scores in asked:
        right = [v.correct for v in scores if v.correct is not None]
        if right:
            tasks.setdefault(task, []).append(float(np.mean(right)))
    return {name: float(np.mean(shares)) for name, shares in tasks.items()}


def set_score(scores: Sequence[Sequence[AnswerScore]], k: int) -> SetScore:
    """The score of a set, by the scores on the answers to each of its prompts.

    Unscored is not wrong: of each prompt the share that is right among its scored answers, then the
    mean over prompts that have such answers, and its standard error. If fewer than half of the
    answers could be scored, or only one prompt of several, there is no score.

    >>> yes, no, unknown = (AnswerScore(c, 0.0, "why") for c in (True, False, None))
    >>> set_score([[yes, unknown], [no, yes]], k=2).pass_rate
    0.75
    >>> set_score([[yes, unknown], [unknown, unknown]], k=2).failed
    'why'
    """
    known = [[bool(v.correct) for v in each if v.correct is not None] for each in scores]
    shares = [float(np.mean(each)) for each in known if each]
    scored, asked = sum(map(len, known)), sum(map(len, scores))
    if 2 * scored < asked or len(shares) < min(2, len(scores)):
        return SetScore(None, None, len(scores), k, scored, reason(scores))
    spread = float(np.std(shares, ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else None
    return SetScore(float(np.mean(shares)), spread, len(scores), k, scored)


def reason(scores: Sequence[Sequence[AnswerScore]]) -> str:
    """The commonest reason of answers without a score."""
    return Counter(v.why for each in scores for v in each if v.correct is None).most_common(1)[0][0]


def question_text(prompt: Prompt) -> str:
    """The question as people read it."""
    if isinstance(prompt.question, str):
        return prompt.question
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt.question)
