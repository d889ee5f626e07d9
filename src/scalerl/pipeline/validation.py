"""mean@k on held-out prompts, and on any number of downstream sets, each a curve of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalerl.engine.interface import Request, Written
from scalerl.pipeline.checking import Checker
from scalerl.pipeline.plan import Plan
from scalerl.tasks.task import Prompt, seed_from

#: The held-out prompts of the task itself; downstream sets have names of their own.
MAIN = ""


@dataclass(slots=True, eq=False)
class Validation:
    """What is asked at every validation; the same prompts and seeds each time."""

    plan: Plan
    asked: dict[str, tuple[str, Prompt]] = field(default_factory=dict)
    _requests: list[Request] = field(default_factory=list)

    def requests(self) -> list[Request]:
        """k rollouts for every prompt of every set."""
        if self._requests:
            return self._requests
        plan, found = self.plan, self._requests
        for name, prompts in {MAIN: plan.validation, **plan.downstream}.items():
            for i, prompt in enumerate(prompts):
                tokens = tuple(plan.tokens_of(prompt).tolist())
                for j in range(plan.recipe.validation.k):
                    asked = f"validation/{name}/{i}/{j}"
                    self.asked[asked] = (name, prompt)
                    seed = seed_from(plan.recipe.seed, "validation", name, prompt.id, j)
                    found.append(
                        Request(
                            asked, tokens, plan.validation_control, plan.validation_sampling, seed
                        )
                    )
        return found

    def score(self, answers: Sequence[Written], checker: Checker) -> dict[str, Any]:
        """The fields of an eval record that speak of answers."""
        answers = sorted(answers, key=lambda w: w.id)
        pairs = [(self.asked[w.id][1], self.plan.text_of(w.token_ids)) for w in answers]
        verdicts = checker.check_all(pairs)
        right: dict[str, dict[str, list[float]]] = {}
        for w, (prompt, _), verdict in zip(answers, pairs, verdicts, strict=True):
            of_set = right.setdefault(self.asked[w.id][0], {})
            of_set.setdefault(prompt.id, []).append(float(bool(verdict.correct)))
        tasks: dict[str, list[float]] = {}
        for prompt in self.plan.validation:
            tasks.setdefault(prompt.task, []).append(float(np.mean(right[MAIN][prompt.id])))
        record = self._rate(right[MAIN]) | {
            "unscored": sum(v.correct is None for v in verdicts),
            "truncated": float(np.mean([w.finish == "length" for w in answers])),
            "tasks": {name: float(np.mean(values)) for name, values in tasks.items()},
        }
        others = {name: self._rate(found) for name, found in right.items() if name != MAIN}
        return record | ({"downstream": others} if others else {})

    def _rate(self, right: dict[str, list[float]]) -> dict[str, Any]:
        """Pass rate with the standard error of its mean over prompts."""
        means = np.array([np.mean(values) for values in right.values()])
        spread = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else None
        return {
            "pass_rate": float(means.mean()),
            "stderr": spread,
            "n_prompts": len(means),
            "k": self.plan.recipe.validation.k,
        }
