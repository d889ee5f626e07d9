"""Trackers that a run writes to in addition to its own record: TensorBoard, W&B, trackio.

The run directory is complete without them. So a tracker that cannot start is an error before any
compute is spent, and one that fails later is switched off with a warning: it does not end the run.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from scalerl.errors import InputError
from scalerl.registry import Registry
from scalerl.runs.lines import EvalLine, Line, StepLine
from scalerl.runs.listener import Listener
from scalerl.runs.table import flatten
from scalerl.text import one_line

if TYPE_CHECKING:
    from scalerl.curves.live import LiveForecast

#: Project under which W&B and trackio file the run, unless WANDB_PROJECT says otherwise.
PROJECT = "scalerl"
#: File in the run directory with the id of the W&B run, which a resume continues.
WANDB_ID = "wandb_id.txt"
#: A killed run loses at most this many seconds of TensorBoard's buffer.
FLUSH_SECONDS = 10


class Tracker(Protocol):
    """One tracking library. `Trackers` catches every exception that it raises."""

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


#: Makes one from the run directory, the run's name, its recipe, and whether it goes on.
MakeTracker = Callable[[Path, str, dict[str, Any], bool], Tracker]
#: One of your own: `@TRACKERS.register("mine")`, or `--track package.module:Class`.
TRACKERS: Registry[MakeTracker] = Registry("tracker")
#: Trackers that need the library of the same name.
LIBRARIES = ("tensorboard", "wandb", "trackio")


class Trackers(Listener):
    """Sends the lines of a run to every tracker that still works. Use it as a context manager: its
    exit writes what is buffered, however the run ends."""

    def __init__(self, trackers: Mapping[str, Tracker], say: Callable[[str], None]) -> None:
        self._trackers = dict(trackers)
        self._warn = say

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def working(self) -> tuple[str, ...]:
        """Names of the trackers that have not failed."""
        return tuple(self._trackers)

    def step(self, line: StepLine) -> None:
        """Log the numbers of a step."""
        self._log(line.step, _under("train", line))

    def evaluated(self, line: EvalLine, look: LiveForecast | None) -> None:
        """Log the numbers of a validation and of the forecast after it."""
        self._log(line.step, _under("eval", line) | _scalars({} if look is None else look.numbers))

    def close(self) -> None:
        """Write what is buffered and stop; a second call does nothing."""
        for name in self.working:
            self._guarded(name, lambda tracker: tracker.close())
        self._trackers = {}

    def _log(self, step: int, values: dict[str, float]) -> None:
        for name in self.working:
            self._guarded(name, lambda tracker: tracker.log(step, values))

    def _guarded(self, name: str, use: Callable[[Tracker], None]) -> None:
        tracker = self._trackers[name]
        try:
            use(tracker)
        except Exception as error:
            del self._trackers[name]
            self._warn(f"warning: {name} failed and is switched off: {_reason(error)}")
            with contextlib.suppress(Exception):
                tracker.close()


def open_trackers(
    names: Sequence[str],
    out: Path,
    name: str,
    config: Mapping[str, Any],
    *,
    resume: bool,
    say: Callable[[str], None] = print,
) -> Trackers:
    """Start the trackers of these names, each writing inside the run directory `out`.

    `config` is the resolved recipe as nested dicts. Call this before a live view takes the
    terminal: W&B may ask for a key there.

    >>> open_trackers(["tensorbord"], Path("run"), "run", {}, resume=False)
    Traceback (most recent call last):
    scalerl.errors.InputError: no tracker 'tensorbord': did you mean 'tensorboard'?
    """
    # Every name is checked before the first tracker starts, so that a typo leaves no empty run.
    wanted = {each: _found(each) for each in names}
    opened: dict[str, Tracker] = {}
    for each, make in wanted.items():
        try:
            opened[each] = make(Path(out), name, dict(config), resume)
        except Exception as error:
            Trackers(opened, say).close()
            raise InputError(
                f"{each} does not start: {_reason(error)}; put it right or leave out --track {each}"
            ) from error
    return Trackers(opened, say)


def _found(name: str) -> MakeTracker:
    make = TRACKERS[name]
    if name in LIBRARIES and find_spec(name) is None:
        raise InputError(f"--track {name} needs {name}: pip install 'scalerl[{name}]'")
    return make


def _reason(error: Exception) -> str:
    return one_line(str(error), 200) or type(error).__name__


# -- names ----------------------------------------------------------------------------------------


def _under(prefix: str, line: Line) -> dict[str, float]:
    """The numbers of a line under a prefix; compute keeps a name of its own, as an x axis that
    both kinds of line share."""
    own = line.to_dict()
    del own["step"]
    own.pop("unscored_why", None)  # its names are sentences
    compute = own.pop("compute")
    if "ledger" in own:
        own["ledger"] = {k: v for k, v in own["ledger"].items() if k not in compute}
    return _scalars({prefix: own, "compute": compute})


def _scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers only: a chart has no use for the rest.

    >>> _scalars({"staleness": {"max": 2, "mean": None}, "note": "text"})
    {'staleness/max': 2.0}
    """
    found = {}
    for name, value in flatten(values):
        if isinstance(value, int | float) and math.isfinite(value):
            found[name] = float(value)
    return found


# -- the libraries --------------------------------------------------------------------------------


@TRACKERS.register("tensorboard")
class TensorBoard:
    """TensorBoard's own event writer, which needs neither torch nor TensorFlow."""

    def __init__(self, out: Path, name: str, config: dict[str, Any], resume: bool) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._purge = resume
        self._writer = EventFileWriter(str(out / "tensorboard"), flush_secs=FLUSH_SECONDS)

    def log(self, step: int, values: dict[str, float]) -> None:
        if self._purge:
            # Tells TensorBoard to forget what an earlier part of the run wrote from here on.
            self._purge = False
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._add(step, session_log=start)
        pairs = [self._summary.Summary.Value(tag=k, simple_value=v) for k, v in values.items()]
        self._add(step, summary=self._summary.Summary(value=pairs))

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, **content))

    def close(self) -> None:
        self._writer.close()


@TRACKERS.register("wandb")
class WandB:
    """A W&B run in `out/wandb`; WANDB_MODE=offline and the other variables hold as ever."""

    def __init__(self, out: Path, name: str, config: dict[str, Any], resume: bool) -> None:
        import wandb

        kept = out / WANDB_ID
        identity = kept.read_text().strip() if resume and kept.exists() else None
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            config=config,
            dir=str(out),
            id=identity,
            resume="allow" if identity else None,
            # Captured output would hold every redrawing of the live view.
            settings=wandb.Settings(console="off", quiet=True),
        )
        kept.write_text(self._run.id + "\n")
        for axis in ("step", "compute/*"):
            self._run.define_metric(axis)
        self._run.define_metric("train/*", step_metric="step")
        for curve in ("eval/*", "forecast/*"):
            self._run.define_metric(curve, step_metric="compute/device_hours")

    def log(self, step: int, values: dict[str, float]) -> None:
        # Not as W&B's own step: it would drop a validation that comes in after later steps.
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


@TRACKERS.register("trackio")
class Trackio:
    """A trackio project in `out/trackio`, read with `TRACKIO_DIR=out/trackio trackio show`.

    trackio reads its directory once, when it is imported: a second run in the same process lands
    in the directory of the first, under its own name.
    """

    def __init__(self, out: Path, name: str, config: dict[str, Any], resume: bool) -> None:
        os.environ.setdefault("TRACKIO_DIR", str((out / "trackio").resolve()))
        import trackio

        self._trackio = trackio
        # It prints where to find its page, which would disturb the live view.
        with contextlib.redirect_stdout(io.StringIO()):
            self._run = trackio.init(
                project=PROJECT,
                name=name,
                config=config,
                resume="allow" if resume else "never",
                embed=False,
            )

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()
            # Else it would finish the run once more when the process ends, and print that.
            with contextlib.suppress(RuntimeError):
                self._trackio.finish()
