"""Placements by the names that recipes use (`placement.backend`).

`@PLACEMENTS.register("mine")` adds one: a function that takes a `RunSetup` and the checkpoint to
resume from (or None) and returns a crew and a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scalerl.pipeline.crew import Clock, Crew
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.inline import InlineCrew
from scalerl.placement.processes import EvaluationProcesses, ProcessCrew, RealClock
from scalerl.registry import Registry

PLACEMENTS: Registry[Callable[[RunSetup, Path | None], tuple[Crew, Clock]]] = Registry("placement")


@PLACEMENTS.register("local")
def local(setup: RunSetup, checkpoint: Path | None) -> tuple[Crew, Clock]:
    """Workers as processes of this machine."""
    return ProcessCrew(setup, checkpoint), RealClock()


@PLACEMENTS.register("ray")
def ray(setup: RunSetup, checkpoint: Path | None) -> tuple[Crew, Clock]:
    """Workers as actors of a Ray cluster. Ray is imported only when it is used."""
    from scalerl.placement.ray_crew import RayCrew

    return RayCrew(setup, checkpoint), RealClock()


@PLACEMENTS.register("inline")
def inline(setup: RunSetup, checkpoint: Path | None) -> tuple[Crew, Clock]:
    """All workers in this process, on a virtual clock."""
    crew = InlineCrew(setup, checkpoint)
    return crew, crew.clock


def place(setup: RunSetup, checkpoint: Path | None) -> tuple[Crew, Clock]:
    """Start the crew of a run where its recipe says; the crew and its clock."""
    return PLACEMENTS[setup.recipe.placement.backend](setup, checkpoint)


def place_evaluation(setup: RunSetup, weights: str) -> tuple[Crew, Clock]:
    """Start the generators and checkers of an evaluation where the recipe says: as actors of a Ray
    cluster, or as processes of this machine."""
    if setup.recipe.placement.backend == "ray":
        from scalerl.placement.ray_crew import RayEvaluation

        return RayEvaluation(setup, weights), RealClock()
    return EvaluationProcesses(setup, weights), RealClock()
