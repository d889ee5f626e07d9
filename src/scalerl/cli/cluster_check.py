"""scalerl doctor --cluster: a small run on a Ray cluster, and whether everything in it went as it
should: what the cluster lacks, the gate, weights that arrive, an update, a death that is made good.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.errors import PipelineError
from scalerl.runs.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scalerl.runs.lines import EventLine, StepLine

#: Off-policy with k = 1: every batch is written with the newest weights, so that both sides must
#: agree on all of it.
SMALL = (
    "placement.backend=ray", "placement.generators=1", "placement.trainers=2",
    "placement.checkers=2", "schedule.name=off-policy", "schedule.k=1", "batch.prompts=4",
    "batch.generations=8", "validation.prompts=15", "validation.k=1", "validation.every=100",
    "validation.also_temperatures=[]", "checkpoint.every=2", "budget.steps=6",
)  # fmt: skip
#: Steps after which a generator is killed.
STRIKE = 3
#: Largest log-prob gap of a token that the newest weights wrote.
GAP = {"float32": 1e-3, "bfloat16": 0.5}


@dataclass
class ClusterWatch(Listener):
    """Hears the run, and kills a generator of it."""

    said: list[str] = field(default_factory=list)
    steps: list[StepLine] = field(default_factory=list)
    events: list[EventLine] = field(default_factory=list)
    crew: Any = None

    def say(self, text: str) -> None:
        self.said.append(text)

    def noted(self, line: EventLine) -> None:
        self.events.append(line)

    def step(self, line: StepLine) -> None:
        self.steps.append(line)
        if len(self.steps) == STRIKE:
            self.crew.generators[0].kill()


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    good: bool
    line: str


def check(address: str, changes: Sequence[str]) -> list[Finding]:
    """What a small run on the cluster at an address showed. Raises InputError over what the cluster
    lacks."""
    from scalerl.recipe.load import recipe_from
    from scalerl.runs.store import RunStore
    from scalerl.training import RunAttempts, start_crew

    recipe = recipe_from(["scalerl", "tiny", *SMALL, f"placement.address={address}", *changes])
    watch = ClusterWatch()

    def begun(recipe: Any, checkpoint: Path | None) -> Any:
        # The watch needs the crew, to kill one of its generators.
        plan, watch.crew, clock = start_crew(recipe, checkpoint)
        return plan, watch.crew, clock

    failed = None
    with tempfile.TemporaryDirectory(prefix="scalerl-doctor-") as folder:
        store = RunStore(Path(folder) / "run")
        try:
            RunAttempts(recipe, store, None, watch, False, begun).run()
        except PipelineError as error:
            failed = str(error)
    return [*_findings(watch, GAP[recipe.model.dtype]), *_end(recipe, watch, failed)]


def _findings(watch: ClusterWatch, allowed: float) -> list[Finding]:
    gate = next((line for line in watch.said if "gap" in line), None)
    found = [Finding("gate", gate is not None, gate or "nothing was compared")]
    # The first batch is written with the weights that both sides loaded themselves.
    gaps = [s.logprob_gap.max for s in watch.steps[1:]]
    worst = max(gaps, default=float("inf"))
    found.append(
        Finding(
            "hand-over", worst <= allowed,
            f"after {len(gaps)} updates the sides are at most {worst:.2g} apart ({allowed:g} may "
            "be)",
        )
    )  # fmt: skip
    norm = max((s.grad_norm for s in watch.steps), default=None)
    line = "no step was made" if norm is None else f"gradients of norm up to {norm:.3g}"
    return [*found, Finding("update", norm is not None, line)]


def _end(recipe: Any, watch: ClusterWatch, failed: str | None) -> list[Finding]:
    lost = [e.why for e in watch.events if e.event == "lost"]
    whole = failed is None and len(watch.steps) >= int(recipe.budget.steps)
    line = failed or f"{lost[0] if lost else 'no worker was lost'}; then {len(watch.steps)} steps"
    return [Finding("kill", whole and bool(lost), line)]
