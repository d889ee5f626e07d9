"""The search over placements: which splits of the devices and which schedules are simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalerl.errors import InputError
from scalerl.planner.answer import PlannedStep, Slowness, planned_step
from scalerl.planner.costs import Costs
from scalerl.planner.placements import (
    SPLITS,
    STALENESS,
    Placement,
    quick_estimate,
    splits,
)
from scalerl.planner.simulate import simulate
from scalerl.recipe import Recipe

#: A schedule with a smaller k is preferred if its step is no longer than this, over the fastest.
AS_FAST = 1.02


@dataclass(frozen=True)
class Searched:
    """What a search has found."""

    #: Simulated placements, the fastest first.
    steps: tuple[PlannedStep, ...]
    best: PlannedStep
    slowness: Slowness
    #: Why splits do not fit, by split.
    misfits: dict[str, str]
    #: Seconds of one validation.
    validation_seconds: float


class Search:
    """Simulates the splits that arithmetic finds best, then other schedules of the best one."""

    def __init__(
        self, recipe: Recipe, costs: Costs, devices: int, steps: int, ratios: int, seed: int
    ) -> None:
        self.recipe, self.costs, self.devices = recipe, costs, devices
        self.steps, self.ratios, self.seed = steps, ratios, seed
        self.misfits: dict[str, str] = {}
        self.slowness = costs.slowness(seed)

    def run(
        self, own: Placement | None, degrees: Sequence[int], staleness: Sequence[int] | None
    ) -> Searched:
        """Simulate the recipe's own placement, or search for a better one."""
        if own is not None:
            found = [self._simulated(own)]
            self._check_fits()
        else:
            found = [self._simulated(p) for p in self._splits(degrees)]
            fastest = min(found, key=_seconds).placement
            found += [self._simulated(p) for p in self._schedules(fastest, staleness)]
        found.sort(key=_seconds)
        best = _best(found)
        return Searched(tuple(found), best, self.slowness, self.misfits, self._validation(best))

    def _simulated(self, placement: Placement) -> PlannedStep:
        need = self.costs.need(self.recipe, placement)
        if need.problem:
            self.misfits[placement.split] = need.problem
        return planned_step(
            self.recipe, placement, need, self.costs.world(self.recipe, placement, self.seed),
            self.slowness, ratios=self.ratios, steps=self.steps, seed=self.seed,
        )  # fmt: skip

    def _splits(self, degrees: Sequence[int]) -> list[Placement]:
        """The splits that fit and are fastest by arithmetic."""
        schedule, lengths = self.recipe.schedule, self.costs.lengths
        found: list[tuple[float, Placement]] = []
        for degree in degrees:
            for generators, trainers in splits(self.devices, degree):
                placement = Placement(generators, trainers, schedule.name, schedule.k, degree)
                if generators < 1 or not self._possible(placement):
                    continue
                problem = self.costs.need(self.recipe, placement).problem
                if problem:
                    self.misfits[placement.split] = problem
                    continue
                world = self.costs.world(self.recipe, placement, self.seed)
                quick = quick_estimate(
                    world.rates, self.recipe, placement, lengths.mean, world.prompt_tokens
                )
                found.append((quick.step(schedule.name), placement))
        if not found:
            self._check_fits()
            raise InputError(f"{self.devices} devices cannot be split for {schedule.name}")
        found.sort(key=lambda pair: pair[0])
        return [placement for _, placement in found[:SPLITS]]

    def _check_fits(self) -> None:
        """Raise if something does not fit; the reason of the split with most trainers is named."""
        if self.misfits:
            split, why = next(reversed(self.misfits.items()))
            raise InputError(
                f"{self.recipe.model.path} fits nowhere: with {split}, {why}; take more devices, "
                "larger ones, a smaller model or shorter answers"
            )

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

    def _validation(self, best: PlannedStep) -> float:
        """Seconds of a validation, by a simulation with one of them."""
        k, placement = best.placement.k, best.placement
        recipe = self.recipe.replace(placement.changes() | {"validation.every": k + 1})
        world = self.costs.world(self.recipe, placement, self.seed)
        return simulate(recipe, world, 2 * k + 3, validate=True).validation_seconds


def _seconds(step: PlannedStep) -> float:
    return step.interval()[1]


def _best(found: Sequence[PlannedStep]) -> PlannedStep:
    """The fastest; of those as fast within the error of a simulation, the one with the least k."""
    fastest = found[0]
    error = fastest.middle.step_error / fastest.middle.step_seconds
    limit = max(AS_FAST, 1 + (error if error == error else 0.0)) * _seconds(fastest)
    fast = [s for s in found if _seconds(s) <= limit]
    return min(fast, key=lambda s: (s.placement.k, _seconds(s)))
