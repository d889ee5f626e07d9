"""What `scalerl study` prints: the dry run, the progress, the tables."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Self

from scalerl.cli.view import can_draw
from scalerl.report.dose_words import force_text
from scalerl.report.table import ReportTable, columns
from scalerl.report.table import row as table_row
from scalerl.report.terminal import WIDTH, wrap
from scalerl.report.words import cell_text
from scalerl.report.words import compute as amount
from scalerl.study.columns import COLUMNS, Column, columns_in
from scalerl.study.knobs import Knob
from scalerl.study.running import StudyEnd, StudyListener, StudyProgress
from scalerl.study.table import StudyRow
from scalerl.text import clock_text, shorten

if TYPE_CHECKING:
    from scalerl.study.race import RaceState
    from scalerl.study.study import Study

#: Longest name of a variant that is shown whole.
NAME = 28
#: Characters of a name that are left however narrow the table is.
MIN_NAME = 12
#: Seconds between two lines of progress in a log.
PROGRESS_EVERY = 30.0
#: Columns with their interval, and columns with their first note: others would not fit in a line.
WITH_INTERVAL = ("A", "paired", "target")
WITH_NOTE = ("target", "crossing")
#: Columns of the comparison with the reference that fit in a line.
PAIRWISE = ("paired", "target", "crossing")
#: Headings of columns that a narrow terminal does without, in the order in which they go. What
#: became unstable is said below the table as well.
DISPENSABLE = ("state", "half", "B", "C_mid")
#: Columns of the knob map.
KNOBS = ("change", "ceiling difference", "compute to one score", "moves")
#: Validations from which a forecast at half the compute can be checked: fewer leave too few points
#: in either half (`stability.MIN_FITTED`, `stability.MIN_HELD`).
ENOUGH_VALIDATIONS = 12


def make_view(plain: bool, to_stderr: bool) -> PlainStudyView:
    """The live panel where there is a terminal that can show it, else lines."""
    stream = sys.stderr if to_stderr else sys.stdout
    if plain or not can_draw(stream):
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

    def __exit__(self, *_: object) -> None:
        self.stream.flush()

    def begin(self, study: Study, jobs: int) -> None:
        self.say(f"study {study.path}: {size_text(study)}, {jobs} at once")

    def say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)

    def race(self, state: RaceState) -> None:
        # A race decides every few seconds: only a new reason is worth a line.
        if state.order and state.why != self._why:
            self._why = state.why
            self.say(f"race: {state}")

    def progress(self, progress: StudyProgress) -> None:
        now = time.monotonic()
        # The end, when nothing is running, is always reported.
        if not progress.running or now - self._said >= PROGRESS_EVERY:
            self._said = now
            self.say(progress_line(progress))


def size_text(study: Study) -> str:
    counts = sorted({study.definition.seeds_of(name) for name in study.variants})
    seeds = " or ".join(map(str, counts))
    many = f"{len(study.variants)} variants x {seeds} seed{'s' if counts[-1] > 1 else ''}"
    return f"{many} = {len(study.members)} runs"


def progress_line(progress: StudyProgress) -> str:
    left = "" if progress.left is None else f", {clock_text(progress.left)} left"
    names = ", ".join(f"{m.name} at {p.step}" for m, p in progress.running)
    return f"{progress.share:4.0%} in {clock_text(progress.elapsed)}{left}" + (
        f"; {names}" if names else ""
    )


def closing(study: Study, end: StudyEnd) -> str:
    """The table, what failed, and what to type next."""
    if study.force is not None:
        lines = [force_text(study.force_results())]
    else:
        rows = study.table()
        lines = [table_text(rows), pairwise_text(rows), knobs_text(study.knobs())]
    if study.definition.race:
        lines.append(wrap(str(study.race(closed=end.failed)), "  ", "race: "))
    for name, why in end.failed.items():
        lines.append(wrap(f"{name}: {why}", "  ", "failed: "))
    again = shlex.join(["scalerl", "study", str(study.path)])
    if end.signal is not None or end.failed:
        lines.append(f"to continue: {again}")
    return "\n".join(filter(None, lines))


# -- the table ------------------------------------------------------------------------------------


def table_text(rows: Sequence[StudyRow]) -> str:
    """One line per variant in at most WIDTH columns; below them the runs that became unstable, with
    the step and the rule."""
    head, body = fitting_columns(rows)
    lines = _aligned(head, body)
    for row in rows:
        for seed, found in row.stability.items():
            if found.rule is not None:
                lines.append(wrap(f"{row.variant}-s{seed} {found}", "  ", ""))
    return "\n".join(lines)


def fitting_columns(
    rows: Sequence[StudyRow], width: int = WIDTH, more: Mapping[str, Sequence[str]] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the table, without the columns that `width` has no room for. `more`
    are further columns, each with its cells."""
    found = {
        column.short: [short_cell(column, row) for row in rows] for column in columns_in("fit")
    } | dict(more or {})
    for name in DISPENSABLE:
        # Two spaces are between columns, none after the last.
        widths = [max(map(len, (head, *cells))) + 2 for head, cells in found.items()]
        if sum(widths) - 2 > width:
            found.pop(name, None)
    head = list(found)
    return head, [list(cells) for cells in zip(*found.values(), strict=True)]


def short_cell(column: Column, row: StudyRow) -> str:
    """A cell of the terminal's tables; "-" where it is empty."""
    if column.key == "variant":
        return shorten(row.variant, NAME)
    text = cell_text(column, row, interval=column.key in WITH_INTERVAL)
    notes = column.shown(row).notes[:1] if column.key in WITH_NOTE else ()
    if column.key == "stability" and text == "stable":
        return ""
    return ", ".join([text or "-", *notes])


def _aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: its headings, a rule, its cells. Names in the first column are shortened
    where the table would be wider than WIDTH."""
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    if excess > 0:
        widths[0] = max(widths[0] - excess, MIN_NAME)
    table = ReportTable("", columns(*head), [table_row(*cells) for cells in body])
    return table.to_text(widths, "  ").splitlines()


def pairwise_text(rows: Sequence[StudyRow]) -> str:
    """Each variant against the reference: on the same prompts, the compute to the target, where the
    curves cross; below it, where kinds of compute disagree. "" where there is nothing yet."""
    target = next((row.pairwise.target.score for row in rows if row.pairwise.target), None)
    if target is None:
        return ""
    shown = [COLUMNS[0], *(c for c in columns_in("pairwise") if c.key in PAIRWISE)]
    head = [column.short.replace("the target", f"{target:.3f}") for column in shown]
    lines = _aligned(head, [[short_cell(column, row) for column in shown] for row in rows])
    gains = sorted(row.paired.narrower for row in rows if row.paired is not None)
    if gains:
        note = (
            f"on the same prompts: intervals are {gains[len(gains) // 2]:.1f} times narrower than "
            "unpaired ones"
        )
        lines.append(wrap(note, "  ", ""))
    for row in rows:
        if row.pairwise.disagree is not None:
            lines.append(wrap(f"{row.variant} is {row.pairwise.disagree}", "  ", ""))
    return "\n" + "\n".join(lines)


def knobs_text(knobs: Sequence[Knob]) -> str:
    """The knob map as a table; "" where nothing can be compared yet."""
    if not knobs:
        return ""
    body = []
    for knob in knobs:
        low, high = knob.delta_a_interval
        speed = "-"
        if knob.compute_ratio is not None:
            first, ratio, last = knob.compute_ratio
            speed = f"x{ratio:.2f} [{first:.2f}, {last:.2f}]"
        sure = "" if knob.family_wise else "?"
        body.append((shorten(knob.variant, NAME), f"{knob.delta_a:+.3f} [{low:+.3f}, {high:+.3f}]",
                     speed, knob.region + sure))  # fmt: skip
    lines = _aligned(KNOBS, body)
    if any(not knob.family_wise for knob in knobs):
        note = (
            f"this verdict holds by itself, but not when all {len(knobs)} comparisons are "
            "corrected for (Holm)"
        )
        lines.append(wrap(note, "  ", "? "))
    return "\n" + "\n".join(lines)


# -- the dry run ----------------------------------------------------------------------------------


def dry_run_text(study: Study, jobs: int | None) -> str:
    """What `scalerl study --dry-run` prints."""
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
    if points is not None and points < ENOUGH_VALIDATIONS:
        few = (
            f"{points} validations in each run; to compare curves give {ENOUGH_VALIDATIONS} or "
            "more (validation.every)"
        )
        lines.append(wrap(few, "  ", "note: "))
    return "\n".join(lines)
