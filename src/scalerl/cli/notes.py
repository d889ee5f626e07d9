"""What the reader took from the logs: which columns, and what it did to them, line by line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from scalerl.text import listed

if TYPE_CHECKING:
    from scalerl.runs.record import Run

#: So many lines of what the reader did are printed; `--json` has all.
MAX_NOTES = 12


def print_notes(runs: Sequence[Run]) -> None:
    """What the reader did to the logs, on stderr: what all runs share once, the rest by run."""
    from scalerl.report.terminal import wrap

    names_by_note: dict[str, list[str]] = {}
    for run in runs:
        for note in dict.fromkeys(run.notes):
            names_by_note.setdefault(note, []).append(run.name)
    lines = [
        note if len(names) == len(runs) else f"{listed(names, 2)}: {note}"
        for note, names in names_by_note.items()
    ]
    if len(lines) > MAX_NOTES:
        lines[MAX_NOTES:] = [f"{len(lines) - MAX_NOTES} more (--json has them)"]
    for line in lines:
        print(wrap(line, "  ", "note: "), file=sys.stderr)


def columns_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Which columns were taken as compute and as score, run by run, for `--json`."""
    return [
        {"run": r.name, "x": r.x_kind, "x_name": r.x_name, "y_name": r.y_name,
         "score_kind": r.score_kind, "notes": list(r.notes)}
        for r in runs
    ]  # fmt: skip


def print_columns(runs: Sequence[Run], file: TextIO | None = None) -> None:
    """The same in words, on stdout: one line for what all runs share, else one for each kind."""
    from scalerl.report.terminal import printable, wrap
    from scalerl.report.words import KIND

    compute = {
        r.name: f"{r.x_name} ({KIND[r.x_kind] if r.x_kind != 'unknown' else 'unit unknown'})"
        for r in runs
    }
    score = {
        r.name: r.y_name if r.score_kind == "unknown" else f"{r.y_name} ({r.score_kind})"
        for r in runs
    }
    if len(runs) > 1 and all(r.y_name == r.name for r in runs):
        score = {r.name: "the column of each run's name" for r in runs}
    for line in (*_by_value("compute", compute), *_by_value("score", score)):
        print(printable(wrap(line, "  ", "")), file=file)


def _by_value(title: str, of: dict[str, str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for run, value in of.items():
        names.setdefault(value, []).append(run)
    if len(names) == 1:
        return [f"{title}: {next(iter(names))}"]
    lines = [f"{title} of {listed(runs, 2)}: {value}" for value, runs in names.items()]
    if len(lines) > MAX_NOTES:
        lines[MAX_NOTES:] = [f"{title}: {len(lines) - MAX_NOTES} more (--json has them)"]
    return lines
