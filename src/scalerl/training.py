"""A whole run: the pipeline, its record, its forecast, and what happens when something breaks.

    from scalerl import Recipe, train

    outcome = train(Recipe.load("scalerl", "tiny"), "runs/first")

The loop replaces generators that die. Here, a run whose trainer dies goes back to its last
checkpoint and on from there; signals end it with a checkpoint; every other end leaves a record that
`resume` goes on from.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from scalerl.curves.live import LiveCurve, Look
from scalerl.curves.rules import StopRule, parse_rule
from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.runs.importers.run_directory import AXES
from scalerl.runs.lock import RunLock
from scalerl.runs.trackers import Trackers, open_trackers
from scalerl.runs.writer import RunWriter

if TYPE_CHECKING:
    from scalerl.pipeline.loop import Loop, Outcome

#: A run that breaks so often without reaching a new checkpoint is given up.
MAX_FAILURES = 3
INTERRUPTED = "interrupted: scalerl train --resume goes on from here"
#: Points before the first forecast.
MIN_POINTS = 5


class View(Protocol):
    """Who watches a run."""

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None: ...

    def say(self, line: str) -> None: ...

    def step(self, record: dict[str, Any]) -> None: ...

    def evaluated(self, record: dict[str, Any], look: Look | None) -> None: ...

    def end(self, reason: str) -> None: ...


class Silent:
    """A view that shows nothing."""

    def begin(self, recipe: Recipe, out: Path, resumed_at: int | None) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def step(self, record: dict[str, Any]) -> None:
        pass

    def evaluated(self, record: dict[str, Any], look: Look | None) -> None:
        pass

    def end(self, reason: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended, for whoever started it."""

    reason: str
    steps: int
    compute: dict[str, float]
    #: The signal that ended it early, or None.
    signal: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "steps": self.steps,
            "compute": self.compute,
            "signal": self.signal,
        }


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    stop_when: str | None = None,
    track: Sequence[str] = (),
    view: View | None = None,
) -> Ended:
    """Run a recipe into a directory, or go on with the run that is there.

    stop_when  a rule such as "gain < 0.01 per doubling", looked at after every validation
    track      "tensorboard", "wandb", "trackio"
    view       who is told what happens; by default nobody

    Needs `if __name__ == "__main__":` around it in a script: it starts processes.
    """
    # One thread per process: small matrix products on contended threads are many times slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    rule = None if stop_when is None else parse_rule(stop_when)
    path = Path(out)
    writer = RunWriter(path, resume=resume)
    with RunLock(path):
        writer.write_recipe(recipe.to_toml())
        name = path.resolve().name
        with open_trackers(
            track, path, name, recipe.to_dict(), resume=resume, say=(view or Silent()).say
        ) as trackers:
            return _Run(recipe, writer, rule, trackers, view or Silent(), resume).go()


class _Run:
    """One run, over as many attempts as it takes."""

    def __init__(
        self,
        recipe: Recipe,
        writer: RunWriter,
        rule: StopRule | None,
        trackers: Trackers,
        view: View,
        resume: bool,
    ) -> None:
        self.recipe = recipe
        self.writer = writer
        self.rule = rule
        self.trackers = trackers
        self.view = view
        self.resume = resume
        kind = recipe.compute.axis
        self.axis = AXES[kind].removeprefix("compute/")
        n_eval = recipe.validation.prompts * recipe.validation.k
        self.curve = LiveCurve("pass_rate", kind, n_eval=n_eval, min_points=MIN_POINTS)

    def go(self) -> Ended:
        from scalerl.pipeline.placement import PipelineError

        try:
            return self._attempts()
        except (PipelineError, InputError) as error:
            with suppress(InputError):  # the record may be the very thing that cannot be written
                self._event("failed", (self.writer.last("steps") or {}).get("step", 0),
                            why=str(error))  # fmt: skip
            raise

    def _attempts(self) -> Ended:
        from scalerl.pipeline.placement import Lost

        failures, reached = 0, -1
        while True:
            step = self._rewind()
            failures = 1 if step > reached else failures + 1
            reached = step
            try:
                return self._attempt(None if step < 0 else step)
            except Lost as lost:
                if failures >= MAX_FAILURES:
                    raise
                self.view.say(f"warning: {lost}: going back to the last checkpoint")
                self._event("lost", max(step, 0), why=str(lost))
                self.resume = True

    def _rewind(self) -> int:
        """Cut the record back to the newest whole checkpoint: its step, -1 if there is none."""
        from scalerl.pipeline import checkpoints

        if not self.resume:
            return -1
        self.checkpoint = checkpoints.latest(self.writer.path, self.view.say)
        step, validated, kept = -1, -1, 0.0
        if self.checkpoint is not None:
            state = json.loads((self.checkpoint / "run.json").read_text())
            step, validated = int(state["version"]), state["last_validation"]
            kept = float(state["ledger"]["device_seconds"])
        past = self.writer.last("steps")
        spent = 0.0 if past is None else float(past["ledger"]["device_seconds"])
        self.writer.cut_after("steps", step)
        self.writer.cut_after("evals", -1 if validated is None else validated)
        again = "" if step >= 0 else " (no checkpoint yet: from the start)"
        self.view.say(f"resuming at step {max(step, 0)}{again}")
        self._event("resume", max(step, 0), lost_device_seconds=max(spent - kept, 0.0))
        return step

    def _attempt(self, step: int | None) -> Ended:
        from scalerl.pipeline.loop import Hooks, Loop
        from scalerl.pipeline.plan import Plan

        plan = Plan.of(self.recipe)
        self.view.begin(self.recipe, self.writer.path, step)
        for record in self.writer.read("evals"):
            self._add(record)
        hooks = Hooks(on_step=self._stepped, on_eval=self._evaluated, say=self.view.say)
        checkpoint = self.checkpoint if step is not None else None
        with Loop(plan, self.writer, hooks, checkpoint=checkpoint) as loop:
            # Events are never cut: they know of every loss since the beginning.
            past = [e.get("lost_device_seconds", 0.0) for e in self.writer.read("events")]
            loop.ledger.lost_device_seconds = sum(past)
            with _signals(loop) as caught:
                outcome = self._run(loop, caught)
        return self._ended(outcome, caught[0] if caught else None)

    def _run(self, loop: Loop, caught: list[int]) -> Outcome:
        """To the end, and a checkpoint there; a loss after a signal does not start it again."""
        from scalerl.pipeline.loop import Outcome
        from scalerl.pipeline.placement import Lost

        try:
            outcome = loop.run()
            if loop.started and not (caught and self.recipe.placement.deterministic):
                loop.save()
        except Lost as lost:
            if not caught:
                raise
            self.view.say(f"warning: {lost}: the last checkpoint stands")
            outcome = Outcome(INTERRUPTED, loop.version, loop.ledger.compute())
        return outcome

    def _stepped(self, record: dict[str, Any]) -> None:
        self.trackers.step(record)
        self.view.step(record)

    def _evaluated(self, record: dict[str, Any]) -> str | None:
        """Fit the run's own curve; the rule may end the run."""
        self._add(record)
        look = self.curve.look(self._end(record["compute"]), self.rule)
        self.trackers.evaluated(record, None if look is None else look.numbers)
        self.view.evaluated(record, look)
        return None if look is None or look.reason is None else f"stop rule: {look.reason}"

    def _end(self, compute: dict[str, float]) -> float | None:
        """Compute at which the budget will be used up, if each unit of it goes on buying what it
        bought so far."""
        budget, where = self.recipe.budget, self.recipe.placement
        minutes = compute["device_hours"] * 60.0 / (where.generators + 1)
        used = [
            spent / limit
            for spent, limit in (
                (compute["steps"], budget.steps),
                (compute["device_hours"], budget.gpu_hours),
                (minutes, budget.minutes),
            )
            if limit is not None
        ]
        share = max(used, default=0.0)
        return compute[self.axis] / min(share, 1.0) if share > 0 else None

    def _add(self, record: dict[str, Any]) -> None:
        self.curve.add(record["step"], record["compute"][self.axis], record["pass_rate"])

    def _event(self, event: str, step: int, **more: Any) -> None:
        self.writer.append("events", {"step": step, "event": event, **more})

    def _ended(self, outcome: Outcome, caught: int | None) -> Ended:
        from scalerl.pipeline import checkpoints

        self._event("end", outcome.steps, reason=outcome.reason)
        healthy = checkpoints.last_healthy(self.writer.path)
        newest = checkpoints.found(self.writer.path)
        if healthy is not None and newest and healthy != newest[-1]:
            self.view.say(f"the last healthy checkpoint is {healthy}")
        self.view.end(outcome.reason)
        return Ended(outcome.reason, outcome.steps, outcome.compute, caught)


@contextmanager
def _signals(loop: Loop) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM (as clusters send it before they kill) end the run with a checkpoint; a
    second one ends it at once."""
    caught: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        loop.stop(INTERRUPTED)

    before: dict[int, Any] = {}
    try:
        for one in (signal.SIGINT, signal.SIGTERM):
            before[one] = signal.signal(one, stop)
    except ValueError:  # not the main thread: signals are somebody else's affair
        pass
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
