"""What `scalerl study` shows: its plan, its progress, its table."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from scalerl.cli.throughput import clock_text
from scalerl.report.terminal import wrap
from scalerl.report.words import compute as amount
from scalerl.study.knobs import Knob
from scalerl.study.running import StudyEnd, StudyListener, StudyProgress
from scalerl.study.table import StudyRow, worst
from scalerl.text import shorten

if TYPE_CHECKING:
    from scalerl.study.race import RaceState
    from scalerl.study.study import Study

#: Longest name of a variant that is shown whole.
NAME = 28
#: Crossings less likely than this are not shown.
UNLIKELY = 0.05
#: Seconds between two lines of progress in a log.
EVERY = 30.0
#: Columns of the table; n: runs behind the numbers, half: forecasts at half that held.
HEAD = ("variant", "n", "A [90 %]", "B", "C_mid", "half", "verdict", "state")
#: Columns of the knob map.
KNOBS = ("knob", "ceiling, against the reference", "compute to one score", "moves")
#: Validations from which a forecast at half the compute can be checked.
ENOUGH = 12
#: Verdict → what is said of a variant that won against the reference, and of one that lost.
WORDS = {"higher-ceiling": ("higher", "lower"), "faster": ("faster", "slower")}


def make_view(plain: bool, to_stderr: bool) -> PlainStudyView:
    """The live panel where there is a terminal that can show it, else lines."""
    stream = sys.stderr if to_stderr else sys.stdout
    encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
    dumb = os.environ.get("TERM") == "dumb" or encoding != "utf8"
    if plain or dumb or stream is None or not stream.isatty():
        return PlainStudyView(stream)
    try:
        from rich.console import Console

        from scalerl.cli.study_live import LiveStudyView
    except ModuleNotFoundError:
        return PlainStudyView(stream)
    return LiveStudyView(Console(file=stream))


class PlainStudyView(StudyListener):
    """Lines for a log."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self._said, self._why = 0.0, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stream.flush()

    def begin(self, study: Study, jobs: int) -> None:
        self.say(f"study {study.path}: {size_text(study)}, {jobs} at once")

    def say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)

    def race(self, state: RaceState) -> None:
        if state.order and state.why != self._why:
            self._why = state.why
            self.say(f"race: {state}")

    def progress(self, progress: StudyProgress) -> None:
        now = time.monotonic()
        if not progress.running or now - self._said >= EVERY:
            self._said = now
            self.say(progress_line(progress))


def size_text(study: Study) -> str:
    seeds = study.definition.seeds
    many = f"{len(study.variants)} variants x {seeds} seed{'s' if seeds > 1 else ''}"
    return f"{many} = {len(study.members)} runs"


def progress_line(progress: StudyProgress) -> str:
    left = "" if progress.left is None else f", {clock_text(progress.left)} left"
    names = ", ".join(f"{m.name} at {p.step}" for m, p in progress.running)
    return f"{progress.share:4.0%} in {clock_text(progress.elapsed)}{left}" + (
        f"; {names}" if names else ""
    )


def closing(study: Study, end: StudyEnd) -> str:
    """The table, what failed, and what to type next."""
    rows = study.table()
    lines = [table_text(rows), pairwise_text(rows), knobs_text(study.knobs())]
    if study.definition.race:
        lines.append(wrap(str(study.race(closed=end.failed)), "  ", "race: "))
    for name, why in end.failed.items():
        lines.append(wrap(f"{name}: {why}", "  ", "failed: "))
    again = shlex.join(["scalerl", "study", str(study.path)])
    if end.signal is not None or end.failed:
        lines.append(f"to go on: {again}")
    return "\n".join(lines)


# -- the table ------------------------------------------------------------------------------------


def table_text(rows: Sequence[StudyRow]) -> str:
    """One row a variant; below it, what became unstable, when and by what rule."""
    body = [cells(row) for row in rows]
    widths = [max(len(line[i]) for line in (HEAD, *body)) for i in range(len(HEAD))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
             for line in (HEAD, *body)]  # fmt: skip
    lines.insert(1, "-" * max(map(len, lines)))
    for row in rows:
        for seed, found in row.stability.items():
            if found.rule is not None:
                lines.append(wrap(f"{row.variant}-s{seed} {found}", "  ", ""))
    return "\n".join(lines)


def knobs_text(knobs: Sequence[Knob]) -> str:
    """The knob map as a table; "" where nothing can be compared yet."""
    if not knobs:
        return ""
    body = []
    for knob in knobs:
        low, high = knob.delta_a_interval
        speed = "-"
        if knob.delta_log_compute is not None and knob.delta_log_compute_interval is not None:
            first, last = (math.exp(v) for v in knob.delta_log_compute_interval)
            speed = f"x{math.exp(knob.delta_log_compute):.2f} [{first:.2f}, {last:.2f}]"
        sure = "" if knob.family_wise else "?"
        body.append((shorten(knob.variant, NAME), f"{knob.delta_a:+.3f} [{low:+.3f}, {high:+.3f}]",
                     speed, knob.region + sure))  # fmt: skip
    widths = [max(len(line[i]) for line in (KNOBS, *body)) for i in range(len(KNOBS))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
             for line in (KNOBS, *body)]  # fmt: skip
    lines.insert(1, "-" * max(map(len, lines)))
    if any(not knob.family_wise for knob in knobs):
        note = f"holds for itself, but not with all {len(knobs)} comparisons allowed for (Holm)"
        lines.append(wrap(note, "  ", "? "))
    return "\n" + "\n".join(lines)


def cells(row: StudyRow) -> tuple[str, ...]:
    a, interval = row.estimates["A"], row.intervals["A"]
    ceiling = "-"
    if a is not None and interval is not None:
        low, high = interval
        ceiling = f"{a:.3f} " if row.identified else "open  "
        ceiling += f"[{low:.3f}, {high:.3f}]"
    held, checked = row.held
    state = worst(row.stability.values())
    return (
        shorten(row.variant, NAME),
        str(row.seeds),
        ceiling,
        "-" if row.estimates["B"] is None else f"{row.estimates['B']:.2f}",
        "-" if row.estimates["C_mid"] is None else amount(row.estimates["C_mid"]),
        f"{held}/{checked}" if checked else "-",
        _verdict(row),
        "" if state == "stable" else state,
    )


def _verdict(row: StudyRow) -> str:
    if row.verdict is None:
        return "-"
    if row.winner is not None:
        return WORDS[row.verdict][row.winner != row.variant]
    return row.verdict


# -- each variant against the reference ------------------------------------------------------------


def pairwise_text(rows: Sequence[StudyRow]) -> str:
    """Same prompts, compute to the target and crossing of every variant; what the axes disagree
    about below. "" where there is nothing."""
    target = next((row.pairwise.target.score for row in rows if row.pairwise.target), None)
    if target is None:
        return ""
    head = ("variant", "on the same prompts", f"compute to {target:.3f}", "crosses, P")
    body = [(shorten(row.variant, NAME), _paired(row), _target(row), _crossing(row))
            for row in rows]  # fmt: skip
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
             for line in (head, *body)]  # fmt: skip
    lines.insert(1, "-" * max(map(len, lines)))
    gains = sorted(row.paired.narrower for row in rows if row.paired is not None)
    if gains:
        note = f"same prompts: {gains[len(gains) // 2]:.1f} times narrower than unpaired"
        lines.append(wrap(note, "  ", ""))
    for row in rows:
        if row.pairwise.disagree is not None:
            lines.append(wrap(f"{row.variant} is {row.pairwise.disagree}", "  ", ""))
    return "\n" + "\n".join(lines)


def _paired(row: StudyRow) -> str:
    if row.paired is None:
        return "-"
    low, high = row.paired.interval
    return f"{row.paired.difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def _target(row: StudyRow) -> str:
    found = row.pairwise.target
    if found is None:
        return "-"
    if math.isinf(found.median):
        return f"not reached, P {found.probability:.2f}"
    return f"{amount(found.median)} [{amount(found.interval[0])}, {amount(found.interval[1])}]"


def _crossing(row: StudyRow) -> str:
    found = row.pairwise.crossing
    if found is None or found.at_all < UNLIKELY or found.compute is None:
        return "-"
    where = "far ahead" if math.isinf(found.compute) else f"at {amount(found.compute)}"
    return f"{where}, {found.at_all:.2f}"


# -- the dry run----------------------------------------------------------------------------------


def dry_run_text(study: Study, jobs: int | None) -> str:
    """What `--dry-run` prints."""
    plan: dict[str, Any] = study.dry_run_dict(jobs)
    limits = ", ".join(f"{v:g} {k}" for k, v in plan["budget"].items())
    screen = ", ".join(f"{v:g} {k}" for k, v in plan["screening"].items())
    lines = [
        f"{size_text(study)}; each {limits}"
        + (", at most: a race" if plan["race"] else "")
        + ("" if screen == limits or plan["race"] else f", screened at {screen}")
    ]
    width = min(max(map(len, study.variants)), NAME)
    for name in study.variants:
        # What is unset went with the choice that it was a constant of.
        set_to = {k: v for k, v in study.differs(name).items() if v is not None}
        text = ", ".join(f"{k}={v}" for k, v in set_to.items()) or "the reference"
        lines.append(wrap(text, " " * (width + 4), f"  {shorten(name, NAME):<{width}}  "))
    found = plan["compute"]
    spent = [f"{amount(found[k])} {word}" for k, word in (
        ("steps", "steps"), ("rollouts", "rollouts"), ("tokens", "tokens"), ("flops", "FLOPs"),
        ("device_hours", "device-hours")) if found[k] is not None]  # fmt: skip
    lines.append(wrap(", ".join(spent), "  ", "to do: "))
    if plan["hours"] is None:
        lines.append(wrap(f"{found['rate']}", "  ", "hours: "))
    else:
        clock = f"{plan['hours']:.2g}, {plan['jobs']} at once, start-up left out"
        lines.append(wrap(f"{clock} (rate: {found['rate']})", "  ", "hours: "))
    making = [model for model in plan["models"] if not model["there"]]
    if making:
        minutes = sum(model["minutes"] for model in making)
        names = ", ".join(model["path"] for model in making)
        lines.append(wrap(f"{names}: made first and once, about {minutes:.0f} minutes on an idle "
                          "core", "  ", "models: "))  # fmt: skip
    points = plan["validations"]
    if points is not None and points < ENOUGH:
        few = f"{points} validations in each run; to tell curves apart give {ENOUGH} or more"
        lines.append(wrap(f"{few} (validation.every)", "  ", "note: "))
    return "\n".join(lines)
