"""A mixture: several tasks in one run, each with its share of the prompts and its own pass rate."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Self

from scalerl.errors import InputError
from scalerl.tasks.task import Answer, AnswerScore, Prompt, Task


class Mixture(Task):
    """Several tasks; the weights are their shares in the training pool and in validation.

    The pool is as large as the shares allow without repeating a prompt: the task that is smallest
    for its weight gives all its prompts, each other task a subset chosen by the seed.
    """

    def __init__(self, tasks: Sequence[Task], weights: Sequence[float] = ()) -> None:
        weights = list(weights) or [1.0] * len(tasks)
        if len(tasks) != len(weights) or not tasks:
            raise InputError(
                f"task.weights has {len(weights)} numbers for {len(tasks)} tasks: give one for each"
            )
        if min(weights) < 0 or sum(weights) <= 0:
            raise InputError(f"task.weights = {weights}: give numbers of 0 or more, not all 0")
        names = [task.name for task in tasks]
        if len(set(names)) < len(names):
            raise InputError(f"task.name = {'+'.join(names)}: name each task only once")
        super().__init__("+".join(names), rules=tasks[0].rules)
        total = sum(weights)
        self.tasks: Mapping[str, Task] = dict(zip(names, tasks, strict=True))
        self.notes = [note for task in tasks for note in task.notes]
        self.shares = {n: w / total for n, w in zip(names, weights, strict=True)}

    def prompts(self) -> list[Prompt]:
        return [prompt for task in self.tasks.values() for prompt in task.prompts()]

    def train_prompts(self, seed: int) -> list[Prompt]:
        pools = {n: self.tasks[n].train_prompts(seed) for n, s in self.shares.items() if s > 0}
        size = min(len(pool) / self.shares[n] for n, pool in pools.items())
        # 1e-9 keeps a product such as 0.29 * 100 = 28.999… from losing a prompt.
        chosen = [p for n, pool in pools.items() for p in pool[: int(size * self.shares[n] + 1e-9)]]
        random.Random(f"{self.name}|{seed}").shuffle(chosen)
        return chosen

    def validation_prompts(self, n: int) -> list[Prompt]:
        counts = _divide(n, self.shares)
        return [p for name, k in counts.items() for p in self.tasks[name].validation_prompts(k)]

    def downstream(self) -> dict[str, Sequence[Prompt]]:
        return dict(item for task in self.tasks.values() for item in task.downstream().items())

    def score(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        return self.member_for(prompt).score(prompt, completion)

    def check(self, prompt: Prompt, completion: str) -> AnswerScore:
        return self.member_for(prompt).check(prompt, completion)

    def check_all(self, answers: Sequence[Answer]) -> list[AnswerScore]:
        found: dict[int, AnswerScore] = {}
        for name, task in self.tasks.items():
            mine = [i for i, answer in enumerate(answers) if answer.prompt.task == name]
            found.update(zip(mine, task.check_all([answers[i] for i in mine]), strict=True))
        return [
            found.get(i) or AnswerScore.unscored(f"no task {answer.prompt.task!r} in {self.name}")
            for i, answer in enumerate(answers)
        ]

    def close(self) -> None:
        for task in self.tasks.values():
            task.close()

    def for_checking(self) -> Self:
        light = super().for_checking()
        light.tasks = {name: task.for_checking() for name, task in self.tasks.items()}
        return light

    def members(self) -> Sequence[Task]:
        return list(self.tasks.values())

    def new_environment(self, prompt: Prompt) -> Any | None:
        return self.member_for(prompt).new_environment(prompt)

    def scores_together(self, prompt: Prompt) -> bool:
        return prompt.task in self.tasks and super().scores_together(prompt)

    def member_for(self, prompt: Prompt) -> Task:
        if prompt.task not in self.tasks:
            raise InputError(f"prompt {prompt.id} is of task {prompt.task!r}, not of {self.name}")
        return self.tasks[prompt.task]


def _divide(n: int, shares: Mapping[str, float]) -> dict[str, int]:
    """n split into whole numbers as close to the shares as possible (largest remainders).

    >>> _divide(10, {"math": 2 / 3, "code": 1 / 3})
    {'math': 7, 'code': 3}
    """
    exact = {name: n * share for name, share in shares.items()}
    parts = {name: int(x) for name, x in exact.items()}
    for name in sorted(exact, key=lambda k: parts[k] - exact[k])[: n - sum(parts.values())]:
        parts[name] += 1
    return parts
