"""Classes for TRL's `environment_factory`, unchanged.

`reset(**row)` begins an episode and may return a text for the model; every other public method is a
tool; `get_reward()`, sync or async, scores the episode, which ends with the first turn that calls
no tool. A class without it scores by its attribute `reward`, which the reward functions of most of
TRL's examples read.

Classes that draw their own task do it with Python's or NumPy's global generators. They are seeded
here while `reset` runs, so that all episodes of a group get the same task.
"""

from __future__ import annotations

import inspect
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from scalerl.environments.adapters.base import Adapter, accepted, row_of, seed_of
from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.environments.tools import ToolBox
from scalerl.errors import InputError
from scalerl.tasks.task import Prompt

#: Methods that are no tools. (`close` is not TRL's, and not for the model either.)
_RESERVED = ("reset", "get_reward", "close")
#: Held while the global generators are seeded.
_SEEDING = threading.Lock()
#: Seconds that a `reset` waits for another one that hangs; it then runs without a seed.
_SEEDING_WAIT = 5.0


class TrlEnvironment(Adapter):
    """An object with `reset(**row)`, `get_reward()` or `reward`, and tools as public methods."""

    def __init__(self, thing: Any, correct_from: float = 1.0) -> None:
        super().__init__(thing, correct_from)
        # One thread for all of it: tools and reset share the object.
        self.tools = ToolBox(_tools(thing), self.thread)
        if not callable(getattr(thing, "get_reward", None)) and not _sets_reward(thing):
            raise InputError(
                f"{type(thing).__name__} has no get_reward: define it, or set self.reward, to "
                "score an episode"
            )

    async def reset(self, prompt: Prompt, seed: int) -> Observation:
        row = accepted(self.thing.reset, row_of(prompt, seed))
        if inspect.iscoroutinefunction(self.thing.reset):
            found = await self.thing.reset(**row)
        else:
            begin = partial(self.thing.reset, **row)
            found = await self.call(_with_seed, seed_of(prompt, seed), begin)
        shown = Observation() if found is None else self.observed(found)
        return Observation(shown.messages, tools=self.tools.schemas)

    async def step(self, action: Action) -> Observation | Outcome:
        if not action.tool_calls:
            return await self._scored()
        messages, failed = await self.tools.run(action.tool_calls)
        return Observation(messages, tool_failures=failed)

    async def cut_off(self) -> Outcome | None:
        return await self._scored()

    async def _scored(self) -> Outcome:
        own = getattr(self.thing, "get_reward", None)
        return self.ended(
            getattr(self.thing, "reward", None) if own is None else await self.call(own)
        )


def _sets_reward(thing: Any) -> bool:
    """Whether a class names an attribute `reward`, which may not exist before `reset`."""
    functions = inspect.getmembers(type(thing), inspect.isfunction)
    return any("reward" in function.__code__.co_names for _, function in functions)


def _tools(thing: Any) -> list[Callable[..., Any]]:
    # On the class: looking at the object would evaluate its properties.
    names = [n for n, _ in inspect.getmembers(type(thing), inspect.isfunction)]
    return [getattr(thing, n) for n in names if n not in _RESERVED and not n.startswith("_")]


def _with_seed(seed: int, function: Callable[[], Any]) -> Any:
    """The result of a function that draws from the global generators, which keep their state."""
    held = _SEEDING.acquire(timeout=_SEEDING_WAIT)
    if not held:
        return function()
    numbers = sys.modules.get("numpy")
    kept = random.getstate(), numbers and numbers.random.get_state()
    try:
        random.seed(seed)
        if numbers:
            numbers.random.seed(seed)
        return function()
    finally:
        random.setstate(kept[0])
        if numbers:
            numbers.random.set_state(kept[1])
        _SEEDING.release()
