"""scalerl doctor: what is wrong with a run, and what to do about it."""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli import options
from scalerl.errors import InputError
from scalerl.runs import commands

if TYPE_CHECKING:
    from scalerl.processes import Process
    from scalerl.runs.compute import LedgerLine
    from scalerl.runs.lines import EventLine, Play, Status, StepLine

#: Latest steps; the median of their times is the usual time of a step.
USUAL = 20
#: status.json is written every second; beyond this age the main process does something else.
OLD_STATUS = 30.0
#: A run is stuck when a step takes this many times as long as usual,
LONG = 20.0
#: and at least this many seconds, so that a pause of seconds is none for short steps.
LONG_SECONDS = 60.0
#: A checkpoint is written beside the old ones: room for so many is needed.
ROOM = 2
EVENTS = 5
#: Width of the column of labels; longer ones ("trainer rank 0") widen it.
MIN_LABEL = 12


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Say whether a run is healthy, finished, stuck or dead, from its record and its processes, "
        "and what to do. Exit code 0: healthy or finished; 1: something is wrong; 2: there is no "
        "run."
    )
    command.epilog = "Example: scalerl doctor runs/first"
    command.add_argument(
        "run", nargs="*", metavar="RUN", help="directory of a run; with --cluster: KEY=VALUE"
    )
    command.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="test a Ray cluster (auto, local, HOST:PORT): what it lacks, then a short run in "
        "which a generator is killed",
    )
    options.add_json(command)


def run(args: argparse.Namespace) -> int:
    if args.cluster is not None:
        return _try_cluster(args)
    if len(args.run) != 1:
        raise InputError("which run? for example: scalerl doctor runs/first")
    found = examine(Path(args.run[0]))
    diagnosis = diagnose(found)
    if args.json:
        options.print_json(found.to_dict() | diagnosis.to_dict())
    else:
        rows = [*describe(found), ("diagnosis", diagnosis.line)]
        rows += [("to do", line) for line in diagnosis.advice]
        width = max(MIN_LABEL, *(len(label) + 1 for label, _ in rows))
        for label, line in rows:
            print(f"{label:<{width}}{line}")
    return 0 if diagnosis.good else 1


def _try_cluster(args: argparse.Namespace) -> int:
    from scalerl.cli.cluster_check import check

    found = check(args.cluster, args.run)
    if args.json:
        options.print_json({f.what: {"good": f.good, "line": f.line} for f in found})
    else:
        for finding in found:
            print(f"{finding.what:<12}{'ok' if finding.good else 'FAILED':<8}{finding.line}")
    return 0 if all(f.good for f in found) else 1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """In one word, in one line, and what to do."""

    state: str
    line: str
    advice: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return self.state in ("healthy", "finished")

    def to_dict(self) -> dict[str, Any]:
        return {"state": self.state, "verdict": self.line, "to_do": list(self.advice)}


@dataclass(slots=True)
class Findings:
    """What a run's directory and processes show. Times are ages in seconds."""

    path: Path
    locked: bool
    status: Status | None = None
    status_age: float | None = None
    processes: list[Process] = field(default_factory=list)
    step: int = 0
    step_age: float | None = None
    #: What a step usually takes.
    pace: float | None = None
    #: Where compute went so far.
    ledger: LedgerLine | None = None
    #: What the episodes of the last step did; None where all have one turn.
    play: Play | None = None
    #: Share of the latest rollouts that could not be scored, and why, commonest first.
    unscored: float = 0.0
    unscored_why: dict[str, int] = field(default_factory=dict)
    #: Validations that are no points of the curve: step and why.
    failed_validations: dict[int, str] = field(default_factory=dict)
    #: The latest.
    events: list[EventLine] = field(default_factory=list)
    checkpoint: int | None = None
    #: The newest that was written without an alarm.
    healthy: int | None = None
    #: Step and what is wrong with it.
    damaged: dict[int, str] = field(default_factory=dict)
    free: int = 0
    #: Of the newest checkpoint.
    checkpoint_size: int = 0
    #: A checkpoint is being written just now (or was, when the run died).
    saving: bool = False

    @property
    def main(self) -> Process | None:
        return next((p for p in self.processes if p.name == "main"), None)

    @property
    def workers(self) -> list[Process]:
        return [p for p in self.processes if p.name != "main"]

    @property
    def scorer(self) -> str:
        """What scores the answers."""
        return "verifier" if self.play is None else "environment"

    @property
    def waits_for(self) -> str:
        return (self.status.waits_for if self.status else "") or "nothing"

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "locked": self.locked,
            "processes": [asdict(p) for p in self.processes],
            "status_age": self.status_age,
            "waits_for": self.status.waits_for if self.status else None,
            "groups": _groups(self.status) if self.status else None,
            "step": self.step,
            "step_age": self.step_age,
            "seconds_per_step": self.pace,
            "device_seconds": None if self.ledger is None else self.ledger.by_kind,
            "play": None if self.play is None else self.play.to_dict(),
            "unscored": self.unscored,
            "unscored_why": self.unscored_why,
            "failed_validations": {str(k): v for k, v in self.failed_validations.items()},
            "events": [e.to_dict() for e in self.events],
            "checkpoint": self.checkpoint,
            "healthy_checkpoint": self.healthy,
            "damaged": {str(k): v for k, v in self.damaged.items()},
            "free_bytes": self.free,
        }


# -- looking --------------------------------------------------------------------------------------


def examine(path: Path) -> Findings:
    """Look at everything; change nothing."""
    from scalerl.processes import sample_processes
    from scalerl.runs.lines import EvalLine, EventLine, Status, StepLine
    from scalerl.runs.lock import is_locked
    from scalerl.runs.store import RunStore

    if not any((path / name).exists() for name in ("recipe.toml", "steps.jsonl", "evals.jsonl")):
        raise InputError(f"{path} holds no run: give the directory that --out named")
    found = Findings(path, is_locked(path), free=shutil.disk_usage(path).free)
    store = RunStore(path, resume=True)
    found.status = store.read_status()
    found.status_age = _age(path / Status.FILE)
    if found.status is not None:
        found.processes = sample_processes(
            {n: pid for n, pid in found.status.pids.items() if pid > 0}
        )
    # One more line, for USUAL times between lines.
    steps = store.tail(StepLine, USUAL + 1)
    if steps:
        found.step, found.step_age = steps[-1].step, _age(path / StepLine.FILE)
        found.pace, found.ledger = _pace(steps), steps[-1].ledger
        found.play = steps[-1].play
        _unscored(found, steps)
    for line in store.read(EvalLine):
        if line.failed is not None:
            found.failed_validations[line.step] = line.failed
    found.events = store.tail(EventLine, EVENTS)
    _checkpoints(found)
    return found


def _age(path: Path) -> float | None:
    try:
        # The clock may have been set back since.
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return None


def _pace(steps: list[StepLine]) -> float | None:
    """Median seconds between the latest steps, by the run's own clock."""
    between = [60.0 * (b.compute.minutes - a.compute.minutes) for a, b in pairwise(steps)]
    usual = statistics.median(between) if between else 0.0
    return usual if usual > 0 else None


def _unscored(found: Findings, steps: list[StepLine]) -> None:
    rollouts = sum(s.filtered.rollouts for s in steps)
    found.unscored = sum(s.filtered.unscored for s in steps) / max(rollouts, 1)
    whys: Counter[str] = Counter()
    for step in steps:
        whys.update(step.unscored_why or {})
    found.unscored_why = dict(whys.most_common())


def _checkpoints(found: Findings) -> None:
    from scalerl.pipeline import checkpoints

    found.saving = any(checkpoints.folder_of(found.path).glob("step_*.tmp"))
    healthy = checkpoints.last_healthy(found.path)
    found.healthy = None if healthy is None else checkpoints.step_of(healthy)
    # Newest first, as a resume looks for one; older ones are not read.
    for path in reversed(checkpoints.list_checkpoints(found.path)):
        wrong = checkpoints.find_damage(path)
        if wrong is None:
            found.checkpoint = checkpoints.step_of(path)
            found.checkpoint_size = sum(p.stat().st_size for p in path.iterdir() if p.is_file())
            return
        found.damaged[checkpoints.step_of(path)] = wrong


# -- judging --------------------------------------------------------------------------------------


def diagnose(found: Findings) -> Diagnosis:
    """The gravest thing that is wrong; what is merely worth knowing goes into the advice."""
    first = next(_alive(found) if found.locked else _ended(found))
    return Diagnosis(first.state, first.line, (*first.advice, *_notes(found)))


def _alive(f: Findings) -> Iterator[Diagnosis]:
    """Diagnoses of a run with a held lock, the most serious first."""
    main, age, status = f.main, f.status_age, f.status
    if main is not None and main.stopped:
        yield Diagnosis("stuck", f"the main process {main.pid} is {main.state}",
                        (f"kill -CONT {main.pid}",))  # fmt: skip
    for p in f.workers:
        if p.stopped:
            yield Diagnosis("stuck", f"{p.name} is {p.state}", (
                f"kill -CONT {p.pid}; left alone, it is replaced after placement.patience seconds",
            ))  # fmt: skip
    if main is None or age is None or status is None:
        yield Diagnosis("healthy", "the run is starting: no status yet")
        return
    if age > OLD_STATUS and f.saving:
        yield Diagnosis("healthy", f"a checkpoint is being written, for {age:.0f} s now")
    if age > OLD_STATUS:
        doing = "a slow disk, or too little memory" if (main.cpu or 0) < 0.5 else "busy itself"
        yield Diagnosis("stuck", f"the main process has left no status for {age:.0f} s: {doing}", (
            f"kill -INT {main.pid}, and if that does not help kill -9 {main.pid}",
            f"then {commands.resume(f.path)}",
        ))  # fmt: skip
    for p in f.workers:
        if not p.alive:
            yield Diagnosis("wrong", f"{p.name} (process {p.pid}) is gone; the run is about to "
                            "replace it or to go back to its last checkpoint",
                            ("look again in a minute",))  # fmt: skip
    waits = f.waits_for
    limit = max(LONG_SECONDS, LONG * (f.pace or 0.0))
    if status.stopping:
        yield Diagnosis("healthy", f"the run is ending, with a checkpoint; it waits for {waits}",
                        (f"kill -INT {main.pid} once more ends it at once",))  # fmt: skip
    if status.starting or f.step == 0:
        yield Diagnosis("healthy", f"the run is starting; it waits for {waits}")
    if f.step_age is not None and f.step_age > limit:
        yield Diagnosis("stuck", f"no step for {f.step_age:.0f} s, usually {f.pace or 0:.1f} s; "
                        f"the run waits for {waits}", (
            "the silence of each process is in status.json; placement.patience bounds it",
        ))  # fmt: skip
    yield Diagnosis("healthy", f"the run is training; it waits for {waits}")


def _ended(f: Findings) -> Iterator[Diagnosis]:
    """Diagnoses of a run that no process writes, the most serious first."""
    left = [p for p in f.workers if p.alive]
    again = commands.resume(f.path)
    if left:
        pids = " ".join(str(p.pid) for p in left)
        yield Diagnosis("wrong", f"the main process is gone, but {left[0].name} is left",
                        (f"kill {pids}", again))  # fmt: skip
    last = f.events[-1] if f.events else None
    if last is not None and last.event == "end":
        reason = last.reason or ""
        # An interrupted run has budget left; another one is ready for its report.
        advice = (again,) if reason.startswith("interrupted") else (commands.report(f.path),)
        yield Diagnosis("finished", f"ended at step {last.step}: {reason}", advice)
    if last is not None and last.event == "failed":
        yield Diagnosis("failed", f"failed at step {last.step}: {last.why or ''}",
                        (f"fix that, then {again}", *_earlier(f)))  # fmt: skip
    since = "start again: there is no complete checkpoint"
    if f.checkpoint is not None:
        since = f"continue from step {f.checkpoint}"
    yield Diagnosis("dead", f"the run died at step {f.step} without an error (killed, or out of "
                    "memory: see dmesg)", (f"{since}: {again}",))  # fmt: skip


def _earlier(f: Findings) -> Iterator[str]:
    """Back to before the trouble, where a checkpoint of that time is left."""
    if f.healthy is not None and f.healthy != f.checkpoint:
        yield f"or, from the last healthy checkpoint: {commands.resume(f.path, step=f.healthy)}"


def _notes(f: Findings) -> Iterator[str]:
    if f.unscored > 0:
        why = next(iter(f.unscored_why), f"see the task's {f.scorer}")
        yield (
            f"repair the {f.scorer}: {f.unscored:.0%} of the latest rollouts have no score ({why})"
        )
    for step, why in list(f.failed_validations.items())[-1:]:
        many = len(f.failed_validations)
        yield (
            f"repair the {f.scorer}: {many} validation{'s' * (many > 1)} failed, the latest at "
            f"step {step} ({why}); the curve is without {'them' if many > 1 else 'it'}"
        )
    for step, wrong in f.damaged.items():
        yield f"checkpoint step_{step} is damaged ({wrong}): a resume passes it over"
    if f.checkpoint_size and f.free < ROOM * f.checkpoint_size:
        yield (
            f"free some disk: {size_text(f.free)} are left, a checkpoint takes "
            f"{size_text(f.checkpoint_size)}"
        )


# -- words ----------------------------------------------------------------------------------------


def describe(f: Findings) -> Iterator[tuple[str, str]]:
    """(label, line) of everything that was found."""
    yield "run", str(f.path)
    yield (
        "lock",
        "held: a process is writing the run" if f.locked else "free: no process is writing it",
    )
    silent = f.status.silent_seconds if f.status is not None and f.locked else {}
    # The processes of a run that has ended are gone: only one that is left is worth a line.
    for p in [p for p in f.processes if f.locked or p.alive]:
        cpu = "" if p.cpu is None else f", {p.cpu:.0%} of a core"
        quiet = silent.get(p.name)
        yield (
            p.name,
            f"process {p.pid} {p.state}{cpu}"
            + ("" if quiet is None else f", silent for {quiet} s"),
        )
    if f.status_age is not None:
        waits = f"; it waited for {f.status.waits_for}" if f.status and f.status.waits_for else ""
        yield "status", f"{f.status_age:.0f} s old{waits}"
    if f.status is not None:
        g = _groups(f.status)
        checking = "being checked" if f.play is None else "in their environments"
        yield (
            "groups",
            f"{g['writing']} being written, {g['checking']} {checking}, "
            f"{g['waiting']} waiting for the trainer",
        )
    if f.step_age is not None:
        pace = "" if f.pace is None else f" (usually one every {f.pace:.1f} s)"
        yield "step", f"{f.step}, {f.step_age:.0f} s ago{pace}"
    if f.play is not None:
        from scalerl.cli.view import play_fields

        said = ", ".join(f"{label} {value}" for label, value in play_fields(f.play))
        yield "episodes", f"means of the last step: {said}"
    if f.ledger is not None and f.ledger.device_seconds > 0:
        yield "compute", _compute(f.ledger)
    for why, count in f.unscored_why.items():
        yield "unscored", f"{count} of the latest rollouts: {why}"
    for step, why in f.failed_validations.items():
        yield "validation", f"failed at step {step}: {why}"
    whole = "none" if f.checkpoint is None else f"step_{f.checkpoint}"
    yield "checkpoint", f"newest complete one: {whole}"
    yield "disk", f"{size_text(f.free)} free"
    for e in f.events:
        yield "event", f"step {e.step}: {e.event} {e.why or e.reason or ''}".rstrip()


def _compute(ledger: LedgerLine) -> str:
    """Device-hours by kind of device, and how much of them was idle or lost."""
    kinds = ledger.by_kind or {"devices": ledger.device_seconds}
    hours = ", ".join(f"{seconds / 3600:.3g} h of {kind}" for kind, seconds in kinds.items())
    idle = (ledger.spent.generate_wait + ledger.spent.train_wait) / ledger.device_seconds
    lost = ledger.lost_device_seconds / 3600
    return f"{hours}; {max(idle, 0.0):.0%} idle" + (f"; {lost:.3g} h lost" if lost else "")


def _groups(status: Status) -> dict[str, int]:
    """Where the groups are that no step has learnt from yet."""
    rest = status.under_way - status.writing - status.checking
    return {"writing": status.writing, "checking": status.checking, "waiting": max(rest, 0)}


def size_text(size: float) -> str:
    """Bytes in words.

    >>> size_text(1_500_000)
    '2 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
