"""Steps that teach nothing: the rollouts of every prompt of the batch all earned the same, so that
no rollout has an advantage.

The optimiser does not move the weights in such a step (`scalerl.trainer`). The version goes up
all the same: the step has its line in `steps.jsonl` and takes its part of the budget. The first one
of a row is a warning; after `filter.empty_steps` in a row the run ends, with what to change.
"""

from __future__ import annotations

from collections.abc import Iterable

from scalerl.errors import PipelineError
from scalerl.pipeline.alarms import WINDOW
from scalerl.recipe import Recipe
from scalerl.runs.lines import StepLine


class EmptySteps:
    """Counts steps in a row without anything to learn from. A row soon after another is not warned
    about again: with a few prompts a batch, some are empty by chance."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        #: Of the present row.
        self.row: list[StepLine] = []
        #: Number of the last empty step of any row.
        self._last: int | None = None

    def step(self, line: StepLine) -> list[str]:
        """Lines about a step that begins a row; PipelineError at the end of the longest one."""
        if line.filtered.zero_variance_prompts < line.filtered.prompts:
            self.row.clear()
            return []
        self.row.append(line)
        recent = self._last is not None and line.step - self._last <= WINDOW
        self._last = line.step
        limit = self.recipe.filter.empty_steps
        if limit and len(self.row) >= limit:
            many = "step" if limit == 1 else f"{limit} steps"
            raise PipelineError(
                f"the last {many} taught nothing: {cause(self.row, self.recipe)}, then --resume; "
                "filter.empty_steps sets after how many steps a run ends"
            )
        if recent:
            return []
        after = f"; the run ends after {limit} such steps in a row (filter.empty_steps)"
        return [
            f"step {line.step} taught nothing: {cause(self.row, self.recipe)}"
            + (after if limit else "")
        ]


def cause(row: Iterable[StepLine], recipe: Recipe) -> str:
    """Why rollouts all earned the same, and what to change."""
    lines = list(row)
    rollouts = sum(line.filtered.rollouts for line in lines)
    if sum(line.filtered.unscored for line in lines) == rollouts:
        why = next(iter(lines[-1].unscored_why or ()), "the verifier gives no reward")
        return f"no rollout has a reward ({why}): repair the task's verifier"
    cut = sum(line.filtered.truncated for line in lines)
    if cut == rollouts and recipe.filter.truncated == "drop":
        knob = "answer_tokens" if recipe.length.control == "interruption" else "max_tokens"
        return (
            "every rollout is cut off before its end, and filter.truncated = drop leaves such "
            f"rollouts out: raise length.{knob}"
        )
    right = sum(line.pass_rate for line in lines) / len(lines)
    size = f"raise batch.generations = {recipe.batch.generations}"
    if right == 0.0:
        return (
            "the pass rate is 0, so the task is too hard for the model, or no answer has the form "
            "that the verifier reads: read some answers in evals/, then take another model, "
            f"easier prompts (task), or {size}"
        )
    if right == 1.0:
        return (
            "the pass rate is 1, so the task is too easy for the model: take harder prompts (task) "
            "or a weaker model"
        )
    return (
        f"the pass rate is {right:.2g}, and the rollouts of each prompt all earned the same: take "
        f"prompts of middling difficulty (task), {size}, or look at filter.truncated"
    )
