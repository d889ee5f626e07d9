"""plan: what a run would cost on some devices, and how to place it.

>>> from scalerl import plan
>>> p = plan("scalerl", accelerator="h100-sxm", devices=16, days=7, mean_length=6000,
...          mfu="0.2-0.4", decode="0.4-0.7", steps=8, ratios=1, staleness=[8])
>>> p.best.placement.devices, p.best.memory.problem
(16, None)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.planner.accelerators import Accelerator
from scalerl.planner.answer import Array, PlannedStep, Slowness
from scalerl.planner.arms import ArmRace, race_arms
from scalerl.planner.costs import (
    Costs,
    Workload,
    measured_costs,
    recorded_costs,
    roofline_costs,
)
from scalerl.planner.outlook import Outlook, outlook_of
from scalerl.planner.pilot import PilotPlan, ValidationDesign, plan_pilot
from scalerl.planner.placements import Placement, usable_degrees
from scalerl.planner.search import Search, Searched
from scalerl.recipe import Recipe

#: Optimiser steps of a simulation, besides the first k.
STEPS = 48
#: Ratios of the rates at which a placement is simulated.
RATIOS = 3


@dataclass(frozen=True)
class Plan:
    """Placements of a run with their predicted steps, the fastest that fits first."""

    recipe: Recipe
    costs: Costs
    searched: Searched
    days: float | None = None
    #: Price of a device-hour.
    price: float | None = None
    #: What the curve says; None without one.
    outlook: Outlook | None = None
    pilot: PilotPlan | None = None
    #: Which arm of a study is first; None without a study.
    race: ArmRace | None = None
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[PlannedStep, ...]:
        """All simulated placements, the fastest first."""
        return self.searched.steps

    @property
    def best(self) -> PlannedStep:
        """The placement that is proposed."""
        return self.searched.best

    @property
    def slowness(self) -> Slowness:
        return self.searched.slowness

    @property
    def seconds_per_step(self) -> Array:
        """Draws of the seconds of a step of the best placement, validations included."""
        share = self.searched.validation_seconds / self.recipe.validation.every
        return self.best.seconds * (1 + share / self.best.interval()[1])

    def steps_in(self, days: float) -> tuple[float, float, float]:
        """Optimiser steps in some days: lower end, median and upper end of 90 %."""
        low, mid, high = np.quantile(days * 86400 / self.seconds_per_step, [0.05, 0.5, 0.95])
        return float(low), float(mid), float(high)

    @property
    def changes(self) -> dict[str, Any]:
        """The keys of the recipe that the plan sets."""
        where = self.recipe.placement
        return self.best.placement.changes() | {"placement.activations": where.activations}

    def placed_recipe(self) -> Recipe:
        """The recipe with the placement and schedule of the best plan."""
        return self.recipe.replace(self.changes)

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "recipe": self.recipe.name,
            "devices": self.best.placement.devices,
            "assumed": self.costs.to_dict(),
            "best": self.best.to_dict(),
            "placements": [step.to_dict() for step in self.steps],
            "misfits": self.searched.misfits,
            "validation_seconds": self.searched.validation_seconds,
            "days": self.days,
            "price": self.price,
            "notes": list(self.notes),
        }
        if self.days is not None:
            low, mid, high = self.steps_in(self.days)
            found["steps_in_days"] = {"median": mid, "interval": [low, high]}
        for name, value in (
            ("outlook", self.outlook), ("pilot", self.pilot), ("race", self.race),
        ):  # fmt: skip
            found[name] = None if value is None else value.to_dict()
        return found

    def plot(self, path: str | None = None) -> Any:
        """Draw the plan; returns the matplotlib figure."""
        from scalerl.planner.timeline import timeline_of
        from scalerl.report.plan_figure import plot_plan

        return plot_plan(self, timeline_of(self), path)

    def __str__(self) -> str:
        from scalerl.planner.text import plan_text

        return plan_text(self)

    __repr__ = __str__


def plan(
    recipe: Any, *, accelerator: str | Accelerator | None = None, devices: int | None = None,
    mean_length: Any = None, mfu: Any = None, decode: Any = None, like: str | Path | None = None,
    measure: bool = False, days: float | None = None, budget: float | None = None,
    price: float | None = None, curve: Any = None, per_step: float | None = None,
    target: Sequence[float] = (), pilot: bool = False, study: str | Path | None = None,
    degrees: Sequence[int] | None = None, staleness: Sequence[int] | None = None,
    accelerators: Path | None = None,
    steps: int = STEPS, ratios: int = RATIOS, seed: int = 0, **workload: Any,
) -> Plan:  # fmt: skip
    """Plan a run: simulate placements of `devices` accelerators and choose one.

    recipe       a Recipe, a preset's name, a path, or a list of them with overrides
    accelerator  a name of the table (`scalerl plan --list`), or an Accelerator
    devices      how many there are; by default the recipe's own placement is planned as it is
    mean_length  tokens of an answer, or an interval "4000-8000". There is no default
    mfu, decode  shares of the peak that trainer and generators use, such as "0.1-0.4", or "public"
    like         directory of a run: its rates and lengths instead of those of an accelerator
    measure      run the recipe here for a few steps, and take the rates of that
    days, budget, price   how long, or how much money at this price of a device-hour
    curve        a Fit, a run, or (A, B, C_mid, R_0), to say what pass rate that reaches; `per_step`
                 is the curve's compute of one optimiser step, where it does not count steps
    target       pass rates to reach
    pilot        also simulate how long a run must be until its ceiling can be read
    study        directory of a study: which of its arms is first at `target` on these devices
    workload     fields of `scalerl.planner.costs.Workload`: spread, alike, kept, environment, ...
    """
    from scalerl.recipe.load import recipe_from

    recipe = recipe_from(recipe)
    given = Workload(mean_length=mean_length, **workload)
    if like is not None:
        costs: Costs = recorded_costs(like, recipe, given)
    elif measure:
        costs = measured_costs(recipe, given)
    else:
        costs = roofline_costs(recipe, accelerator, accelerators, mfu, decode, given)
    where = recipe.placement
    count = where.generators + where.trainers if devices is None else devices
    if count < 2:
        raise InputError(f"--devices {count}: a run needs two, one to generate and one to train")
    days = _days(days, budget, price, count)
    own = None
    if devices is None:
        own = Placement(where.generators, where.trainers, recipe.schedule.name, recipe.schedule.k)

    def searched(recipe: Recipe) -> Searched:
        search = Search(recipe, costs, count, steps, ratios, seed)
        return search.run(own, degrees or usable_degrees(), staleness)

    notes: tuple[str, ...] = ()
    try:
        found = searched(recipe)
    except InputError:
        if where.activations == "recompute":
            raise
        recipe = recipe.replace({"placement.activations": "recompute"})
        found = searched(recipe)
        notes = ("it fits only with placement.activations=recompute, which is planned here",)
    plan = Plan(recipe, costs, found, days, price, notes=notes)
    if study is not None:
        found_arms = race_arms(plan, study, target, steps=steps, ratios=ratios, seed=seed)
        plan = replace(plan, race=found_arms)
    if curve is not None or (target and study is None):
        plan = replace(plan, outlook=outlook_of(plan, curve, per_step, target))
    if pilot and plan.outlook is None:
        raise InputError("a pilot needs a curve that is believed beforehand: give --curve")
    return replace(plan, pilot=_pilot(plan)) if pilot else plan


def _pilot(plan: Plan) -> PilotPlan:
    """Pilots of the plan's curve with the recipe's validations, four times as many, and a quarter
    of the prompts."""
    assert plan.outlook is not None
    v = plan.recipe.validation
    own = ValidationDesign(v.every, v.prompts, v.k)
    designs = [own, replace(own, every=max(v.every // 4, 1))]
    designs.append(replace(own, prompts=max(v.prompts // 4, 1)))
    return plan_pilot(plan.outlook.curve, designs)


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
