"""How long a study will take, from the time that similar runs took on this machine.

A rate is the minutes, tokens and FLOPs that a rollout took in a recorded run. It is taken, in this
order, from the member's own record, from members of its variant, from any member, from a trial run
of a few steps, and from runs next to the study's directory; the last two must train the same model
by the same means. Nothing is guessed: without any of them, hours are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.store import RunStore
from scalerl.study.members import Member, MemberProgress

N = TypeVar("N", int, float)

#: Steps that a record must have before it tells a rate: the first ones wait for the start.
MIN_STEPS = 3
#: Where a rate is from, if from the study itself.
OWN = "members of this study"
#: Runs next to the study that are read, at most.
MAX_NEARBY = 200


@dataclass(frozen=True, slots=True)
class Rate:
    """Cost of a rollout in training, and of an answer in validation."""

    minutes: float
    device_hours: float
    tokens: float
    flops: float
    answer_minutes: float
    #: Which runs it is from.
    source: str


@dataclass(frozen=True, slots=True)
class Expected:
    """Compute and time that are left."""

    steps: int | None
    rollouts: int | None
    device_hours: float | None
    tokens: float | None
    flops: float | None
    #: On the clock, with so many members at once; None: not known yet.
    hours: float | None
    jobs: int
    source: str

    def to_dict(self) -> dict[str, Any]:
        kinds = ("steps", "rollouts", "device_hours", "tokens", "flops")
        return {kind: getattr(self, kind) for kind in kinds} | {"rate": self.source}


def rate_of(path: Path, recipe: Recipe, name: str) -> Rate | None:
    """From a run's last step: the clock of training and of validation go by their device-time."""
    store = RunStore(path, resume=True) if path.is_dir() else None
    last = None if store is None else store.last(StepLine)
    if store is None or last is None or last.step < MIN_STEPS or not last.compute.samples:
        return None
    c, ledger = last.compute, last.ledger
    whole = ledger.device_seconds + ledger.validation_seconds
    validating = ledger.validation_seconds / whole if whole > 0 else 0.0
    # A validation after the last step is not in the clock of that step.
    asked = answers(recipe) * max(sum(e.step < last.step for e in store.read(EvalLine)), 1)
    return Rate(
        c.minutes * (1 - validating) / c.samples,
        c.device_hours / c.samples,
        c.generated_tokens / c.samples,
        c.flops / c.samples,
        c.minutes * validating / asked,
        name,
    )


def answers(recipe: Recipe) -> int:
    """Answers of one validation, at all its temperatures; downstream sets left out."""
    v = recipe.validation
    return v.prompts * (v.k + sum(v.k if heat else 1 for heat in v.also_temperatures))


def _mean(rates: Sequence[Rate], source: str) -> Rate:
    numbers = [name for name in Rate.__slots__ if name != "source"]
    means = {name: fmean(float(getattr(rate, name)) for rate in rates) for name in numbers}
    return Rate(**means, source=source)


def rates(
    members: Sequence[Member], near: Path, measured: Sequence[tuple[Recipe, Rate]] = ()
) -> dict[str, Rate]:
    """The rate of every member for which there is one. `measured` are rates of short trials, for a
    study of which no member has run."""
    own = {m.name: rate for m in members if (rate := rate_of(m.path, m.recipe, OWN)) is not None}
    variants: dict[str, list[Rate]] = {}
    for m in members:
        if m.name in own:
            variants.setdefault(m.variant, []).append(own[m.name])
    anyone = _mean(list(own.values()), OWN) if own else None
    found: dict[str, Rate] = {}
    nearby = list(_nearby(near)) if anyone is None else []
    for m in members:
        if m.name in own:
            found[m.name] = own[m.name]
        elif m.variant in variants:
            found[m.name] = _mean(variants[m.variant], OWN)
        elif anyone is not None:
            found[m.name] = anyone
        else:
            same = [rate for recipe, rate in measured if alike(m.recipe, recipe)]
            same = same or [rate for recipe, rate in nearby if alike(m.recipe, recipe)]
            if same:
                found[m.name] = _mean(same, ", ".join(sorted({r.source for r in same})[:3]))
    return found


def alike(a: Recipe, b: Recipe) -> bool:
    """Whether a rollout takes both alike: the same model, adapter, lengths, precision and
    devices."""
    same = ("model", "adapter", "length", "placement", "precision")
    # The date in the prompts of a run says nothing about how long a rollout takes.
    a, b = (recipe.replace({"model.chat_date": None}) for recipe in (a, b))
    return all(getattr(a, section) == getattr(b, section) for section in same)


def _nearby(near: Path) -> Iterable[tuple[Recipe, Rate]]:
    """Runs in the directory that the study's is in, and members of studies there."""
    parent = near.resolve().parent
    patterns = ("*/steps.jsonl", "*/runs/*/steps.jsonl")
    paths = [path.parent for pattern in patterns for path in sorted(parent.glob(pattern))]
    for path in paths[:MAX_NEARBY]:
        try:
            recipe = Recipe.load(path / "recipe.toml")
        except InputError:
            continue
        rate = rate_of(path, recipe, str(path.relative_to(parent)))
        if rate is not None:
            yield recipe, rate


def expected(
    members: Sequence[Member],
    progress: dict[str, MemberProgress],
    near: Path,
    jobs: int,
    measured: Sequence[tuple[Recipe, Rate]] = (),
) -> Expected:
    """What the members that are not at their end still need."""
    known = rates(members, near, measured)
    left = [(m, 1.0 - progress[m.name].share(m.recipe)) for m in members]
    left = [(m, share) for m, share in left if share > 0]
    budgets = [(m.recipe.budget, share) for m, share in left]
    steps = [None if b.steps is None else round(b.steps * share) for b, share in budgets]
    rollouts = [
        None if s is None else s * m.recipe.batch.completions
        for (m, _), s in zip(left, steps, strict=True)
    ]
    taken = [known[m.name] for m, _ in left if m.name in known]
    if None in rollouts or len(taken) < len(left):
        # Without a measured rate of each: what the budgets themselves say.
        hours = [
            None if b.steps is not None or b.gpu_hours is None else b.gpu_hours * share
            for b, share in budgets
        ]
        why = "unknown until a run has made a few steps; --measure-steps 3 measures it"
        return Expected(_sum(steps), _sum(rollouts), _sum(hours), None, None, None, jobs, why)
    samples = [r or 0 for r in rollouts]

    def total(field: str) -> float:
        return sum(float(getattr(r, field)) * n for r, n in zip(taken, samples, strict=True))

    validating = sum(
        rate.answer_minutes * answers(m.recipe) * steps_left / m.recipe.validation.every
        for rate, (m, _), steps_left in zip(taken, left, steps, strict=True)
        if steps_left is not None
    )
    # Fewer members than jobs leave jobs idle.
    on_the_clock = (total("minutes") + validating) / 60 / max(min(jobs, len(left)), 1)
    source = ", ".join(dict.fromkeys(rate.source for rate in taken)) or "all are done"
    return Expected(
        _sum(steps), sum(samples), total("device_hours"), total("tokens"), total("flops"),
        on_the_clock, jobs, source,
    )  # fmt: skip


def _sum(values: Sequence[N | None]) -> N | None:
    """The sum; None where one of them is not known."""
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None
