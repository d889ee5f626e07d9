"""The report of a study of a force: one page, its Markdown twin, its figure and its numbers."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.files import to_json_bytes
from scalerl.report import page, payload
from scalerl.report.blocks import Block, Bullets, Code, Figure, PageSection, Paragraph, Span
from scalerl.report.dose_figure import plot_force
from scalerl.report.dose_words import (
    contrast_words,
    interval_text,
    law_words,
    shown_contrasts,
    unstable_text,
)
from scalerl.report.html import KINDS, page_files, write_files
from scalerl.report.table import ReportTable, TableCell, columns, number_cell, row
from scalerl.report.theme import drawing, freeze_layout, render, svg_element
from scalerl.report.words import compute, shorten

if TYPE_CHECKING:
    from scalerl.study.dose_draws import Interval
    from scalerl.study.dose_results import CellResult, ForceResults
    from scalerl.study.study import Study

#: Characters of a line's name in a table.
NAME = 40
#: Columns of the table of cells.
HEAD = (
    "Line", "Dose", "Runs", "Pass rate at the end", "Ceiling A", "C_mid", "Unstable",
    "Effective sample size", "Truncated", "Training minus held-out",
)  # fmt: skip
HOW_TO_READ = (
    "A dose axis has the mildest dose first. The verdict of a line is the dose at which its level "
    "has fallen by .02 from that at the first dose, or from which on most of its runs are "
    "unstable, with a 90 % interval; levels are taken to fall or stay as the dose grows, and "
    "between two doses that were tried any response is possible. The level is the ceiling where "
    "the points of every dose identify it, else the mean of the last validations. Intervals "
    "include what a seed alone does. Unstable runs are in no level: they count in P(unstable), "
    "which has a Jeffreys interval; low effective sample sizes and truncation are not enough. "
    "Comparisons of two cells are for themselves alone, not corrected for their number."
)


def write_force_report(
    study: Study, out_dir: str | Path, title: str | None = None, command: str | None = None
) -> list[Path]:
    """Write report.html, report.md, report.json and the figure; the files written, the page
    first."""
    found = study.force_results()
    unstable = [f"{name} became unstable: {why}" for name, why in study.force_unstable().items()]
    again = shlex.join(["scalerl", "study", str(study.path), "--forces", found.force.name])
    return write_files(force_files(found, unstable, again, title, command), Path(out_dir))


def force_files(
    found: ForceResults,
    unstable: Sequence[str],
    again: str,
    title: str | None = None,
    command: str | None = None,
) -> dict[str, bytes]:
    """What `write_force_report` writes, by name, the page first."""
    heading = title or f"Force {found.force.name}"
    with drawing("light"):
        figure = freeze_layout(plot_force(found))
        content = {f"doses.{kind}": render(figure, kind) for kind in KINDS}
    numbers = {"title": heading, "command": command, "force": found.to_dict()}
    content["report.json"] = to_json_bytes(numbers, indent=1)
    verdicts, doses = force_parts(found, content["doses.svg"])
    blocks: list[Block] = [
        Paragraph(found.force.question, "lead"),
        *_claim(found),
        PageSection("Verdicts", verdicts, "verdicts"),
        PageSection("Doses", doses, "doses"),
        *_unstable(unstable),
        PageSection("Reproduce", [Code(again)], "again"),
        PageSection("How to read this", [Paragraph(HOW_TO_READ)], "read"),
        *page.command(command),
    ]
    return page_files(heading, blocks, payload.chart([], 0.9), content)


def force_parts(found: ForceResults, svg: bytes) -> tuple[list[Block], list[Block]]:
    """The verdicts, and the picture with the table of all cells; `svg` is that of `plot_force`."""
    about = f"Level, C_mid and share of unstable runs against {found.force.dose_key}"
    caption = (
        "Marks are medians, bars 90 % intervals. A bar at the foot of the upper axes covers the "
        "doses at which a line of its colour falls."
    )
    drawn = Figure(svg_element(svg, "doses", about), caption, about, "doses.png")
    return _verdicts(found), [drawn, _table(found)]


def _claim(found: ForceResults) -> list[Block]:
    if not found.force.claim:
        return []
    source = f" ({found.force.source})" if found.force.source else ""
    return [Paragraph(f"Claim: {found.force.claim}{source}.")]


def _verdicts(found: ForceResults) -> list[Block]:
    out: list[Block] = [
        Bullets(
            [[Span(shorten(line.name, NAME), "strong"), f": {line.words}"] for line in found.lines]
        )
    ]
    if found.law is not None:
        out.append(Paragraph(law_words(found)))
    said = [text for each in shown_contrasts(found) if (text := contrast_words(each))]
    if said:
        out.append(Bullets(said, "small"))
    return out


def _table(found: ForceResults) -> Block:
    rows = [
        row(
            shorten(line.name, NAME),
            TableCell(cell.cell.dose.label, number=cell.cell.dose.value),
            str(cell.runs),
            _number(cell.end),
            _ceiling(cell),
            _mid(cell),
            TableCell(unstable_text(cell), number=cell.unstable / max(cell.runs, 1)),
            *(_mean(cell, name) for name in ("ess", "truncated", "gap")),
        )
        for line in found.lines
        for cell in line.cells
    ]
    return ReportTable("Every line at every dose, with 90 % intervals", columns(*HEAD), rows)


def _number(ends: Interval | None) -> TableCell:
    if ends is None:
        return TableCell(number=math.nan)
    return number_cell(ends[1], (ends[0], ends[2]), "{:.3f}".format)


def _ceiling(cell: CellResult) -> TableCell:
    if cell.ceiling is None or cell.identified:
        return _number(cell.ceiling)
    return TableCell("open", interval_text(cell.ceiling), number=cell.ceiling[1])


def _mid(cell: CellResult) -> TableCell:
    if cell.c_mid is None:
        return TableCell(number=math.nan)
    return number_cell(cell.c_mid[1], (cell.c_mid[0], cell.c_mid[2]), compute)


def _mean(cell: CellResult, name: str) -> TableCell:
    value = cell.measured.get(name)
    return TableCell(number=math.nan) if value is None else TableCell(f"{value:.3f}", number=value)


def _unstable(said: Sequence[str]) -> list[Block]:
    return [PageSection("Unstable runs", [Bullets(said, "small")], "unstable")] if said else []
