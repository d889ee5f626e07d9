"""The members of a study: the run of each, its progress, and the command that continues it.

Everything is read from the run's own directory, so a member may have been run on any machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scalerl.errors import InputError
from scalerl.recipe import Recipe, diff
from scalerl.recipe.diff import with_date_of
from scalerl.runs.commands import path_word
from scalerl.runs.compute import Compute, budget_use
from scalerl.runs.lines import EvalLine, EventLine, StepLine
from scalerl.runs.lock import is_locked
from scalerl.runs.store import RunStore
from scalerl.study.models import relocated

MemberStatus = Literal[
    "waiting", "running", "begun", "failed", "paused", "screened", "unstable", "done"
]
#: What each status means, for help and docs.
STATUS = {
    "waiting": "not begun",
    "running": "being written just now",
    "begun": "stopped or killed before its end; the next start continues it",
    "failed": "ended by an error; the next start tries again",
    "paused": "paused by a race, which may continue it",
    "screened": "has finished its screening, but not its budget",
    "unstable": "became unstable in its screening, and is not continued",
    "done": "at the end of its budget",
}
#: Recipe sections in which a run that was made elsewhere may differ from its member: they change
#: where it ran, how often it was saved and its budget, not its curve.
ELSEWHERE = ("placement", "checkpoint", "budget")
LIMITS = ("steps", "gpu_hours", "minutes")
#: Validations that every member of a race gets first, so that the law can be fitted.
FIRST_VALIDATIONS = 6
#: Number of chunks of a budget, if it has that many validations. Few, because every further look at
#: the data adds a chance of a wrong verdict, and every start of a run costs seconds.
CHUNKS = 4
#: Name of a limit of the budget → its value.
Limits = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Member:
    """One run of a study."""

    name: str
    variant: str
    seed: int
    #: The variant's recipe with this seed and the whole budget.
    recipe: Recipe
    #: File of the variant's recipe.
    file: Path
    #: Directory of the run.
    path: Path

    def command(self, limits: Limits, program: tuple[str, ...] = ("scalerl",)) -> list[str]:
        """The `scalerl train` command up to these limits: from the start, or with --resume."""
        changes = [f"budget.{key}={value:g}" for key, value in limits.items()]
        if (self.path / "recipe.toml").exists():
            return [*program, "train", "--resume", path_word(self.path), *self._moved(), *changes]
        words = [path_word(self.file), f"seed={self.seed}", *changes]
        return [*program, "train", *words, "--out", path_word(self.path)]

    def _moved(self) -> list[str]:
        """The model of the run as KEY=VALUE, where the study was moved since the run's start."""
        used, _ = RunStore(self.path, resume=True).read_used_recipe()
        model = self.recipe.model.path
        if used is None or used.get("model", {}).get("path", model) == model:
            return []
        return [f"model.path={model}"]

    def line(self, limits: Limits) -> str:
        """The command for a shell."""
        return shlex.join(self.command(limits))


def limits_of(recipe: Recipe, share: float = 1.0) -> dict[str, float]:
    """The limits of a recipe's budget, or a share of them: its steps if they are set, else all its
    limits. A share of steps is rounded up to the next validation, so that its last point is also a
    point of the whole run.

    >>> tiny = Recipe.load("scalerl", "tiny")
    >>> limits_of(tiny), limits_of(tiny, 0.25)
    ({'steps': 300}, {'steps': 80})
    """
    whole = {k: v for k in LIMITS if (v := getattr(recipe.budget, k)) is not None}
    if "steps" in whole:
        whole = {"steps": whole["steps"]}
    if share >= 1:
        return whole
    found = {k: v * share for k, v in whole.items()}
    if "steps" in found:
        every = recipe.validation.every
        # Rounded before it is rounded up: 0.07 × 100 is above 7 in floating point.
        found["steps"] = min(-(-int(whole["steps"] * share + 0.5) // every) * every, whole["steps"])
    return found


def portions(recipe: Recipe, screen: float) -> tuple[float, float]:
    """Shares of the budget that a member gets first, and at a time after that.

    >>> tiny = Recipe.load("scalerl", "tiny")  # 300 steps, a validation every 10
    >>> [round(300 * share) for share in portions(tiny, screen=0.25)]
    [60, 80]
    """
    steps, every = recipe.budget.steps, recipe.validation.every
    if steps is None:
        return screen, 1.0 / CHUNKS
    chunk = every * max(round(steps / every / CHUNKS), 1)
    return min(FIRST_VALIDATIONS * every / steps, 1.0), min(chunk / steps, 1.0)


def next_limits(member: Member, share: float, screen: float) -> Limits:
    """The limits of the next chunk of a member that has spent this share. Chunks end at fixed
    shares, wherever a run was stopped. Less than half a chunk at the end goes with the last."""
    first, chunk = portions(member.recipe, screen)
    if share < first - 1e-9:
        return limits_of(member.recipe, first)
    # 1e-6: a chunk that ended at its limit counts as whole in floating point.
    behind = int((share - first) / chunk + 1e-6)
    goal = first + (behind + 1) * chunk
    return limits_of(member.recipe, goal if 1.0 - goal > chunk / 2.0 - 1e-9 else 1.0)


def budget_weight(recipe: Recipe) -> float:
    """The size of a member's budget relative to others: in rollouts, or else in hours."""
    budget = recipe.budget
    if budget.steps is not None:
        return float(budget.steps * recipe.batch.completions)
    return float(budget.gpu_hours or budget.minutes or 1.0)


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """Progress of a run, read from its record."""

    locked: bool = False
    step: int = 0
    compute: Compute = field(default_factory=Compute)
    pass_rate: float | None = None
    #: Reason of its end, if the last event is `end`.
    ended: str | None = None
    #: Why it failed, if the last event is `failed`.
    failed: str | None = None
    #: Limits of the budget that it was last run with; None before it has started.
    limits: Mapping[str, float] | None = None

    @property
    def begun(self) -> bool:
        return self.limits is not None

    def reached(self, limits: Limits) -> bool:
        """Whether the run ended at or beyond these limits. A run that ended for another reason than
        its budget (its prompts ran out, a rule stopped it) has nothing left to do."""
        if self.ended is None or self.limits is None or self.ended.startswith("interrupted"):
            return False
        if not self.ended.startswith("budget of"):
            return True
        # 1e-9: limits of a share are computed in floating point.
        return all(
            self.limits.get(key, value) >= value * (1 - 1e-9) for key, value in limits.items()
        )

    def share(self, recipe: Recipe) -> float:
        """Share of the member's whole budget that is spent, 0 to 1."""
        if self.reached(limits_of(recipe)):
            return 1.0
        use = budget_use(recipe.budget, self.compute)
        return 0.0 if use is None else min(use.share, 1.0)


def read_progress(member: Member) -> MemberProgress:
    """The progress of a member, from the ends of its run's files only."""
    path = member.path
    if not (path / "recipe.toml").exists():
        return MemberProgress(locked=is_locked(path))
    store = RunStore(path, resume=True)
    step, last, scored = store.last(StepLine), store.last(EventLine), store.last(EvalLine)
    used, _ = store.read_used_recipe()
    budget: Any = (used or {}).get("budget", {})
    newest = step or scored
    return MemberProgress(
        locked=is_locked(path),
        step=0 if step is None else step.step,
        compute=Compute() if newest is None else newest.compute,
        pass_rate=None if scored is None else scored.pass_rate,
        ended=last.reason if last is not None and last.event == "end" else None,
        failed=last.why if last is not None and last.event == "failed" else None,
        limits={k: float(v) for k in LIMITS if (v := budget.get(k)) is not None},
    )


def check_same(member: Member) -> None:
    """Raise InputError if the member's directory holds a run of another recipe."""
    if not (member.path / "recipe.toml").exists():
        return
    used, _ = RunStore(member.path, resume=True).read_used_recipe()
    if used is None:
        return
    home = member.path.parent.parent
    theirs = relocated(Recipe.from_dict(used), home)
    other = [
        d
        for d in diff(with_date_of(theirs, member.recipe), theirs)
        if d.path.partition(".")[0] not in ELSEWHERE
    ]
    if other:
        first = other[0]
        raise InputError(
            f"{member.path} holds a run of another recipe ({first.path} is {first.b!r}, and not "
            f"{first.a!r}): move it away"
        )
