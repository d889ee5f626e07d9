"""The tasks `environment:pkg.mod:MyEnvironment`: episodes of several turns.

The name is the import path of a class or of a factory, or one that is registered in `ENVIRONMENTS`.
What it makes is an `Environment` of ours, or an object of another library with the same purpose,
which is adapted by its shape (`scalerl.environments.adapters`). A function of (prompt, client) is a
driver, which calls the model itself (`scalerl.environments.driven`).

Prompts come from `task.dataset`; without one, from the class's own `prompts()`; without that,
`prompt_count` prompts are made that differ in their seed only, for environments that draw their own
tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from scalerl.environments.adapters.aviary import AviaryEnvironment
from scalerl.environments.adapters.base import Adapter
from scalerl.environments.adapters.openenv import OpenenvEnvironment, openenv
from scalerl.environments.adapters.plain import PlainEnvironment
from scalerl.environments.adapters.skyrl import SkyrlEnvironment, skyrl_gym
from scalerl.environments.adapters.textarena import TextarenaEnvironment, textarena
from scalerl.environments.adapters.trl import TrlEnvironment
from scalerl.environments.driven import DrivenEnvironment, is_driver
from scalerl.environments.games import guess, lookups
from scalerl.environments.interface import Environment
from scalerl.environments.replies import CheckedEnvironment
from scalerl.errors import InputError
from scalerl.registry import Registry
from scalerl.tasks.data import Downstream, RowsTask
from scalerl.tasks.task import DEFAULT_RULES, Prompt, Rules, make_prompt, named
from scalerl.text import one_line

#: Classes and factories of environments by name. A factory is called with `settings`, and with
#: those of `prompt`, `extras` and `env_config` that it takes.
ENVIRONMENTS: Registry[Callable[..., Any]] = Registry("environment")
ENVIRONMENTS.register("textarena")(textarena)
ENVIRONMENTS.register("skyrl-gym")(skyrl_gym)
ENVIRONMENTS.register("openenv")(openenv)
ENVIRONMENTS.register(lookups.NAME)(lookups.Lookups)
ENVIRONMENTS.register(guess.NAME)(guess.GuessTheNumber)
#: Adapters by the package that a class, or a class that it extends, comes from.
BY_PACKAGE: dict[str, type[Adapter]] = {
    "aviary": AviaryEnvironment,
    "openenv": OpenenvEnvironment,
    "skyrl_gym": SkyrlEnvironment,
    "textarena": TextarenaEnvironment,
}


class EnvironmentTask(RowsTask):
    """A task with episodes that are played in an environment, one object each.

    settings      keyword arguments of the class or factory
    correct_from  sum of rewards from which an episode counts as correct, where the environment
                  gives rewards only
    prompt_count  number of prompts, for an environment that has none of its own and no dataset
    instruction   question of these prompts; the environment's own text follows it
    """

    has_environment = True

    def __init__(
        self,
        about: str,
        dataset: str = "",
        *,
        rules: Rules = DEFAULT_RULES,
        held_out_share: float = 0.05,
        split: str = "train",
        downstream: Downstream | None = None,
        settings: Mapping[str, Any] | None = None,
        correct_from: float = 1.0,
        prompt_count: int = 1000,
        instruction: str = "Begin.",
    ) -> None:
        self._path = about
        self._factory = ENVIRONMENTS[about]
        self._settings = dict(settings or {})
        self._correct_from = correct_from
        self._prompt_count = prompt_count
        self._instruction = instruction
        super().__init__(
            f"environment:{about}",
            dataset,
            rules=rules,
            held_out_share=held_out_share,
            split=split,
            downstream=downstream,
            needs_answer=False,
        )
        self._try_one()

    def new_environment(self, prompt: Prompt) -> Environment:
        known = {"prompt": prompt, "extras": dict(prompt.columns), "env_config": {}}
        wanted = {k: v for k, v in known.items() if _names(self._factory, k)}
        try:
            if is_driver(self._factory):
                inspect.signature(self._factory).bind(prompt=prompt, client=None, **self._settings)
                made: Any = partial(self._factory, **self._settings)
            else:
                made = self._factory(**{**wanted, **self._settings})
            adapted = adapt(made, self._correct_from)
        except InputError as error:
            raise InputError(f"environment {self._path}: {error}") from None
        except (Exception, SystemExit) as error:  # a user's class must not end the run
            raise InputError(
                f"environment {self._path} cannot be made: {one_line(named(error))}"
            ) from None
        return CheckedEnvironment(adapted, self._path)

    def ceiling(self, prompts: Sequence[Prompt], turns: int) -> float:
        """The highest possible pass rate on these prompts, of an environment that knows it."""
        found: float = self._factory.ceiling(prompts, turns)  # type: ignore[attr-defined]
        return found

    def score(self, prompt: Prompt, completion: str) -> tuple[bool | None, str]:
        return None, "an environment scores its episodes itself"

    def prompts_without_dataset(self) -> list[Prompt]:
        own = getattr(self._factory, "prompts", None)
        if own is None:
            return [
                make_prompt(
                    self.name,
                    self._instruction,
                    None,
                    {"seed": i},
                    content=f"{self.name} seed {i}",
                )
                for i in range(self._prompt_count)
            ]
        try:
            rows = own()
        except TypeError:
            raise InputError(
                f"{self._path}.prompts needs an object: make it a classmethod or staticmethod"
            ) from None
        if isinstance(rows, str) or not isinstance(rows, Iterable):
            raise InputError(f"{self._path}.prompts returned {type(rows).__name__}, not a list")
        given = list(rows)
        if given and all(isinstance(row, Prompt) for row in given):
            return [replace(row, task=self.name) for row in given]
        return self.prompts_from(map(self._row, given), f"{self._path}.prompts()")

    def _row(self, row: Any) -> Mapping[str, Any]:
        if isinstance(row, Mapping):
            return row
        if isinstance(row, str):
            return {"prompt": row}
        raise InputError(f"{self._path}.prompts returned {type(row).__name__}s, not rows or texts")

    def _try_one(self) -> None:
        """Make one environment, so that a class that cannot be made is known before the run."""
        trial = self.new_environment(self._prompts[0])
        # In a thread: there may be an event loop in this one, as in notebooks.
        closing = threading.Thread(target=_close, args=(trial,), daemon=True)
        closing.start()
        closing.join(timeout=10.0)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle a class by its import path if it has one."""
        state = dict(self.__dict__)
        if ":" in self._path:
            del state["_factory"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_factory" not in state:
            self._factory = ENVIRONMENTS[self._path]


def adapt(thing: Any, correct_from: float = 1.0) -> Environment:
    """An object as an environment, by its shape; raises InputError if it has none that is known."""
    if isinstance(thing, Adapter):
        thing.correct_from = correct_from
    if isinstance(thing, Environment):
        return thing
    packages = [kind.__module__.partition(".")[0] for kind in type(thing).__mro__]
    for package in packages:
        if package in BY_PACKAGE:
            return BY_PACKAGE[package](thing, correct_from)
    names = ("init", "reset", "step", "get_observation", "get_reward")
    has = {n for n in names if callable(getattr(thing, n, 0))}
    if {"init", "step"} <= has:
        return SkyrlEnvironment(thing, correct_from)
    if {"get_observation", "step"} <= has:
        return TextarenaEnvironment(thing, correct_from)
    if is_driver(thing):
        return DrivenEnvironment(thing, correct_from)
    # An environment for TRL may have a tool `step`.
    if "step" in has and "get_reward" not in has:
        return PlainEnvironment(thing, correct_from)
    if "reset" in has:
        return TrlEnvironment(thing, correct_from)
    raise InputError(
        f"a {type(thing).__name__} is not an environment: it has neither step (text in, text out) "
        "nor reset and tools, nor rollout(prompt, client)"
    )


def _names(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a function has a parameter of this name."""
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _close(environment: Environment) -> None:
    with suppress(Exception, SystemExit):  # it was never reset: it need not be able to close
        asyncio.run(environment.close())
