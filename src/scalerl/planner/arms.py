"""Which arm of a study gets to a score first on these devices.

A study measures each arm's curve in optimiser steps; the plan knows the seconds of a step of each
arm on the target hardware. Staler arms may lose in steps and win in seconds. Time to a target is
steps (a draw of the arm's curve) times seconds (a draw of the rates); the rates are the same draw
for all arms, since they share the hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError
from scalerl.planner.answer import PlannedStep, planned_step
from scalerl.planner.outlook import LearningCurve, first_reached, learning_curve, three_quantiles

if TYPE_CHECKING:
    from scalerl.curves.result import Fit
    from scalerl.planner.plan import Plan
    from scalerl.recipe import Recipe

Array = npt.NDArray[np.float64]
#: Knots of a curve, evenly spaced in the logarithm of the steps.
KNOTS = 96
#: Curves are followed up to this many times C_mid; beyond, a target counts as not reached.
HORIZON = 200.0


@dataclass(frozen=True)
class PlannedArm:
    """One arm of a study on the devices of a plan."""

    name: str
    curve: LearningCurve
    step: PlannedStep
    #: Probability that it reaches the target before all others, and that it reaches it at all.
    first: float
    reaches: float
    #: Steps and days to the target: 5, 50 and 95 %; inf where it is not reached.
    steps: tuple[float, float, float]
    days: tuple[float, float, float]

    def to_dict(self) -> dict[str, Any]:
        def finite(values: tuple[float, ...]) -> list[float | None]:
            return [v if np.isfinite(v) else None for v in values]

        return {
            "arm": self.name,
            "first": self.first,
            "reaches": self.reaches,
            "steps": finite(self.steps),
            "days": finite(self.days),
            "step_seconds": self.step.interval()[1],
            "notes": list(self.curve.notes),
        }


@dataclass(frozen=True)
class ArmRace:
    """The arms of a study, the likeliest to be first at the front."""

    target: float
    arms: tuple[PlannedArm, ...]
    #: Probability that none of them gets there.
    none: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "arms": [arm.to_dict() for arm in self.arms],
            "none": self.none,
            "notes": list(self.notes),
        }


def race_arms(
    plan: Plan, study: str | Path, target: Sequence[float], *, steps: int, ratios: int, seed: int
) -> ArmRace:
    """Plan each arm of a study on the devices of the plan's best placement."""
    if len(target) != 1:
        raise InputError("--study compares arms by the time to one pass rate: give --target R")
    curves, changes, notes = _measured_arms(study)
    _check_batch(plan.recipe, changes, notes)
    planned: dict[str, PlannedStep] = {}
    when: dict[str, Array] = {}
    rng = np.random.default_rng((seed, 11))
    for name, curve in curves.items():
        recipe, placement = plan.recipe.replace(changes[name]), plan.best.placement
        schedule = recipe.schedule
        placement = replace(placement, schedule=schedule.name, k=schedule.k)
        world = plan.costs.world(recipe, placement, seed)
        planned[name] = planned_step(
            recipe, placement, plan.costs.need(recipe, placement), world, plan.slowness,
            ratios=ratios, steps=steps, seed=seed,
        )  # fmt: skip
        grid = np.geomspace(max(curve.mid_steps / 100, 1.0), HORIZON * curve.mid_steps, KNOTS)
        levels = curve.levels(grid)
        draws = planned[name].seconds
        when[name] = first_reached(grid, levels, target[0])[
            rng.integers(0, len(levels), len(draws))
        ]
    days = {name: when[name] * planned[name].seconds / 86400 for name in curves}
    order = np.array(list(days.values()))
    reached = np.isfinite(order).any(axis=0)
    winner = np.argmin(order, axis=0)
    arms = [
        PlannedArm(
            name, curves[name], planned[name], float(np.mean(reached & (winner == i))),
            float(np.isfinite(when[name]).mean()), three_quantiles(when[name]),
            three_quantiles(days[name]),
        )
        for i, name in enumerate(curves)
    ]  # fmt: skip
    arms.sort(key=lambda arm: -arm.first)
    return ArmRace(target[0], tuple(arms), float(np.mean(~reached)), tuple(notes))


def _measured_arms(
    study: str | Path,
) -> tuple[dict[str, LearningCurve], dict[str, dict[str, Any]], list[str]]:
    """The curve of each variant in steps, what its recipe changes, and notes."""
    from scalerl.study.study import Study

    found = Study(study)
    curves: dict[str, LearningCurve] = {}
    changes: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    for variant in found.variants:
        members = [m for m in found.members if m.variant == variant]
        fits = [f for m in members if (f := _fit(m.path, found.finding(m).counts)) is not None]
        if not fits:
            notes.append(f"{variant} is left out: none of its runs is stable and can be fitted")
            continue
        from scalerl.curves.arms import Arm

        curves[variant] = learning_curve(Arm(variant, tuple(fits)).pooled_fit, None, None)
        changes[variant] = found.differs(variant)
    if len(curves) < 2:
        raise InputError(f"--study {study}: {len(curves)} arms can be fitted, and two are needed")
    return curves, changes, notes


def _fit(path: Path, counts: bool) -> Fit | None:
    """The fit of a member against optimiser steps."""
    if not counts:
        return None
    from scalerl.curves.fit import fit
    from scalerl.runs import load_run

    try:
        return fit(load_run(str(path), x="step"))
    except InputError:
        return None


def _check_batch(recipe: Recipe, changes: dict[str, dict[str, Any]], notes: list[str]) -> None:
    """Add notes on differences between arms that the plan does not model."""
    known = {"schedule.name", "schedule.k", "batch.prompts", "batch.generations"}
    other = sorted({key for each in changes.values() for key in each} - known)
    if other:
        notes.append(
            f"arms also differ in {', '.join(other[:4])}: what these change in seconds is not in "
            "the plan unless its rates know them"
        )
    notes.append(
        "curves were measured at the study's own model, batch and lengths; that they hold in "
        f"steps for {recipe.name} is an assumption"
    )
