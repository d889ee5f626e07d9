"""The registry of tasks, and the task of a recipe.

The factory of a task is called as `factory(dataset=…, rules=…, **options)`. A name is one of

- `running-sums`, `carry-sums`, `math`, `code`, `judge`: registered names;
- `reasoning-gym:leg_counting`, `function:pkg.mod:fn`, `environment:pkg.mod:MyEnvironment`: a
  registered name with an argument;
- `pkg.mod:MyTask`: the import path of your own factory;
- several of them joined by `+`: a mixture.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scalerl.errors import InputError
from scalerl.registry import Registry
from scalerl.tasks.code import CodeTask
from scalerl.tasks.functions import FunctionTask
from scalerl.tasks.judge import JudgeTask
from scalerl.tasks.math import MathTask
from scalerl.tasks.mixture import Mixture
from scalerl.tasks.reasoning_gym import ReasoningGym
from scalerl.tasks.running_sums import CARRY_NAME, NAME, CarrySums, RunningSums
from scalerl.tasks.task import DEFAULT_RULES, Rules, Task

if TYPE_CHECKING:
    from scalerl.recipe import Recipe
    from scalerl.recipe.sections_algorithm import TaskSection

TASKS: Registry[Callable[..., Task]] = Registry("task")
TASKS.register(NAME)(RunningSums)
TASKS.register(CARRY_NAME)(CarrySums)
TASKS.register("math")(MathTask)
TASKS.register("code")(CodeTask)
TASKS.register("reasoning-gym")(ReasoningGym)
TASKS.register("function")(FunctionTask)
TASKS.register("judge")(JudgeTask)
#: Tasks that are imported when they are named: environments import this package, not the reverse.
LATER = {"environment": "scalerl.environments.task:EnvironmentTask"}
#: Environments that have a highest possible pass rate by construction.
GAMES = ("environment:tiny-tools", "environment:tiny-guess")
#: Registered names that take an argument after a colon.
PREFIXES = ("reasoning-gym", "function", *LATER)


def make_task(
    name: str,
    dataset: str = "",
    *,
    rules: Rules = DEFAULT_RULES,
    weights: Sequence[float] = (),
    options: Mapping[str, Any] | None = None,
) -> Task:
    """The task of this name, or a mixture. Options in a table named after a task go to that task
    only; all others go to every task.

    >>> make_task("running-sums", options={"items_max": 8}).name
    'running-sums'
    """
    names = [part.strip() for part in name.split("+")]
    options = dict(options or {})
    own = {n: options.pop(n) for n in names if isinstance(options.get(n), Mapping)}
    tasks = [_make(n, dataset, rules, {**options, **own.get(n, {})}) for n in names]
    return tasks[0] if len(tasks) == 1 else Mixture(tasks, weights)


def task_of(section: TaskSection) -> Task:
    """The task that a recipe's [task] section describes."""
    rules = Rules(
        section.reward_correct, section.reward_wrong, section.think_open, section.think_close
    )
    return make_task(
        section.name,
        section.dataset,
        rules=rules,
        weights=section.weights,
        options=section.options,
    )


def recipe_ceiling(recipe: Recipe) -> float | None:
    """The highest possible pass rate on the validation prompts of a recipe, if its task has one by
    construction: `running-sums` and `carry-sums` with a thinking budget, and the games. None
    otherwise."""
    limits: tuple[int, ...] | None = None
    # By name: making another task could import code of the user.
    if recipe.task.name in (NAME, CARRY_NAME):
        limits = recipe.length.thinking_budgets
    elif recipe.task.name in GAMES and not recipe.task.dataset:
        limits = (recipe.environment.turns,)
    if limits is None:
        return None
    try:
        task: Any = task_of(recipe.task)
        found: float = task.ceiling(task.validation_prompts(recipe.validation.prompts), *limits)
    except InputError:  # an old recipe may have options that the task no longer has
        return None
    return found


def _make(name: str, dataset: str, rules: Rules, options: Mapping[str, Any]) -> Task:
    kind, _, about = name.partition(":")
    if kind in PREFIXES and not about:
        raise InputError(f"task.name = {name!r} is incomplete: write {kind}:NAME")
    factory = TASKS[LATER.get(kind, kind) if kind in PREFIXES else name]
    arguments: dict[str, Any] = {"dataset": dataset, **options, "rules": rules}
    if kind in PREFIXES:
        arguments["about"] = about
    known = inspect.signature(factory)
    try:
        known.bind(**arguments)
    except TypeError as error:
        takes = ", ".join(k for k in known.parameters if k not in ("rules", "about"))
        raise InputError(f"task.options do not fit {name!r} ({error}): it takes {takes}") from None
    return factory(**arguments)
