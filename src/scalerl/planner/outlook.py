"""To a score: what pass rate a budget reaches, and what a target costs, draw by draw.

A draw is one curve of the fit's posterior and one set of rates: steps to a target come from the
curve, seconds of a step from the rates, and both are uncertain. A curve counts compute in its own
unit; what one optimiser step of it takes is read from its record, or given (`per_step`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.curves.result import Fit
    from scalerl.planner.plan import Plan
    from scalerl.recipe import Recipe

Array = npt.NDArray[np.float64]
#: Knots of a curve, evenly spaced in the logarithm of the steps.
KNOTS = 64
#: The curve is followed up to this many times the steps of the budget, or of C_mid.
HORIZON = 20.0
#: Sections of a recipe that a curve belongs to: another batch or length has another curve.
MEASURED_AT = ("batch", "length", "schedule", "loss", "model")


@dataclass(frozen=True)
class LearningCurve:
    """Pass rate against optimiser steps, with its uncertainty."""

    name: str
    #: The fit, or (A, B, C_mid, R_0) where only these are known.
    fit: Fit | tuple[float, float, float, float]
    #: Compute of the fit in one optimiser step.
    per_step: float
    #: What the user should know about it.
    notes: tuple[str, ...] = ()

    def levels(self, steps: Array) -> Array:
        """Pass rates at ascending steps: (draws, len(steps)); one row if nothing is uncertain."""
        if isinstance(self.fit, tuple):
            a, b, mid, r0 = self.fit
            return (r0 + (a - r0) / (1 + (mid / (steps * self.per_step)) ** b))[None, :]
        return self.fit.predictive.levels(steps * self.per_step)

    @property
    def mid_steps(self) -> float:
        """Steps at which half of the gain is made."""
        mid = self.fit[2] if isinstance(self.fit, tuple) else self.fit.params["C_mid"]
        return float(mid) / self.per_step

    @property
    def parameters(self) -> tuple[float, float, float, float]:
        """A, B, C_mid in steps, R_0."""
        if isinstance(self.fit, tuple):
            a, b, _, r0 = self.fit
        else:
            a, b, r0 = (self.fit.params[name] for name in ("A", "B", "R_0"))
        return a, b, self.mid_steps, r0


@dataclass(frozen=True)
class TargetCost:
    """What a pass rate costs."""

    score: float
    #: Probability that it is reached within HORIZON times the budget, and within the budget.
    probability: float
    in_budget: float | None
    #: Lower end, median and upper end; inf where that share of draws never reaches it.
    steps: tuple[float, float, float]
    days: tuple[float, float, float]
    device_hours: tuple[float, float, float]

    def to_dict(self) -> dict[str, Any]:
        def finite(values: tuple[float, ...]) -> list[float | None]:
            return [v if np.isfinite(v) else None for v in values]

        return {
            "score": self.score,
            "probability": self.probability,
            "probability_in_budget": self.in_budget,
            "steps": finite(self.steps),
            "days": finite(self.days),
            "device_hours": finite(self.device_hours),
        }


@dataclass(frozen=True)
class Outlook:
    """What a curve and a plan say together."""

    curve: LearningCurve
    #: Pass rate at the end of the budget: lower end, median, upper end; None without a budget.
    reached: tuple[float, float, float] | None
    targets: tuple[TargetCost, ...]
    notes: tuple[str, ...]

    def pass_rates(self, seconds: Array, per_step: Array) -> Array:
        """Pass rate after each of some times, (times, draws), by draws of a step's seconds."""
        steps, levels = _paths(self.curve, per_step, float(seconds[-1]))
        return np.array([_at(steps, levels, each / per_step) for each in seconds])

    def to_dict(self) -> dict[str, Any]:
        return {
            "curve": self.curve.name,
            "reached": None if self.reached is None else list(self.reached),
            "targets": [target.to_dict() for target in self.targets],
            "notes": list(self.notes),
        }


def outlook_of(plan: Plan, curve: Any, per_step: float | None, target: Sequence[float]) -> Outlook:
    """The pass rate at the end of the plan's budget, and the costs of targets."""
    if curve is None:
        raise InputError("--target needs a curve: give --curve RUN, or --curve A,B,C_mid,R_0")
    found = learning_curve(curve, per_step, plan.recipe)
    seconds = plan.seconds_per_step
    devices = plan.best.placement.devices
    budget = None if plan.days is None else plan.days * 86400
    steps, levels = _paths(found, seconds, budget)
    reached = None
    if budget is not None:
        reached = three_quantiles(_at(steps, levels, budget / seconds))
    costs = [_cost(s, steps, levels, seconds, devices, budget) for s in target]
    return Outlook(found, reached, tuple(costs), found.notes)


def learning_curve(curve: Any, per_step: float | None, recipe: Recipe | None) -> LearningCurve:
    """The curve of a fit, of a run, or of its parameters."""
    from scalerl.curves.result import Fit

    if isinstance(curve, LearningCurve):
        return curve
    numbers = _numbers(curve)
    if numbers is not None:
        note = "the curve is given by its parameters: its own uncertainty is not in the intervals"
        return LearningCurve("given parameters", numbers, per_step or 1.0, (note,))
    notes: list[str] = []
    if not isinstance(curve, Fit):
        from scalerl.curves.fit import fit
        from scalerl.runs import load_run

        run = load_run(curve)
        notes += _differences(curve, recipe)
        curve = fit(run)
    notes += [] if curve.identified else [f"the ceiling of {curve.name} is not identified"]
    each = _compute_per_step(curve) if per_step is None else per_step
    return LearningCurve(curve.name, curve, each, tuple(notes))


def _numbers(curve: Any) -> tuple[float, float, float, float] | None:
    """(A, B, C_mid, R_0), if that is what is given."""
    parts = curve.split(",") if isinstance(curve, str) and "," in curve else curve
    if not isinstance(parts, tuple | list):
        return None
    try:
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 4:
        raise InputError(f"--curve {curve!r}: give four numbers, A,B,C_mid,R_0, or a run")
    a, b, mid, r0 = numbers
    if not (0 <= r0 < a <= 1 and b > 0 and mid > 0):
        raise InputError(
            f"--curve {curve!r}: A and R_0 are pass rates with R_0 below A, B and C_mid are above 0"
        )
    return a, b, mid, r0


def _compute_per_step(fit: Fit) -> float:
    run = fit.run
    if run.x_kind == "steps":
        return 1.0
    if "steps" in run.conversions:
        compute, steps = run.conversions["steps"]
        if steps[-1] > 0:
            return float(compute[-1] / steps[-1])
    unit = {"gpu_hours": "GPU-hours of other hardware", "flops": "FLOPs"}.get(
        run.x_kind, run.x_kind
    )
    raise InputError(
        f"the curve of {run.name} is in {unit}, which a budget of days or money does not buy "
        "directly: give --per-step X, the compute of one of its optimiser steps, or a run whose "
        "record counts steps"
    )


def _differences(source: Any, recipe: Recipe | None) -> list[str]:
    """A line if the run was measured at another batch, length or schedule."""
    path = Path(str(source)) / "recipe.toml"
    if recipe is None or not path.is_file():
        return []
    from scalerl.recipe import Recipe as Loaded
    from scalerl.recipe import diff

    keys = [d.path for d in diff(Loaded.load(path), recipe)]
    found = [key for key in keys if key.split(".")[0] in MEASURED_AT]
    if not found:
        return []
    return [
        f"the curve was measured with other values of {', '.join(found[:4])}"
        f"{' and more' if len(found) > 4 else ''}: that it holds here is an assumption"
    ]


def _paths(curve: LearningCurve, seconds: Array, budget: float | None) -> tuple[Array, Array]:
    """Steps, and a path of the pass rate for each draw of the rates."""
    most = (
        curve.mid_steps if budget is None else max(budget / float(seconds.min()), curve.mid_steps)
    )
    steps = np.geomspace(max(curve.mid_steps / 100, 1.0), HORIZON * most, KNOTS)
    levels = curve.levels(steps)
    # Curves and rates are independent: the order of one of them is shuffled.
    order = np.random.default_rng(7).integers(0, len(levels), len(seconds))
    return steps, levels[order]


def _at(steps: Array, levels: Array, at: Array) -> Array:
    """The pass rate of each path at its own step."""
    where = np.interp(np.log(at), np.log(steps), np.arange(len(steps)))
    below = np.minimum(where.astype(int), len(steps) - 2)
    rows, share = np.arange(len(levels)), where - below
    return np.asarray(levels[rows, below] * (1 - share) + levels[rows, below + 1] * share)


def first_reached(steps: Array, levels: Array, score: float) -> Array:
    """Step at which each path first reaches a score; inf if it does not."""
    above = levels >= score
    i = np.maximum(np.argmax(above, axis=1), 1)
    rows = np.arange(len(levels))
    before, after = levels[rows, i - 1], levels[rows, i]
    share = np.clip((score - before) / np.where(after > before, after - before, 1.0), 0.0, 1.0)
    log = np.log(steps)
    when = np.exp(log[i - 1] + share * (log[i] - log[i - 1]))
    return np.where(above.any(axis=1), when, np.inf)


def _cost(
    score: float, steps: Array, levels: Array, seconds: Array, devices: int, budget: float | None
) -> TargetCost:
    if not 0 < score <= 1:
        raise InputError(f"--target {score:g}: a target is a pass rate in (0, 1]")
    when = first_reached(steps, levels, score)
    days = when * seconds / 86400
    return TargetCost(
        score,
        float(np.isfinite(when).mean()),
        None if budget is None else float((days * 86400 <= budget).mean()),
        three_quantiles(when),
        three_quantiles(days),
        three_quantiles(days * 24 * devices),
    )


def three_quantiles(values: Array) -> tuple[float, float, float]:
    """5, 50 and 95 % of values that may be infinite."""
    ordered = np.sort(values)
    low, mid, high = (ordered[round(p * (len(ordered) - 1))] for p in (0.05, 0.5, 0.95))
    return float(low), float(mid), float(high)
