"""CSV and TSV: the delimiter is found, not asked for.

A row with a wrong number of fields is left out and noted; more than one such row in ten and the
file is refused. A last line without a line end is read and noted, since it may be cut off in
the middle of a number, which nothing in a CSV could tell.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers import FALLBACK, Importer, by_suffix
from scalerl.runs.importers.text_files import Lines, is_text
from scalerl.runs.limits import ImportLimits
from scalerl.runs.table import Table, to_float

#: Characters from which the delimiter is found: each of the four is tried on all of them.
MAX_SAMPLE = 1_000_000
#: What TensorBoard calls the CSV of one tag; a slash in the tag becomes an underscore.
_DOWNLOAD = re.compile(r"run-(.+)-tag-(.+)")
_DELIMITERS = (",", "\t", ";", "|")


def read_delimited(path: Path, name: str, some: Lines | None = None) -> Table:
    """The table in a CSV or TSV file, or in `some` of its lines, the header first."""
    lines = Lines(path) if some is None else some
    with closing(iter(lines)) as start:
        delimiter = _sniff(_sample(start))
    notes: list[str] = []
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    rows: list[list[str]] = []
    ragged: list[int] = []
    limits = ImportLimits.from_environment()
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if not header:
                limits.check_table(path, 1, len(row))
                header = _header(row, path)
            elif len(row) == len(header):
                rows.append(row)
            # A delimiter at the end of a line makes one more cell, an empty one.
            elif len(row) == len(header) + 1 and not row[-1].strip():
                rows.append(row[:-1])
            else:
                ragged.append(reader.line_num)
            limits.check_table(path, len(rows), len(header))
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}") from None
    if not header:
        raise InputError(f"{path}: the file is empty")
    if len(ragged) > max(1, (len(rows) + len(ragged)) // 10):
        raise InputError(
            f"{path}: line {ragged[0]} and {len(ragged) - 1} more do not have the header's "
            f"{len(header)} columns"
        )
    if ragged:
        notes.append(f"{len(ragged)} rows of another width left out (line {ragged[0]})")
    if not lines.complete and (not ragged or ragged[-1] != reader.line_num):
        notes.append("the last line has no line end: it may be cut off")
    columns: dict[str, list[object]] = {
        column: [row[i] for row in rows] for i, column in enumerate(header)
    }
    table = Table(name, columns, str(path), notes)
    tag = _DOWNLOAD.fullmatch(path.stem)
    if tag and header == ["Wall time", "Step", "Value"]:
        table.name, table.y, table.home = tag[1], tag[2], str(path.parent / tag[1])
        table.columns = {tag[2] if c == "Value" else c: cells for c, cells in columns.items()}
    return table


def looks_delimited(path: Path) -> bool:
    """Whether a text file has a header of two columns or more, and rows of the same width."""
    with closing(iter(Lines(path))) as start:
        sample = _sample(start)
    # No header names a dict or a step: such a line was printed.
    if len(sample) < 2 or "{" in sample[0] or "step:" in sample[0] or _are_printed(*sample[:2]):
        return False
    try:
        widths = {len(row) for row in csv.reader(sample, delimiter=_sniff(sample))}
    except csv.Error:
        return False
    return len(widths) == 1 and widths.pop() > 1


def _are_printed(first: str, second: str) -> bool:
    """Whether two lines give numbers to the same names, as `step=1 | loss=0.2`: no header does."""
    names = [re.sub(r"[\d.]+", "0", line) for line in (first, second)]
    return names[0] == names[1] and bool(re.search(r"[A-Za-z].*[=:]\s*[+-]?0", names[0]))


def _sample(lines: Iterable[str]) -> list[str]:
    """The first 20 lines that are not blank, or fewer (two at least) where they are long."""
    sample: list[str] = []
    for line in islice((line for line in lines if line.strip()), 20):
        sample.append(line)
        if len(sample) > 1 and sum(map(len, sample)) > MAX_SAMPLE:
            break
    return sample


def _sniff(sample: list[str]) -> str:
    """The delimiter that gives the header most columns and the rows the same number."""

    def quality(delimiter: str) -> tuple[int, int]:
        try:
            widths = [len(row) for row in csv.reader(sample, delimiter=delimiter)]
        except csv.Error:
            return (0, 0)
        if not widths or widths[0] < 2:
            return (0, 0)
        # Rows that agree come first: commas inside of texts give a few rows many columns.
        return (sum(width == widths[0] for width in widths[1:]) + 1, widths[0])

    return max(_DELIMITERS, key=quality)


def _header(row: list[str], path: Path) -> list[str]:
    names = [cell.strip() for cell in row]
    if all(to_float(cell) == to_float(cell) for cell in names):
        raise InputError(f"{path}: no header: make the first line name the columns, as step,score")
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return unique


IMPORTER = Importer(
    read=lambda path: [read_delimited(path, path.stem)],
    # Any text may be a table: its errors name the line that is none.
    sniff=lambda path, head: FALLBACK if is_text(head) else 0.0,
    is_log=by_suffix(".csv", ".tsv"),
)
