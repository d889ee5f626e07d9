"""A few steps of a simulated run: when groups were written, and when the trainer worked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalerl.runs.listener import Listener

if TYPE_CHECKING:
    from scalerl.planner.plan import Plan

#: Steps that are shown, after the first k + START_UP.
SHOWN = 3
START_UP = 4
#: Groups that are shown, at most.
GROUPS = 24


@dataclass(frozen=True)
class Timeline:
    """Seconds from the first shown moment."""

    #: Begin and end of each step of the trainer.
    steps: tuple[tuple[float, float], ...]
    #: Begin and end of groups: from their request to their last answer.
    groups: tuple[tuple[float, float], ...]


class _Times(Listener):
    """Collects when groups and steps began and ended."""

    def __init__(self) -> None:
        self.begun: dict[str, float] = {}
        self.groups: list[tuple[float, float]] = []
        self.steps: list[tuple[float, float]] = []

    def asked(self, at: float, ids: Sequence[str]) -> None:
        for name in ids:
            self.begun.setdefault(name.partition("/")[0], at)

    def wrote(self, at: float, version: int, rollouts: Sequence[tuple[str, Any]]) -> None:
        for group in {name.partition("/")[0] for name, _ in rollouts}:
            if group in self.begun:
                self.groups.append((self.begun.pop(group), at))

    def trained(self, began: float, ended: float, version: int) -> None:
        self.steps.append((began, ended))


def timeline_of(plan: Plan) -> Timeline:
    """Some steps of the proposed placement, once it runs steadily."""
    from scalerl.planner.simulate import simulated_record

    placement, times = plan.best.placement, _Times()
    count = placement.k + START_UP + SHOWN
    recipe = plan.recipe.replace(placement.changes())
    world = plan.costs.world(plan.recipe, placement, 0)
    simulated_record(recipe, world, count, listener=times)
    steps = times.steps[-SHOWN:]
    begin, end = times.steps[-SHOWN - 1][1], steps[-1][1]
    seen = [(b, e) for b, e in times.groups if e > begin and b < end]
    groups = sorted(seen)[:: max(len(seen) // GROUPS, 1)][:GROUPS]
    return Timeline(
        tuple((b - begin, e - begin) for b, e in steps),
        tuple((max(b - begin, 0.0), min(e, end) - begin) for b, e in groups),
    )
