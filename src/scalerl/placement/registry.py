"""Placements by the names that recipes use (`placement.backend`); `@PLACEMENTS.register("mine")`
adds one: a function of a plan and the checkpoint to go on from, which gives a crew and a clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scalerl.pipeline.crew import Clock, Crew
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.inline import InlineCrew
from scalerl.placement.processes import ProcessCrew, RealClock
from scalerl.registry import Registry

PLACEMENTS: Registry[Callable[[RunSetup, Path | None], tuple[Crew, Clock]]] = Registry("placement")


@PLACEMENTS.register("local")
def local(setup: RunSetup, checkpoint: Path | None) -> tuple[Crew, Clock]:
    """Processes on this machine."""
    return ProcessCrew(setup, checkpoint), RealClock()


@PLACEMENTS.register("ray")
def ray(setup: RunSetup, checkpoint: Path | None) -> tuple[Crew, Clock]:
    """Actors of a Ray cluster; imported when it is needed."""
    from scalerl.placement.ray_crew import RayCrew

    return RayCrew(setup, checkpoint), RealClock()


@PLACEMENTS.register("inline")
def inline(setup: RunSetup, checkpoint: Path | None) -> tuple[Crew, Clock]:
    """Everything in this process, one thing after the other, on a virtual clock."""
    crew = InlineCrew(setup, checkpoint)
    return crew, crew.clock


def place(setup: RunSetup, checkpoint: Path | None) -> tuple[Crew, Clock]:
    """The crew of a setup, where its recipe says, and the clock that goes with it."""
    return PLACEMENTS[setup.recipe.placement.backend](setup, checkpoint)
