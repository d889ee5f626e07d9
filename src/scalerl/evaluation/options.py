"""Options of an evaluation: by default it repeats the validation of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.evaluation.subjects import Subject
from scalerl.recipe import Recipe
from scalerl.recipe.load import recipe_from
from scalerl.tasks.task import Prompt, Task


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """The arguments of `evaluate` that change the recipe; None leaves the recipe's value."""

    task: str | None = None
    dataset: str | None = None
    prompts: int | None = None
    k: int | None = None
    temperature: float | None = None
    #: Overrides, key=value, which come last.
    changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("prompts", self.prompts), ("k", self.k)):
            if least is not None and least < 1:
                raise InputError(f"--{name} {least}: give 1 or more")
        if self.temperature is not None and not 0.0 <= self.temperature < float("inf"):
            raise InputError(f"--temperature {self.temperature}: give 0 or more")
        if self.temperature == 0.0 and (self.k or 1) > 1:
            raise InputError(
                f"--k {self.k} at --temperature 0: all answers to a prompt would be the same; "
                "leave --k out"
            )

    def recipe(self, subject: Subject) -> Recipe:
        """The recipe of the evaluation of this subject."""
        data: dict[str, Any] = subject.recipe.to_dict()
        own = data["task"]
        if self.task is None and subject.run is None:
            raise InputError(f"{subject.name} is a model, not a run with a task: give --task NAME")
        if self.task is not None and self.task != own["name"]:
            # Dataset, options and weights belong to the run's task, not to the new one.
            own |= {"name": self.task, "dataset": "", "options": {}, "weights": []}
        if self.dataset is not None:
            own["dataset"] = self.dataset
        asked = data["validation"]
        # A record holds one curve: that of validation.temperature.
        asked["also_temperatures"] = []
        if self.temperature is not None:
            asked["temperature"] = self.temperature
        # Greedy answers to a prompt are all the same: one is enough.
        if self.k is not None or asked["temperature"] == 0.0:
            asked["k"] = self.k or 1
        if self.prompts is not None:
            asked["prompts"] = self.prompts
        return recipe_from([data, *self.changes])

    def choose(self, task: Task, subject: Subject) -> Sequence[Prompt]:
        """The prompts of the evaluation: all of a dataset given for it, since a benchmark has no
        training side; otherwise the held-out ones, which the run was never trained on."""
        trained = subject.recipe.task.dataset
        if not self.dataset or _same_file(self.dataset, trained):
            return task.validation_prompts(self.recipe(subject).validation.prompts)
        # By rank, as the held-out prompts: a smaller --prompts gives a subset.
        found = sorted(task.prompts(), key=lambda prompt: prompt.rank)
        if self.prompts is not None and self.prompts > len(found):
            raise InputError(
                f"{self.dataset} has {len(found)} prompts, not {self.prompts}: lower --prompts"
            )
        return found[: self.prompts]


def _same_file(a: str, b: str) -> bool:
    return bool(b) and Path(a).resolve() == Path(b).resolve()
