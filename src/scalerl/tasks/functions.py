"""Any reward function with TRL's signature, by import path: `function:pkg.mod:fn`.

    def fn(prompts, completions, **columns) -> list[float | None]        # or async def

`prompts` and `completions` are lists of one length, strings or chat messages as the dataset has
them; every further column of the dataset arrives as a list. None means "cannot say".
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scalerl.registry import Registry
from scalerl.tasks.data import Downstream, RowsTask
from scalerl.tasks.task import DEFAULT_RULES, Checked, Prompt, Rules

REWARDS: Registry[Callable[..., Any]] = Registry("reward function")


class FunctionTask(RowsTask):
    """Prompts from a file or dataset, rewards from a function. A reward of at least
    `correct_from` counts as a right answer in the pass rate; the reward itself is kept."""

    together = True

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
        self._about = about
        self.function = REWARDS[about]

    def judge(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        verdict = self.check(prompt, completion)
        return verdict.correct, verdict.why

    def check(self, prompt: Prompt, completion: str) -> Checked:
        return self.check_all([(prompt, completion)])[0]

    @property
    def is_async(self) -> bool:
        call = type(self.function).__call__
        return any(inspect.iscoroutinefunction(f) for f in (self.function, call))

    def check_all(self, answers: Sequence[tuple[Prompt, str]]) -> list[Checked]:
        """One call for all of them, as in TRL. (An async function is waited for here; within an
        event loop, await `check_together`.)"""
        if self.is_async:
            return asyncio.run(self.check_together(answers))
        if not answers:
            return []
        try:
            rewards = self._call(answers)
        except Exception as error:  # somebody else's function: what it raises is data
            return self._unscored(answers, f"raised {type(error).__name__}: {error}")
        return self._verdicts(answers, rewards)

    async def check_together(self, answers: Sequence[tuple[Prompt, str]]) -> list[Checked]:
        """`check_all` for an event loop, which an async function leaves free while it waits."""
        if not self.is_async:
            return self.check_all(answers)
        if not answers:
            return []
        try:
            rewards = await self._call(answers)
        except Exception as error:  # as above; being cancelled is none
            return self._unscored(answers, f"raised {type(error).__name__}: {error}")
        return self._verdicts(answers, rewards)

    def _unscored(self, answers: Sequence[tuple[Prompt, str]], why: str) -> list[Checked]:
        return [Checked.unscored(f"{self.name} {why}")] * len(answers)

    def _verdicts(self, answers: Sequence[tuple[Prompt, str]], rewards: Any) -> list[Checked]:
        if isinstance(rewards, str) or not isinstance(rewards, Iterable):
            given = type(rewards).__name__
            return self._unscored(answers, f"returned {given}, not a list of numbers")
        try:
            found = list(rewards)
        except Exception as error:  # a generator may raise as late as here
            return self._unscored(answers, f"raised {type(error).__name__}: {error}")
        if len(found) != len(answers):
            return self._unscored(
                answers, f"returned {len(found)} rewards for {len(answers)} answers"
            )
        return [self._verdict(reward) for reward in found]

    def __getstate__(self) -> dict[str, Any]:
        """By import path, where there is one: what it leads to may be a lambda or wrapped, which
        does not pickle. (A function that only a decorator named goes by its module and name.)"""
        state = dict(self.__dict__)
        if ":" in self._about:
            del state["function"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "function" not in state:
            self.function = REWARDS[self._about]

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
