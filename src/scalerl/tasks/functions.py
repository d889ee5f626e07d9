"""Any reward function with TRL's signature, by import path: `function:pkg.mod:fn`.

    def fn(prompts, completions, **columns) -> list[float | None]

`prompts` and `completions` are lists of one length, strings or chat messages as the dataset has
them; every further column of the dataset arrives as a list. None means "cannot say".
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scalerl.algorithm.registry import Registry
from scalerl.tasks.data import Downstream, RowsTask
from scalerl.tasks.task import DEFAULT_RULES, Checked, Prompt, Rules

REWARDS: Registry[Callable[..., Any]] = Registry("reward function")


class FunctionTask(RowsTask):
    """Prompts from a file or dataset, rewards from a function. A reward of at least
    `correct_from` counts as a right answer in the pass rate; the reward itself is kept."""

    def __init__(
        self,
        about: str,
        dataset: str = "",
        *,
        rules: Rules = DEFAULT_RULES,
        held_out_share: float = 0.05,
        split: str = "train",
        correct_from: float = 1.0,
        downstream: Downstream | None = None,
    ) -> None:
        super().__init__(
            f"function:{about}",
            dataset,
            rules=rules,
            held_out_share=held_out_share,
            split=split,
            downstream=downstream,
            needs_answer=False,
        )
        self.correct_from = correct_from
        self.function = REWARDS[about]

    def judge(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        verdict = self.check(prompt, completion)
        return verdict.correct, verdict.why

    def check(self, prompt: Prompt, completion: str) -> Checked:
        return self.check_all([(prompt, completion)])[0]

    def check_all(self, answers: Sequence[tuple[Prompt, str]]) -> list[Checked]:
        """One call for all of them, as in TRL."""
        if not answers:
            return []
        try:
            rewards = self._call(answers)
        except Exception as error:  # somebody else's function: what it raises is data
            why = f"{self.name} raised {type(error).__name__}: {error}"
            return [Checked.unscored(why)] * len(answers)
        if isinstance(rewards, str) or not isinstance(rewards, Iterable):
            why = f"{self.name} returned {type(rewards).__name__}, not a list of numbers"
            return [Checked.unscored(why)] * len(answers)
        rewards = list(rewards)
        if len(rewards) != len(answers):
            why = f"{self.name} returned {len(rewards)} rewards for {len(answers)} answers"
            return [Checked.unscored(why)] * len(answers)
        return [self._verdict(reward) for reward in rewards]

    def _call(self, answers: Sequence[tuple[Prompt, str]]) -> Any:
        prompts = [
            p.question if isinstance(p.question, str) else list(p.question) for p, _ in answers
        ]
        completions: list[Any] = [
            [{"role": "assistant", "content": text}] if p.is_chat else text for p, text in answers
        ]
        columns: dict[str, list[Any]] = {"answer": [p.answer for p, _ in answers]}
        for name in sorted({name for p, _ in answers for name in p.columns}):
            columns[name] = [p.columns.get(name) for p, _ in answers]
        return self.function(
            prompts=prompts, completions=completions, **_accepted(self.function, columns)
        )

    def _verdict(self, reward: Any) -> Checked:
        if reward is None:
            return Checked.unscored(f"{self.name} gave no reward")
        if isinstance(reward, (str, bytes)):
            return Checked.unscored(f"{self.name} gave {reward!r}, not a number")
        try:
            value = float(reward)
        except (TypeError, ValueError, OverflowError):
            return Checked.unscored(f"{self.name} gave a {type(reward).__name__}, not a number")
        if not math.isfinite(value):
            return Checked.unscored(f"{self.name} gave {value}, not a finite number")
        return Checked(value >= self.correct_from, value, f"{self.name} gave {value:g}")


def _accepted(function: Callable[..., Any], columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns a function asks for: all with **kwargs, else those it names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature gets everything
        return columns
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return columns
    named = {p.name for p in parameters}
    return {name: values for name, values in columns.items() if name in named}
