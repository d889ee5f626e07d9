"""The step time of a placement as a distribution, from a few simulations.

Slowing generators and trainer by the same factor slows a step by that factor, so a step takes

    t × f(g / t)        g, t: how much slower generators and trainer are than in the middle

and f is a function of one number. It is simulated at a few ratios; between them log f is linear in
log g/t. Then thousands of draws of the rates cost nothing. (Seconds that no rate scales, of
hand-overs and environments, are taken at the middle: they are small, or both sides wait for them.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.planner.placements import MemoryNeed, Placement
from scalerl.planner.simulate import Simulation, simulate
from scalerl.planner.world import PlannedWorld
from scalerl.recipe import Recipe

Array = npt.NDArray[np.float64]
#: Standard deviation of the logarithm of what the model itself gets wrong: lab runs that were
#: predicted from a calibration were off by 5 % in the median and 10 % at worst (planner.md, 2.3).
MODEL_SIGMA = 0.07


@dataclass(frozen=True)
class StepCurve:
    """f at some ratios: step seconds of a trainer in the middle."""

    ratios: Array
    simulations: tuple[Simulation, ...]

    def _at(self, values: Array, ratio: Array) -> Array:
        return np.interp(np.log(ratio), np.log(self.ratios), values)

    def seconds(self, generator: Array, trainer: Array) -> Array:
        """Step seconds for sides that are slower than in the middle by these factors."""
        logs = np.log([s.step_seconds for s in self.simulations])
        ratio = generator / trainer
        inside = self._at(logs, ratio)
        # Beyond the ends one side decides alone: below, the trainer; above, the generators.
        above = np.log(np.maximum(ratio / self.ratios[-1], 1.0))
        return np.asarray(trainer * np.exp(inside + above))

    def value(self, name: str, ratio: Array) -> Array:
        """A share or the staleness at these ratios."""
        return self._at(np.array([getattr(s, name) for s in self.simulations]), ratio)


@dataclass(frozen=True)
class Slowness:
    """Draws of how much slower generators and trainer are than in the middle."""

    generator: Array
    trainer: Array

    @property
    def ratio(self) -> Array:
        return self.generator / self.trainer


@dataclass(frozen=True)
class PlannedStep:
    """A placement with its predicted step."""

    placement: Placement
    memory: MemoryNeed
    curve: StepCurve
    #: Draws of the seconds of a step.
    seconds: Array
    #: Draws of what else depends on the rates.
    generator_wait: Array
    trainer_wait: Array
    staleness: Array

    @property
    def middle(self) -> Simulation:
        """The simulation in the middle of the intervals."""
        return self.curve.simulations[len(self.curve.simulations) // 2]

    def interval(self, level: float = 0.9) -> tuple[float, float, float]:
        """Lower end, median and upper end of the seconds of a step."""
        low, mid, high = np.quantile(self.seconds, [(1 - level) / 2, 0.5, (1 + level) / 2])
        return float(low), float(mid), float(high)

    @property
    def device_hours(self) -> float:
        """Device-hours of a step, in the median."""
        return self.interval()[1] * self.placement.devices / 3600

    def with_more_trainers(self, more: int, slowness: Slowness) -> float:
        """Median step seconds with further trainers besides the same generators."""
        n = self.placement.trainers
        faster = slowness.trainer * n / (n + more)
        return float(np.median(self.curve.seconds(slowness.generator, faster)))

    def to_dict(self) -> dict[str, Any]:
        low, mid, high = self.interval()
        p = self.placement
        return {
            "generators": p.generators,
            "trainers": p.trainers,
            "devices_per_generator": p.devices_per_generator,
            "schedule": p.schedule,
            "k": p.k,
            "step_seconds": {"median": mid, "interval": [low, high]},
            "generator_wait": float(np.median(self.generator_wait)),
            "trainer_wait": float(np.median(self.trainer_wait)),
            "staleness": float(np.median(self.staleness)),
            "memory_gb": {"generator": self.memory.generator, "trainer": self.memory.trainer},
            "device_hours": self.device_hours,
            "simulation": self.middle.to_dict(),
        }


def planned_step(
    recipe: Recipe, placement: Placement, memory: MemoryNeed, world: PlannedWorld,
    slowness: Slowness, *, ratios: int, steps: int, seed: int = 0,
) -> PlannedStep:  # fmt: skip
    """Simulate a placement at some ratios of the rates, and draw its step seconds."""
    changed = recipe.replace(placement.changes())
    low, high = np.quantile(slowness.ratio, [0.02, 0.98])
    if high / low < 1.01:
        at = np.array([1.0])
    else:
        # An odd number, with the middle of the intervals in the middle.
        half = ratios // 2
        at = np.concatenate([np.geomspace(min(low, 0.99), 1, half + 1)[:-1],
                             np.geomspace(1, max(high, 1.01), half + 1)])  # fmt: skip
    rates = world.rates
    found = tuple(
        simulate(
            changed,
            replace(world, rates=replace(rates, generator=rates.generator.scaled(float(r)))),
            # The ends matter to the width of an interval only.
            placement.k + (steps if r == 1 else steps // 2),
        )
        for r in at
    )
    curve = StepCurve(at, found)
    z = np.random.default_rng((seed, 5)).standard_normal(len(slowness.generator))
    error = found[len(found) // 2].step_error / found[len(found) // 2].step_seconds
    sigma = float(np.hypot(MODEL_SIGMA, np.nan_to_num(error)))
    seconds = curve.seconds(slowness.generator, slowness.trainer) * np.exp(sigma * z)
    ratio = slowness.ratio
    return PlannedStep(
        placement, memory, curve, seconds, curve.value("generator_wait", ratio),
        curve.value("trainer_wait", ratio), curve.value("staleness", ratio),
    )  # fmt: skip
