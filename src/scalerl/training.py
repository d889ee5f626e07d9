"""A whole run: the pipeline, its record, its forecast, and what happens when something breaks.

    from scalerl import Recipe, train

    ended = train(Recipe.load("scalerl", "tiny"), "runs/first")
    train(recipe_of("runs/first"), "runs/first", resume=True, from_step=20)

The loop replaces generators and checkers that die. When the trainer dies, the run goes back to its
last checkpoint and continues from there. A signal ends a run with a checkpoint; after any other end
too, `resume` continues from its record.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scalerl.curves.live import LiveCurve
from scalerl.curves.rules import StopRule, parse_rule
from scalerl.errors import InputError, PipelineError, is_out_of_memory
from scalerl.notebook import default_listener, evals_table, text
from scalerl.processes import stop_signals
from scalerl.recipe import Recipe
from scalerl.recipe.load import recipe_from
from scalerl.runs import commands
from scalerl.runs.compute import Compute, budget_use
from scalerl.runs.importers.run_directory import AXIS_COLUMNS
from scalerl.runs.interventions import interventions
from scalerl.runs.lines import (
    EpisodeLine,
    EvalLine,
    EventLine,
    StepLine,
    ValidationEpisodeLine,
)
from scalerl.runs.listener import DetachableListener, Listener, Listeners
from scalerl.runs.lock import RunLock
from scalerl.runs.store import RunStore, undo_new_run
from scalerl.runs.trackers import open_trackers
from scalerl.streams import survive_hangup

if TYPE_CHECKING:
    from scalerl.pipeline.crew import Clock, Crew, RenewableCrew
    from scalerl.pipeline.loop import Loop, LoopEnd
    from scalerl.pipeline.setup import RunSetup

#: Times that a run may lose its trainer without reaching a new checkpoint, after which it fails.
MAX_FAILURES = 3
#: Reason in the record of a run that a signal ended.
INTERRUPTED = "interrupted"
#: Validations before the first forecast.
MIN_POINTS = 5


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: what `train` returns.

    >>> RunEnd("budget of 5 steps", 5, Compute(steps=5)).to_dict()["reason"]
    'budget of 5 steps'
    """

    reason: str
    steps: int
    compute: Compute
    #: The signal that ended it early, or None.
    signal: int | None = None
    #: Directory of its record.
    path: str = field(default="", compare=False)
    #: Its last validation.
    validation: EvalLine | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "steps": self.steps,
            "compute": self.compute.to_dict(),
            "signal": self.signal,
            "path": self.path,
            "validation": None if self.validation is None else self.validation.to_dict(),
        }

    def _repr_html_(self) -> str:
        """The end, the last validation, and how to see more."""
        lines = [f"<b>{text(f'ended at step {self.steps}: {self.reason}')}</b>"]
        if self.path:
            lines.append(f"<code>{text(commands.report(self.path))}</code>")
            if self.signal is not None:
                lines.append(f"<code>{text(commands.resume(self.path))}</code>")
        evals = () if self.validation is None else (self.validation,)
        return f"<p>{'<br/>'.join(lines)}</p>" + evals_table(evals)


def train(
    recipe: Recipe | str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]],
    out: str | Path,
    *,
    resume: bool = False,
    from_step: int | Literal["healthy"] | None = None,
    stop_when: str | None = None,
    track: Sequence[str] = (),
    listener: Listener | None = None,
) -> RunEnd:
    """Run a recipe into a directory, or resume the run that is there. A recipe may be given by
    names as on the command line: `train(["scalerl", "tiny", "budget.steps=5"], "runs/first")`.

    resume     continue from the last checkpoint; fields of the recipe that differ from the run's
               are recorded (`scalerl.recipe.diff` says which may)
    from_step  with resume: continue from the checkpoint of this step, or the last `healthy` one;
               the old record is kept in `branches/N`
    stop_when  a rule such as "gain < 0.01 per doubling", applied after every validation
    track      trackers to log to: "tensorboard", "wandb", "trackio"
    listener   gets the events of the run; by default none, or in a notebook a live view

    Needs `if __name__ == "__main__":` around it in a script: it starts processes.
    """
    from scalerl.placement import forkserver
    from scalerl.placement.child import UNGUARDED, UnguardedScript

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # This is a worker that is being started, and has imported the script that calls `train`.
        # The exit code tells the main process; an exception would be lost in the fork server.
        os._exit(UNGUARDED)
    if find_spec("torch") is None:
        # Checked before the run's directory is made: the loop imports torch only later.
        raise InputError("training needs torch: pip install 'scalerl[train]'")
    # One thread per process: small matrix products on contended threads are many times slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    recipe = recipe_from(recipe).with_decay_fixed()
    if recipe.placement.backend == "local":
        forkserver.prepare()  # first, so that its imports run while this process sets up
    rule = None if stop_when is None else parse_rule(stop_when)
    path, listener = Path(out), listener or default_listener()
    undo = undo_new_run(path)
    store = RunStore(path, resume=resume)
    with RunLock(path):
        try:
            recipe = _open(store, recipe, listener, resume, from_step)
            name, config = path.resolve().name, recipe.to_dict()
            with open_trackers(
                track, path, name, config, resume=resume, say=listener.say
            ) as trackers:
                both = Listeners(trackers, listener)
                return RunAttempts(recipe, store, rule, both, resume).run()
        except InputError as error:
            if not resume:
                undo()  # after the trackers are closed, which still write
            if not isinstance(error, UnguardedScript):
                raise
            # A traceback of a script without a `main` would hide the one line that helps.
            raise SystemExit(f"scalerl: {error}") from None


def recipe_of(run: str | Path) -> Recipe:
    """The recipe that the run in this directory is resumed with."""
    from scalerl.pipeline import branches

    return branches.recipe_of(Path(run))


def _open(
    store: RunStore, recipe: Recipe, listener: Listener, resume: bool, from_step: int | str | None
) -> Recipe:
    """Prepare the directory of a run that starts or is resumed; the recipe that it uses."""
    from scalerl.pipeline import branches

    if from_step is not None and not resume:
        raise InputError("from_step continues an existing run: give resume=True as well")
    if not resume:
        branches.write_recipe(store, recipe)
        return recipe
    recipe = branches.with_saved_date(store, recipe)
    event = branches.prepare_resume(store, recipe, from_step)
    if event is not None:
        listener.noted(event)
        listener.say(f"resuming with a change: {event.why}")
    return recipe


def start_crew(
    recipe: Recipe, checkpoint: Path | None, survivors: tuple[RenewableCrew, Clock] | None = None
) -> tuple[RunSetup, Crew, Clock]:
    """Resolve a recipe and start its workers. `survivors` is the crew of an attempt that has lost
    its trainer: it gets another one, where its placement can do that."""
    from scalerl.pipeline.setup import RunSetup
    from scalerl.placement.registry import place

    setup = RunSetup.from_recipe(recipe)
    if survivors is not None:
        crew, clock = survivors
        if crew.restart_trainer(setup, checkpoint):
            return setup, crew, clock
        crew.stop(at_once=True)
    return setup, *place(setup, checkpoint)


class RunAttempts:
    """One run, over as many attempts as it takes: each starts from the last checkpoint. `start`
    makes the setup and the crew of each."""

    def __init__(
        self,
        recipe: Recipe,
        store: RunStore,
        rule: StopRule | None,
        listener: Listener,
        resume: bool,
        start: Callable[..., tuple[RunSetup, Crew, Clock]] = start_crew,
    ) -> None:
        self.start = start
        self.recipe, self.store, self.rule = recipe, store, rule
        #: Warnings that the loop is to record.
        self.notes: list[str] = []
        self.listener: Listener = DetachableListener(listener, self.notes.append)
        self.resume = resume
        self.checkpoint: Path | None = None
        #: The crew of an attempt that has lost its trainer, if it can continue with another one.
        self._survivors: tuple[RenewableCrew, Clock] | None = None
        kind = recipe.compute.axis
        self.axis = AXIS_COLUMNS[kind].removeprefix("compute/")
        self.curve = LiveCurve("pass_rate", kind, min_points=MIN_POINTS, warn=self._warn)

    def _note_hangup(self) -> None:
        self.notes.append("the terminal was closed (SIGHUP); the run goes on")

    def run(self) -> RunEnd:
        """Run to the end; an error is recorded, then raised."""
        try:
            with survive_hangup(self._note_hangup), _explain_out_of_memory():
                return self._attempts()
        except (PipelineError, InputError) as error:
            with suppress(InputError):  # the record may be the very thing that cannot be written
                self._record_notes(self._reached())
                self._event("failed", self._reached(), why=str(error))
                if self._reached():
                    again = commands.resume(self.store.path)
                    self.listener.say(f"once that is repaired, resume with: {again}")
            raise
        finally:
            if self._survivors is not None:
                self._survivors[0].stop(at_once=True)

    def _attempts(self) -> RunEnd:
        from scalerl.pipeline.crew import IrreplaceableWorkerLost, less_memory

        failures, reached = 0, -1
        while True:
            step = self._rewind()
            failures = 1 if step > reached else failures + 1
            reached = step
            try:
                # After a second loss at the same checkpoint, all workers are started anew: any of
                # them may be the cause.
                return self._attempt(None if step < 0 else step, keep=failures == 1)
            except IrreplaceableWorkerLost as lost:
                if failures >= MAX_FAILURES:
                    raise PipelineError(
                        f"{lost}; the run failed {failures} times without a new checkpoint; if it "
                        f"ran out of memory: {less_memory('trainer')}, then --resume"
                    ) from None
                self.listener.say(f"warning: {lost}: going back to the last checkpoint")
                self._event("lost", self._reached(), why=str(lost))
                self.resume = True

    def _reached(self) -> int:
        """The last step in the record."""
        last = self.store.last(StepLine)
        return 0 if last is None else last.step

    def _rewind(self) -> int:
        """Cut the record back to the newest undamaged checkpoint; its step, or -1 if there is
        none."""
        from scalerl.pipeline import checkpoints

        if not self.resume:
            return -1
        self.checkpoint = checkpoints.latest(self.store.path, self.listener.say)
        step, validated, kept = -1, None, 0.0
        if self.checkpoint is not None:
            state = json.loads((self.checkpoint / "run.json").read_text())
            step, validated = int(state["version"]), state["last_validation"]
            kept = float(state["ledger"]["device_seconds"])
        past = self.store.last(StepLine)
        spent = 0.0 if past is None else past.ledger.device_seconds
        for kind in (StepLine, EpisodeLine):
            self.store.cut_after(kind, step)
        for answers in (EvalLine, ValidationEpisodeLine):
            self.store.cut_after(answers, -1 if validated is None else validated)
        again = "" if step >= 0 else " (no checkpoint yet: from the start)"
        self.listener.say(f"resuming at step {max(step, 0)}{again}")
        self._event("resume", max(step, 0), lost_device_seconds=max(spent - kept, 0.0))
        return step

    def _attempt(self, step: int | None, *, keep: bool) -> RunEnd:
        from scalerl.pipeline import branches
        from scalerl.pipeline.crew import IrreplaceableWorkerLost, RenewableCrew
        from scalerl.pipeline.loop import Loop

        events = self.store.read(EventLine)
        self.curve.changed = tuple(step for step, _ in interventions(events))
        for line in self.store.read(EvalLine):
            self._add(line)
        checkpoint = self.checkpoint if step is not None else None
        setup, crew, clock = self._start(checkpoint)
        completed, self.recipe = setup.recipe != self.recipe, setup.recipe
        self.listener.begin(self.recipe, self.store.path, step)
        at_once = True
        caught: list[int] = []
        try:
            # The setup may have set the date that prompts contain: recorded before the first use.
            if completed:
                branches.write_recipe(self.store, setup.recipe)
            loop = Loop(
                setup, crew, clock, self.store, self.listener,
                checkpoint=checkpoint, stop_rule=self._evaluated,
            )  # fmt: skip
            # Events are never cut, unlike steps: they hold every loss since the beginning.
            past = [event.lost_device_seconds or 0.0 for event in events]
            loop.ledger.lost_device_seconds = sum(past)
            loop.recorder.notes = self.notes
            try:
                with stop_signals(lambda: loop.stop(INTERRUPTED)) as caught:
                    end = self._run(loop, caught)
            finally:
                self.recipe = loop.recipe  # the number of generators may have changed
            at_once = not loop.state.started
        except IrreplaceableWorkerLost as lost:
            if keep and lost.trainer and isinstance(crew, RenewableCrew):
                self._survivors = (crew, clock)
            raise
        finally:
            if self._survivors is None:
                crew.stop(at_once=at_once)
            setup.task.close()
        return self._ended(end, caught[0] if caught else None)

    def _start(self, checkpoint: Path | None) -> tuple[RunSetup, Crew, Clock]:
        if self._survivors is None:
            return self.start(self.recipe, checkpoint)
        survivors, self._survivors = self._survivors, None
        try:
            return self.start(self.recipe, checkpoint, survivors)
        except BaseException:
            survivors[0].stop(at_once=True)
            raise

    def _run(self, loop: Loop, caught: list[int]) -> LoopEnd:
        """Run the loop to its end and write a last checkpoint. A loss after a signal ends the run
        instead of starting another attempt."""
        from scalerl.pipeline.crew import IrreplaceableWorkerLost
        from scalerl.pipeline.loop import LoopEnd

        try:
            end = loop.run()
            # An interrupted deterministic run is in the middle of a round (`LockstepPace`).
            if loop.state.started and not (caught and loop.recipe.placement.deterministic):
                loop.save()
        except IrreplaceableWorkerLost as lost:
            if not caught:
                raise
            self.listener.say(f"warning: {lost}: the last checkpoint is the newest state")
            end = LoopEnd(INTERRUPTED, loop.state.version, loop.ledger.compute())
        return end

    def _evaluated(self, line: EvalLine) -> str | None:
        """Fit the run's curve; why the run ends, if the stop rule says so."""
        if not self._add(line):
            self.listener.evaluated(line, None)
            return None
        look = self.curve.forecast(self._budget_end(line.compute), self.rule)
        self.listener.evaluated(line, look)
        return None if look is None or look.reason is None else f"stop rule: {look.reason}"

    def _budget_end(self, compute: Compute) -> float | None:
        """Compute at which the budget will be used up, extrapolated from the share used so far."""
        use = budget_use(self.recipe.budget, compute)
        if use is None or use.share <= 0:
            return None
        return float(getattr(compute, self.axis)) / min(use.share, 1.0)

    def _add(self, line: EvalLine) -> bool:
        """Add a validation to the curve; False for one that failed, which is no point of it."""
        compute = float(getattr(line.compute, self.axis))
        return self.curve.add(line.step, compute, line.pass_rate, n_eval=line.n_eval)

    def _warn(self, line: str) -> None:
        self.listener.say(f"warning: {line}")

    def _event(self, event: Any, step: int, **more: Any) -> None:
        line = EventLine(step=step, event=event, **more)
        self.store.append(line)
        self.listener.noted(line)

    def _record_notes(self, step: int) -> None:
        """Record the warnings that the loop has not recorded before its end."""
        while self.notes:
            self._event("warning", step, why=self.notes.pop(0))

    def _ended(self, end: LoopEnd, caught: int | None) -> RunEnd:
        from scalerl.pipeline import checkpoints

        self._record_notes(end.steps)
        self._event("end", end.steps, reason=end.reason)
        healthy = checkpoints.last_healthy(self.store.path)
        newest = checkpoints.list_checkpoints(self.store.path)
        if healthy is not None and newest and healthy != newest[-1]:
            again = commands.resume(self.store.path, step="healthy")
            self.listener.say(
                f"the last healthy checkpoint is {healthy.name}; to resume from it: {again}"
            )
        if caught is not None:
            self.listener.say(f"to resume from here: {commands.resume(self.store.path)}")
        self.listener.end(end.reason)
        path, last = self.store.path, self.store.last(EvalLine)
        return RunEnd(end.reason, end.steps, end.compute, caught, str(path), last)


@contextmanager
def _explain_out_of_memory() -> Iterator[None]:
    """Turn an error of the main process that means "out of memory" into one line with advice."""
    from scalerl.pipeline.crew import less_memory

    try:
        yield
    except (PipelineError, InputError):
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        reason = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise PipelineError(
            f"the main process ran out of memory ({reason}): {less_memory('main')}, then --resume"
        ) from None
