"""plan: what a run would cost on some devices, and how to place it.

>>> from scalerl import plan
>>> p = plan(["scalerl"], accelerator="h100-sxm", devices=16, days=7, mean_length=6000,
...          mfu="0.2-0.4", decode="0.4-0.7", steps=12, ratios=1)
>>> p.best.placement.devices, p.best.memory.problem
(16, None)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.planner.accelerators import Accelerator
from scalerl.planner.answer import PlannedStep, Slowness, planned_step
from scalerl.planner.lengths import AnswerLengths
from scalerl.planner.model_shape import ModelShape
from scalerl.planner.normal import Interval
from scalerl.planner.outlook import Outlook, outlook_of
from scalerl.planner.pilot import PilotPlan, ValidationDesign, plan_pilot
from scalerl.planner.placements import (
    SPLITS,
    STALENESS,
    MemoryNeed,
    Placement,
    check_fits,
    memory_need,
    quick_estimate,
    splits,
    usable_degrees,
)
from scalerl.planner.roofline import PUBLIC_DECODE, PUBLIC_MFU, Utilisation, roofline
from scalerl.planner.world import EnvironmentModel, PassRates, PlannedWorld
from scalerl.recipe import Recipe

#: Draws of the rates.
DRAWS = 2000
#: Optimiser steps of a simulation, besides the first k.
STEPS = 48
#: Ratios of the rates at which a placement is simulated.
RATIOS = 3
#: Coefficient of variation of lengths, share of it between prompts, where neither is given: of
#: public measurements (Qwen3-8B on mathematics and others) these are the middle.
SPREAD = 0.6
ALIKE = 0.7
#: Share of groups with variance where it is not given: about that of the paper's runs.
KEPT = 0.7
#: A schedule with a smaller k is preferred if its step is no longer than this, over the fastest.
AS_FAST = 1.02


@dataclass(frozen=True)
class PlanInputs:
    """What a plan assumes, with the source of each."""

    accelerator: Accelerator
    shape: ModelShape
    devices: int
    lengths: AnswerLengths
    #: Interval of the mean length, in tokens.
    mean_length: Interval
    use: Utilisation
    prompt_tokens: int
    kept: float
    #: Where rates and lengths are from, one line each.
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Placements of a run with their predicted steps, the fastest that fits first."""

    recipe: Recipe
    inputs: PlanInputs
    steps: tuple[PlannedStep, ...]
    best: PlannedStep
    slowness: Slowness
    #: Why splits do not fit, by split.
    misfits: dict[str, str]
    #: Seconds of one validation.
    validation_seconds: float
    days: float | None = None
    #: Price of a device-hour.
    price: float | None = None
    #: What the curve says; None without one.
    outlook: Outlook | None = None
    pilot: PilotPlan | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def seconds_per_step(self) -> Any:
        """Draws of the seconds of a step of the best placement, validations included."""
        every = self.recipe.validation.every
        scale = self.best.seconds / self.best.interval()[1]
        return self.best.seconds + self.validation_seconds / every * scale

    def steps_in(self, days: float) -> tuple[float, float, float]:
        """Optimiser steps in some days: lower end, median and upper end of 90 %."""
        found = np.quantile(days * 86400 / self.seconds_per_step, [0.05, 0.5, 0.95])
        return float(found[0]), float(found[1]), float(found[2])

    def placed_recipe(self) -> Recipe:
        """The recipe with the placement and schedule of the best plan."""
        return self.recipe.replace(self.best.placement.changes())

    def to_dict(self) -> dict[str, Any]:
        i = self.inputs
        found: dict[str, Any] = {
            "recipe": self.recipe.name,
            "model": {"name": i.shape.name, "parameters": i.shape.parameters},
            "accelerator": i.accelerator.name,
            "devices": i.devices,
            "assumed": {
                "mean_length": [i.mean_length.low, i.mean_length.high],
                "length_spread": i.lengths.spread,
                "length_alike": i.lengths.alike,
                "length_limit": i.lengths.limit,
                "mfu": [i.use.mfu.low, i.use.mfu.high],
                "decode_use": [i.use.decode.low, i.use.decode.high],
                "prompt_tokens": i.prompt_tokens,
                "kept": i.kept,
                "sources": list(i.sources),
            },
            "best": self.best.to_dict(),
            "placements": [step.to_dict() for step in self.steps],
            "misfits": self.misfits,
            "validation_seconds": self.validation_seconds,
            "days": self.days,
            "price": self.price,
            "notes": list(self.notes),
        }
        if self.days is not None:
            low, mid, high = self.steps_in(self.days)
            found["steps_in_days"] = {"median": mid, "interval": [low, high]}
        for name in ("outlook", "pilot"):
            value = getattr(self, name)
            found[name] = None if value is None else value.to_dict()
        return found

    def __str__(self) -> str:
        from scalerl.planner.text import plan_text

        return plan_text(self)

    __repr__ = __str__


def plan(
    recipe: Any, *, accelerator: str | Accelerator, devices: int | None = None,
    mean_length: float | str | Interval | None = None, spread: float = SPREAD,
    alike: float = ALIKE, mfu: float | str | Interval | None = None,
    decode: float | str | Interval | None = None, prompt_tokens: int | None = None,
    kept: float | None = None, days: float | None = None, budget: float | None = None,
    price: float | None = None, environment: EnvironmentModel | None = None,
    check_seconds: float = 0.0, growth: float = 0.0, degrees: Sequence[int] | None = None,
    staleness: Sequence[int] | None = None, accelerators: Path | None = None,
    curve: Any = None, per_step: float | None = None, target: Sequence[float] = (),
    pilot: bool = False, like: str | Path | None = None, steps: int = STEPS, ratios: int = RATIOS, seed: int = 0,
) -> Plan:  # fmt: skip
    """Plan a run: simulate placements of `devices` accelerators and choose one.

    recipe       a Recipe, a preset's name, a path, or a list of them with overrides
    accelerator  a name of the table (`scalerl plan --list`), or an Accelerator
    devices      how many there are; by default the recipe's own placement is planned as it is
    mean_length  tokens of an answer, or an interval "4000-8000". There is no default
    mfu, decode  shares of the peak that trainer and generators use, such as "0.1-0.4", or "public"
    kept         share of groups that are neither all right nor all wrong
    days, budget, price   how long, or how much money at this price of a device-hour
    curve        a Fit, or (A, B, C_mid, R_0), to say what pass rate that reaches; `per_step` is
                 the curve's compute of one optimiser step, where it does not count steps
    """
    from scalerl.recipe.load import recipe_from

    recipe = recipe_from(recipe)
    device = (
        accelerator
        if isinstance(accelerator, Accelerator)
        else Accelerator.named(accelerator, accelerators)
    )
    shape = ModelShape.named(_model(recipe))
    inputs = _inputs(recipe, device, shape, devices, mean_length, spread, alike, mfu, decode,
                     prompt_tokens, kept, growth)  # fmt: skip
    days = _days(days, budget, price, inputs.devices)
    own = None
    if devices is None:
        where = recipe.placement
        own = Placement(where.generators, where.trainers, recipe.schedule.name, recipe.schedule.k)

    def search(recipe: Recipe) -> Plan:
        search = Search(recipe, inputs, environment, check_seconds, steps, ratios, seed)
        found = search.run(own, degrees or usable_degrees(), staleness)
        return Plan(recipe, inputs, *found, days=days, price=price)

    plan = _with_room(search, recipe)
    if curve is not None or target:
        plan = replace(plan, outlook=outlook_of(plan, curve, per_step, target))
    return replace(plan, pilot=_pilot(plan)) if pilot else plan


def _pilot(plan: Plan) -> PilotPlan:
    """Pilots of the plan's curve with the recipe's validations, four times as many, and a quarter
    of the prompts."""
    v = plan.recipe.validation
    designs = [ValidationDesign(v.every, v.prompts, v.k)]
    designs.append(replace(designs[0], every=max(v.every // 4, 1)))
    designs.append(replace(designs[0], prompts=max(v.prompts // 4, 1)))
    return plan_pilot(plan.outlook.curve, designs)


def _with_room(search: Callable[[Recipe], Plan], recipe: Recipe) -> Plan:
    """The plan; with recomputed activations if it fits with no others."""
    try:
        return search(recipe)
    except InputError:
        if recipe.placement.activations == "recompute":
            raise
        found = search(recipe.replace({"placement.activations": "recompute"}))
        note = "fits only with placement.activations=recompute, which is planned here"
        return replace(found, notes=(*found.notes, note))


class Search:
    """Simulates the splits that arithmetic finds best, then other schedules of the best one."""

    def __init__(
        self, recipe: Recipe, inputs: PlanInputs, environment: EnvironmentModel | None,
        check_seconds: float, steps: int, ratios: int, seed: int,
    ) -> None:  # fmt: skip
        self.recipe, self.inputs = recipe, inputs
        self.environment = environment or EnvironmentModel()
        self.check_seconds, self.steps, self.ratios, self.seed = check_seconds, steps, ratios, seed
        self.misfits: dict[str, str] = {}
        self.slowness = self._slowness()

    def run(
        self, own: Placement | None, degrees: Sequence[int], staleness: Sequence[int] | None
    ) -> tuple[tuple[PlannedStep, ...], PlannedStep, Slowness, dict[str, str], float]:
        """The simulated placements, the best of them, and what goes with it."""
        recipe = self.recipe
        if own is not None:
            found = [self.simulated(own)]
            check_fits(self.misfits, self.inputs.shape, self.inputs.accelerator)
        else:
            chosen = self._splits(degrees)
            found = [self.simulated(p) for p in chosen]
            fastest = min(found, key=lambda s: s.interval()[1]).placement
            found += [self.simulated(p) for p in self._schedules(fastest, staleness)]
        found.sort(key=lambda s: s.interval()[1])
        # Within the error of the simulations, the one with fresher tokens is preferred.
        error = found[0].middle.step_error / found[0].middle.step_seconds
        limit = max(AS_FAST, 1 + error) * found[0].interval()[1]
        fast = [s for s in found if s.interval()[1] <= limit]
        best = min(fast, key=lambda s: (s.placement.k, s.interval()[1]))
        validation = self._validation(recipe, best)
        return tuple(found), best, self.slowness, self.misfits, validation

    def world(self, placement: Placement) -> PlannedWorld:
        """The world of a placement, at the middle of all intervals."""
        i = self.inputs
        rates = roofline(
            i.shape, i.accelerator, self.recipe, trainers=placement.trainers, use=i.use,
            generator_devices=placement.devices_per_generator,
            cached=i.lengths.in_progress + i.prompt_tokens / self.recipe.batch.generations,
        )  # fmt: skip
        return PlannedWorld(
            rates, i.lengths, i.prompt_tokens,
            PassRates.from_kept(i.kept, self.recipe.batch.generations), self.environment,
            self.check_seconds, placement.devices_per_generator, self.seed,
        )  # fmt: skip

    def _slowness(self) -> Slowness:
        i = self.inputs
        rng = np.random.default_rng(self.seed)
        z = rng.standard_normal((3, DRAWS))
        longer = i.mean_length.draws(z[2]) / i.mean_length.middle
        # Longer answers take more decode steps of more context, and more tokens to train on.
        mfu = i.use.mfu.middle / i.use.mfu.draws(z[0])
        decode = i.use.decode.middle / i.use.decode.draws(z[1])
        return Slowness(decode * longer**1.3, mfu * longer)

    def need(self, placement: Placement) -> MemoryNeed:
        return memory_need(self.inputs.shape, self.inputs.accelerator, self.recipe, placement)

    def simulated(self, placement: Placement) -> PlannedStep:
        need = self.need(placement)
        if need.problem:
            self.misfits[placement.split] = need.problem
        return planned_step(
            self.recipe, placement, need, self.world(placement), self.slowness,
            ratios=self.ratios, steps=self.steps, seed=self.seed,
        )  # fmt: skip

    def _splits(self, degrees: Sequence[int]) -> list[Placement]:
        """The splits that fit and are fastest by arithmetic."""
        i, schedule = self.inputs, self.recipe.schedule
        found: list[tuple[float, Placement]] = []
        for degree in degrees:
            for generators, trainers in splits(i.devices, degree):
                if generators < 1:
                    continue
                placement = Placement(generators, trainers, schedule.name, schedule.k, degree)
                if not self._possible(placement):
                    continue
                need = self.need(placement)
                if need.problem:
                    self.misfits[placement.split] = need.problem
                    continue
                rates = self.world(placement).rates
                quick = quick_estimate(
                    rates, self.recipe, placement, i.lengths.mean, i.prompt_tokens
                )
                found.append((quick.step(schedule.name), placement))
        if not found:
            check_fits(self.misfits, i.shape, i.accelerator)
            raise InputError(f"{i.devices} devices are too few: a run needs two or more")
        found.sort(key=lambda pair: pair[0])
        return [placement for _, placement in found[:SPLITS]]

    def _schedules(self, best: Placement, staleness: Sequence[int] | None) -> list[Placement]:
        """Other schedules of a split."""
        ks = staleness or [k for k in STALENESS if k < self.recipe.schedule.k]
        others = [replace(best, schedule="pipeline", k=k) for k in ks]
        others.append(replace(best, schedule="off-policy", k=1))
        return [p for p in others if p != best and self._possible(p)]

    def _possible(self, placement: Placement) -> bool:
        try:
            self.recipe.replace(placement.changes())
        except InputError:  # off-policy needs shares of equal size
            return False
        return True

    def _validation(self, recipe: Recipe, best: PlannedStep) -> float:
        from scalerl.planner.simulate import simulate

        k = best.placement.k
        changes = best.placement.changes() | {"validation.every": k + 1}
        found = simulate(
            recipe.replace(changes), self.world(best.placement), 2 * k + 3, validate=True
        )
        return found.validation_seconds


def _model(recipe: Recipe) -> str:
    """The directory of the recipe's model, or its id."""
    from scalerl.models.load import model_path

    return model_path(recipe.model.path)


def _inputs(
    recipe: Recipe, device: Accelerator, shape: ModelShape, devices: int | None,
    mean_length: Any, spread: float, alike: float, mfu: Any, decode: Any,
    prompt_tokens: int | None, kept: float | None, growth: float,
) -> PlanInputs:  # fmt: skip
    where = recipe.placement
    count = where.generators + where.trainers if devices is None else devices
    if count < 2:
        raise InputError(
            f"--devices {count}: a run needs two or more, one to generate, one to train"
        )
    limit = recipe.length.longest
    longest = recipe.sampling.max_prompt_tokens + limit
    if longest > shape.context:
        raise InputError(
            f"prompt and answer may have {longest} tokens, and {shape.name} reads {shape.context}: "
            "lower sampling.max_prompt_tokens or the budgets in length"
        )
    lengths, sources = _lengths(recipe, mean_length, spread, alike, growth)
    use = Utilisation(
        _share(mfu, "--mfu", PUBLIC_MFU, "products that the trainer uses (MFU)"),
        _share(decode, "--decode", PUBLIC_DECODE, "bandwidth that generators use"),
    )
    share = KEPT if kept is None else kept
    if not 0 < share <= 1:
        raise InputError(f"--kept {share:g}: give a share above 0, at most 1")
    return PlanInputs(
        accelerator=device,
        shape=shape,
        devices=count,
        lengths=lengths,
        mean_length=sources,
        use=use,
        prompt_tokens=min(prompt_tokens or 256, recipe.sampling.max_prompt_tokens),
        kept=1.0 if recipe.filter.zero_variance == "keep" else share,
        sources=(
            f"rates: roofline of {device.name} ({device.confidence} confidence in its numbers)",
        ),
    )


def _lengths(
    recipe: Recipe, mean_length: Any, spread: float, alike: float, growth: float
) -> tuple[AnswerLengths, Interval]:
    limit = recipe.length.longest
    if mean_length is None:
        raise InputError(
            "the mean length of answers decides the cost and is not known: give --mean-length "
            f"TOKENS or LOW-HIGH (at most {limit} here), or --like RUN"
        )
    mean = _interval(mean_length, "--mean-length")
    if mean.high > limit:
        raise InputError(
            f"--mean-length {mean.high:g} is above the longest answer, {limit} tokens: lower it, "
            "or raise the budgets in length"
        )
    lengths = AnswerLengths(
        mean.middle, spread, alike, limit, recipe.length.thinking_budgets, growth=growth
    )
    return lengths, mean


def _interval(value: Any, option: str) -> Interval:
    if isinstance(value, Interval):
        return value
    return Interval.parse(str(value), option)


def _share(value: Any, option: str, public: Interval, what: str) -> Interval:
    if value is None:
        raise InputError(
            f"the share of peak {what} decides the cost and is not known: give {option} LOW-HIGH "
            f"({option} public takes {public.low:g}-{public.high:g}), or --like RUN"
        )
    found = public if value == "public" else _interval(value, option)
    if found.high > 1:
        raise InputError(f"{option} {found.high:g}: a share of the peak is at most 1")
    return found


def _days(
    days: float | None, budget: float | None, price: float | None, devices: int
) -> float | None:
    if days is not None and days <= 0:
        raise InputError(f"--days {days:g}: give a number above 0")
    if price is not None and price <= 0:
        raise InputError(f"--price {price:g}: give the price of a device-hour, above 0")
    if budget is None:
        return days
    if price is None:
        raise InputError("--budget is money: give --price of a device-hour as well")
    if budget <= 0:
        raise InputError(f"--budget {budget:g}: give a sum above 0")
    affordable = budget / price / devices / 24
    return affordable if days is None else min(days, affordable)
