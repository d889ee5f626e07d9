"""The tasks `function:pkg.mod:fn`: rewards from any function with TRL's signature. The rewards of
several functions, `function:pkg.mod:right,pkg.mod:brief`, are added.

    def fn(prompts, completions, **columns) -> list[float | None]        # or async def

`prompts` and `completions` are lists of equal length, of strings or chat messages as in the
dataset; every further column of the dataset is passed as a list, and so are `completion_ids`.
`trainer_state`, `log_metric` and `log_extra` are passed too. A reward of None means "unknown".
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scalerl.errors import InputError
from scalerl.registry import Registry
from scalerl.tasks.data import Downstream, RowsTask
from scalerl.tasks.task import DEFAULT_RULES, Answer, AnswerScore, Prompt, Rules, named
from scalerl.text import one_line

REWARDS: Registry[Callable[..., Any]] = Registry("reward function")


@dataclass(frozen=True, slots=True)
class RewardState:
    """The state of the run, passed to reward functions as `trainer_state`."""

    #: Optimiser steps that the run had taken when the answers were handed over.
    global_step: int


@dataclass(slots=True)
class _CallLog:
    """What reward functions log in one call, besides their rewards."""

    metrics: list[tuple[str, float]] = field(default_factory=list)
    extras: dict[str, list[Any]] = field(default_factory=dict)

    def metric(self, name: str, value: float) -> None:
        self.metrics.append((f"reward/{name}", float(value)))

    def extra(self, column: str, values: Iterable[Any]) -> None:
        self.extras[column] = list(values)


class _Unusable(Exception):
    """A function did not return one reward for each answer; the text says why."""


class FunctionTask(RowsTask):
    """Prompts from a file or dataset, rewards from functions.

    Rewards of several functions are added with `reward_weights` (1 each), without unknown ones, as
    in TRL. An answer counts as correct in the pass rate if the first function gives at least
    `correct_from`: the other functions change the reward only."""

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
        reward_weights: Sequence[float] = (),
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
        self._paths = tuple(part.strip() for part in about.split(","))
        self.functions = tuple(REWARDS[path] for path in self._paths)
        self.weights = _weights(reward_weights, self._paths)

    def score(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        found = self.check(prompt, completion)
        return found.correct, found.why

    def check(self, prompt: Prompt, completion: str) -> AnswerScore:
        return self.check_all([Answer(prompt, completion)])[0]

    @property
    def is_async(self) -> bool:
        return any(map(_is_async, self.functions))

    @property
    def can_be_cancelled(self) -> bool:
        return all(map(_is_async, self.functions))

    def check_all(self, answers: Sequence[Answer]) -> list[AnswerScore]:
        """The scores of all answers by one call of each function, as in TRL. (Waits for async
        functions; within an event loop, await `check_together`.)"""
        if self.is_async:
            return asyncio.run(self.check_together(answers))
        if not answers:
            return []
        log = _CallLog()
        try:
            found = [self._rewards(i, answers, self._call(i, answers, log))
                     for i in range(len(self.functions))]  # fmt: skip
        except _Unusable as why:
            return [AnswerScore.unscored(str(why))] * len(answers)
        return self._scores(answers, found, log)

    async def check_together(self, answers: Sequence[Answer]) -> list[AnswerScore]:
        """`check_all` for an event loop. Async functions leave the loop free while they wait; if
        there are any, the others run in threads."""
        if not self.is_async:
            return self.check_all(answers)
        if not answers:
            return []
        log = _CallLog()
        given = [self._awaited(i, answers, log) for i in range(len(self.functions))]
        found = await asyncio.gather(*given, return_exceptions=True)
        for one in found:
            if isinstance(one, _Unusable):
                return [AnswerScore.unscored(str(one))] * len(answers)
            if isinstance(one, BaseException):
                raise one
        return self._scores(answers, [one for one in found if isinstance(one, list)], log)

    # -- calling ----------------------------------------------------------------------------------

    def _call(self, i: int, answers: Sequence[Answer], log: _CallLog) -> Any:
        function = self.functions[i]
        arguments = _arguments(answers) | {
            "trainer_state": RewardState(max(a.step for a in answers)),
            "log_metric": log.metric,
            "log_extra": log.extra,
        }
        try:
            return function(**_accepted(function, arguments))
        except (Exception, SystemExit) as error:  # a user's function must not end the run
            raise self._unusable(i, f"raised {named(error)}") from None

    async def _awaited(
        self, i: int, answers: Sequence[Answer], log: _CallLog
    ) -> list[float | None]:
        if not _is_async(self.functions[i]):
            given = await _in_a_thread(lambda: self._call(i, answers, log))
            return self._rewards(i, answers, given)
        try:
            given = await self._call(i, answers, log)
        except _Unusable:
            raise
        # Not BaseException: CancelledError has to pass, or the call could not be cancelled.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise self._unusable(i, f"raised {named(error)}") from None
        return self._rewards(i, answers, given)

    def _unusable(self, i: int, why: str) -> _Unusable:
        return _Unusable(f"function:{self._paths[i]} {why}")

    def _rewards(self, i: int, answers: Sequence[Answer], given: Any) -> list[float | None]:
        """What a function returned, as a list with one item for each answer."""
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise self._unusable(i, f"returned {type(given).__name__}, not a list of numbers")
        try:
            found = list(given)
        except (Exception, SystemExit) as error:  # a generator may raise as late as here
            raise self._unusable(i, f"raised {named(error)}") from None
        if len(found) != len(answers):
            raise self._unusable(i, f"returned {len(found)} rewards for {len(answers)} answers")
        return found

    # -- scoring ----------------------------------------------------------------------------------

    def _scores(
        self, answers: Sequence[Answer], given: list[list[Any]], log: _CallLog
    ) -> list[AnswerScore]:
        """The scores of the answers; `given` has the rewards by function, then by answer."""
        scores = [self._score(one) for one in zip(*given, strict=True)]
        for column, values in log.extras.items():
            if len(values) == len(answers):
                scores = [replace(s, why=one_line(f"{s.why}; {column} = {value}"))
                          for s, value in zip(scores, values, strict=True)]  # fmt: skip
        # The metrics of a call go with its first answer, so that they are counted once.
        first = scores[0]
        return [replace(first, metrics=(*first.metrics, *log.metrics)), *scores[1:]]

    def _score(self, given: Sequence[Any]) -> AnswerScore:
        """The score of one answer from the rewards of each function."""
        values: list[float | None] = []
        for path, reward in zip(self._paths, given, strict=True):
            value, wrong = _number(reward)
            if wrong:
                return AnswerScore.unscored(f"function:{path} gave {wrong}")
            values.append(value)
        known = [(w, v) for w, v in zip(self.weights, values, strict=True) if v is not None]
        if not known:
            return AnswerScore.unscored(f"{self.name} gave no reward")
        total = sum(w * v for w, v in known)
        if len(values) == 1:
            return AnswerScore(total >= self.correct_from, total, f"{self.name} gave {total:g}")
        first = values[0]
        shown = ", ".join("nothing" if v is None else f"{v:g}" for v in values)
        metrics = tuple((f"reward/{path}", v) for path, v in zip(self._paths, values, strict=True)
                        if v is not None)  # fmt: skip
        correct = None if first is None else first >= self.correct_from
        return AnswerScore(correct, total, f"{self.name} gave {shown}", metrics=metrics)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle functions by their import path if they have one: a lambda or a wrapped function
        does not pickle itself. (A function registered by a decorator is pickled by its name.)"""
        state = dict(self.__dict__)
        if all(":" in path for path in self._paths):
            del state["functions"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "functions" not in state:
            self.functions = tuple(REWARDS[path] for path in self._paths)


def _weights(given: Sequence[float], paths: Sequence[str]) -> tuple[float, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"reward_weights = {given!r}: give a list of numbers, one per function")
    found = [_number(weight) for weight in given]
    if any(wrong or value is None for value, wrong in found):
        raise InputError(f"reward_weights = {list(given)}: give finite numbers")
    if found and len(found) != len(paths):
        raise InputError(
            f"reward_weights has {len(found)} numbers for {len(paths)} reward functions "
            f"({', '.join(paths)}): give one each, or none"
        )
    return tuple(value or 0.0 for value, _ in found) or (1.0,) * len(paths)


def _number(reward: Any) -> tuple[float | None, str]:
    """A reward as a number, and what is wrong with it. None stays None."""
    if reward is None:
        return None, ""
    if isinstance(reward, (str, bytes)):
        return None, f"{reward!r}, not a number"
    try:
        value = float(reward)
    except (TypeError, ValueError, OverflowError):
        return None, f"a {type(reward).__name__}, not a number"
    return (value, "") if math.isfinite(value) else (None, f"{value}, not a finite number")


def _is_async(function: Callable[..., Any]) -> bool:
    inner = getattr(function, "func", function)  # functools.partial
    return any(inspect.iscoroutinefunction(f) for f in (function, inner, type(inner).__call__))


async def _in_a_thread(function: Callable[[], Any]) -> Any:
    """As `asyncio.to_thread`, but with a new thread each: functions that hang would use up the
    threads of a pool."""
    events = asyncio.get_running_loop()
    found: asyncio.Future[Any] = events.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if found.done():
            return  # the call was cancelled meanwhile
        if error is None:
            found.set_result(result)
        else:
            found.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        events.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return await found


def _arguments(answers: Sequence[Answer]) -> dict[str, Any]:
    """The arguments for every reward function, a list each, as in TRL."""
    asked = [a.prompt for a in answers]
    columns = {name: [p.columns.get(name) for p in asked]
               for name in sorted({name for p in asked for name in p.columns})}  # fmt: skip
    return {"answer": [p.answer for p in asked]} | columns | {
        "prompts": [p.question if isinstance(p.question, str) else list(p.question)
                    for p in asked],
        "completions": [
            [{"role": "assistant", "content": a.text}] if a.prompt.is_chat else a.text
            for a in answers
        ],
        "completion_ids": [list(a.token_ids) for a in answers],
    }  # fmt: skip


def _accepted(function: Callable[..., Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments that a function takes: all with **kwargs, otherwise those it names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature gets everything
        return known
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return known
    named = {p.name for p in parameters}
    return {name: values for name, values in known.items() if name in named}
