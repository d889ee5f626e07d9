"""mean@k on held-out prompts, at further temperatures, and on downstream sets, each a curve of its
own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.algorithm.rollout import Rollout
from scalerl.engine.interface import Request, Written
from scalerl.pipeline.plan import MAIN, TEMPERATURE, Plan
from scalerl.runs.answers import AnswerSample, EvalAnswers
from scalerl.runs.lines import SetScore
from scalerl.tasks.task import Checked, Prompt, seed_from


@dataclass(slots=True, eq=False)
class Asked:
    """One held-out prompt, and what was answered."""

    set: str
    prompt: Prompt
    request: Request
    rollouts: dict[int, Rollout] = field(default_factory=dict)
    verdicts: tuple[Checked, ...] = ()

    def in_order(self) -> list[Rollout]:
        return [self.rollouts[row] for row in sorted(self.rollouts)]


@dataclass(slots=True, eq=False)
class Validation:
    """One validation; the same prompts and seeds each time."""

    plan: Plan
    asked: dict[str, Asked] = field(default_factory=dict)
    #: Prompts without answers, and without verdicts.
    unwritten: int = 0
    missing: int = 0

    @staticmethod
    def of(plan: Plan) -> Validation:
        """k rollouts for every prompt of every set."""
        found = Validation(plan)
        for each in plan.sets:
            for i, prompt in enumerate(each.prompts):
                seeds = {
                    j: seed_from(plan.recipe.seed, "validation", each.name, prompt.id, j)
                    for j in range(each.k)
                }
                request = Request(
                    f"validation/{each.name}/{i}",
                    tuple(plan.tokens_of(prompt).tolist()),
                    plan.validation_control,
                    seeds,
                    each.sampling,
                )
                found.asked[request.id] = Asked(each.name, prompt, request)
        return found

    def again(self) -> Validation:
        """The same questions, not yet answered."""
        asked = {n: Asked(a.set, a.prompt, a.request) for n, a in self.asked.items()}
        return Validation(self.plan, asked, len(asked), len(asked))

    def wrote(self, written: Written) -> list[tuple[Prompt, str]] | None:
        """One answer more; all answers to its prompt if these are now complete."""
        asked = self.asked.get(written.request)
        if asked is None:
            return None
        asked.rollouts[written.row] = written.rollout
        if len(asked.rollouts) < len(asked.request.seeds):
            return None
        self.unwritten -= 1
        return [(asked.prompt, self.plan.text_of(r.token_ids)) for r in asked.in_order()]

    def judged(self, request: str, verdicts: Sequence[Checked]) -> None:
        self.missing -= not self.asked[request].verdicts
        self.asked[request].verdicts = tuple(verdicts)

    def score(self) -> dict[str, Any]:
        """The fields of an evaluation's line that speak of answers."""
        rates: dict[str, list[float]] = {each.name: [] for each in self.plan.sets}
        tasks: dict[str, list[float]] = {}
        for asked in self.asked.values():
            rate = float(np.mean([bool(v.correct) for v in asked.verdicts]))
            rates[asked.set].append(rate)
            if asked.set == MAIN:
                tasks.setdefault(asked.prompt.task, []).append(rate)
        every = [(r, v) for a in self.asked.values()
                 for r, v in zip(a.in_order(), a.verdicts, strict=True)]  # fmt: skip
        scores = {s.name: _rate(rates[s.name], s.k) for s in self.plan.sets}
        main = scores.pop(MAIN)
        heated = {text: scores.pop(TEMPERATURE + text) for text in self.plan.temperatures}
        return {
            "pass_rate": main.pass_rate,
            "stderr": main.stderr,
            "n_prompts": main.n_prompts,
            "k": main.k,
            "unscored": sum(v.correct is None for _, v in every),
            "truncated": float(np.mean([r.truncated for r, _ in every])),
            "tasks": {name: float(np.mean(values)) for name, values in tasks.items()},
            "downstream": scores or None,
            "temperatures": heated or None,
        }

    def answers(self, step: int) -> EvalAnswers:
        """Who was right how often, and some answers to read."""
        return EvalAnswers.of(
            step,
            (
                AnswerSample(
                    prompt=asked.prompt.id,
                    question=_text(asked.prompt),
                    answer=self.plan.text_of(rollout.token_ids),
                    correct=verdict.correct,
                    why=verdict.why,
                    finish=rollout.finish,
                    set=asked.set,
                )
                for asked in self.asked.values()
                for rollout, verdict in zip(asked.in_order(), asked.verdicts, strict=True)
            ),
        )


def _rate(means: list[float], k: int) -> SetScore:
    """Pass rate with the standard error of its mean over prompts."""
    n = len(means)
    spread = float(np.std(means, ddof=1) / np.sqrt(n)) if n > 1 else None
    return SetScore(float(np.mean(means)), spread, n, k)


def _text(prompt: Prompt) -> str:
    if isinstance(prompt.question, str):
        return prompt.question
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt.question)
