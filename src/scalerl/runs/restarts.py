"""Runs that follow each other in one table, or stand side by side, without a column `run`.

The rules, each with a note where it split something:

1. Where several rows have the same compute and columns such as `condition`, `variant` or `seed`
   tell them apart, each combination of their values is a run. A text column of any name
   separates runs where it leaves no two rows with the same compute. The prompts, answers and
   numbered groups of a step are no runs, nor are rows that are each right or wrong: `clean.py`
   takes their mean.
2. Where compute goes back and such a column, or a text of any name, changes there and nowhere
   else, its values name the runs.
3. Steps that start again with each epoch are counted on: that is one run.
4. Where compute starts again at its very first value twice or more, or once with two parts that
   end alike, each part is a run. One part that was broken off and started again is left to
   `clean.py`, which keeps the later attempt and says so; and so is compute that goes back to a
   middle value, which is a resume.

    condition,step,acc                          two runs, base and long:
    base,0,.1  base,100,.2  base,200,.3         steps go back at the fourth row,
    long,0,.1  long,100,.3  long,200,.4         and condition changes there
"""

from __future__ import annotations

import fnmatch
from itertools import pairwise

import numpy as np

from scalerl.runs import metrics
from scalerl.runs.axis import named_columns
from scalerl.runs.names import ANY, LoadOptions, find
from scalerl.runs.record import Array, Rows
from scalerl.runs.table import Table, rows_by_name

#: Least mean rows of a part that counts as a run (as in `clean.py`): shorter parts are an unsorted
#: log.
MIN_ROWS = 2.5
#: Least share of rows that repeat the compute of another row in a table of several runs. A resume
#: repeats fewer.
MIN_REPEATS = 0.4

#: The columns that separate runs, and for each row the name of its run.
Labels = tuple[list[str], list[str | None]]


def split_restarts(table: Table, choice: LoadOptions = ANY, *, inside: bool = False) -> list[Table]:
    """One table for each run that the rows and their compute tell apart; `inside` a run that a
    column has already named, its name comes before theirs. Columns that were chosen count as
    compute and score, whatever they are called."""
    column = _compute(table, named_columns(table, choice))
    if column is None:
        return [table]
    scores = _scores(table, choice.y)
    x = np.where(_has_score(table, scores), table.numbers(column), np.nan)
    rows = np.flatnonzero(np.isfinite(x))
    values = x[rows]
    starts = np.flatnonzero(np.diff(values) < 0) + 1
    if not len(starts) and len(np.unique(values)) == len(values):
        return [table]
    if len(starts) and (counted := _counted_on(table, column, values, rows, starts)) is not None:
        return [counted]
    if not len(starts) and _are_answers(table, scores):
        return [table]
    # In the order of the rules above: a column that names runs comes before where they start.
    labels = (
        _by_condition(table, x, in_order=not len(starts))
        or _by_text(table, rows, starts)
        or _by_rows(table, x)
    )
    if labels is not None:
        columns, names = labels
        before = f"{table.name} " if inside else ""
        parts = {before + name: rows for name, rows in rows_by_name(names).items()}
        note = f"{len(parts)} runs separated by {' and '.join(columns)}"
        return _take(table, parts, note)
    return _by_start(table, values, rows, starts)


def _compute(table: Table, axis: list[str]) -> str | None:
    """The column of compute that the rows follow: the first that counts up somewhere. A clock that
    was asked for goes on from one run to the next, so that it separates none."""
    known = (*axis, table.x, *metrics.compute_columns(table.columns))
    for column in (c for c in known if c in table.columns):
        if metrics.compute_kind(column)[1] != "moments" and table.is_numeric(column):
            x = table.numbers(column)
            finite = x[np.isfinite(x)]
            if len(finite) * 2 > len(x) and len(np.unique(finite)) > 1:
                return column
    return None


def _counted_on(table: Table, column: str, x: Array, rows: Rows, starts: Rows) -> Table | None:
    """Steps that start again with each epoch are counted on: the table with running steps."""
    epoch = next(iter(table.called(("epoch", "epochs"))), None)
    if epoch is None or epoch == column or not table.is_numeric(epoch):
        return None
    of = table.numbers(epoch)[rows]
    turns = np.flatnonzero(np.diff(of) != 0) + 1
    if not np.array_equal(turns, starts) or not (np.diff(of)[turns - 1] > 0).all():
        return None
    running = x.copy()
    for start in starts:
        apart = x[start - 1] - x[start - 2] if start > 1 else 1.0
        running[start:] += x[start - 1] + max(apart, 0.0) - x[start]
    cells: list[object] = [None] * len(table)
    for i, value in zip(rows.tolist(), running.tolist(), strict=True):
        cells[i] = value
    note = f"{column} starts again with each {epoch}: counted on"
    return table.made(table.columns | {column: cells}, notes=[*table.notes, note])


def _scores(table: Table, y: str | None) -> list[str]:
    """The columns of scores: those asked for, else those with a known name."""
    numeric = table.numeric
    found = [table.y] if table.y in numeric else metrics.score_columns(numeric)[0]
    if y is not None:
        asked = find(y, table, numeric, "--y")
        found = [c for c in numeric if c == asked or fnmatch.fnmatchcase(c, y)] or found
    return [name for name in found if name is not None]


def _has_score(table: Table, scores: list[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The rows of a score, where there is one: another metric may follow on rows of its own, with
    steps that start again without being another run."""
    here = np.zeros(len(table), dtype=bool)
    for name in scores:
        here |= np.isfinite(table.numbers(name))
    return here if here.any() else np.ones(len(table), dtype=bool)


def _are_answers(table: Table, scores: list[str]) -> bool:
    """Whether each row is one answer, right or wrong."""
    found = [v[np.isfinite(v)] for v in map(table.numbers, scores)]
    return any(len(np.unique(v)) == 2 and set(np.unique(v)) == {0.0, 1.0} for v in found)


def _by_condition(table: Table, x: Array, in_order: bool) -> Labels | None:
    """By the columns with a known name; `in_order`: compute never goes back, so that a column of
    numbered groups tells the prompts of a step apart."""
    chosen: list[str] = []
    names: list[str | None] = [None] * len(table)
    for column in table.called(metrics.CONDITION):
        if in_order and table.is_numeric(column) and metrics.ITEM.fullmatch(column.strip()):
            continue
        cells = table.texts(column)
        kinds = set(cells) - {None}
        if not 1 < len(kinds) <= len(cells) / 2 or column == table.y:
            continue
        joined = [_joined(n, c, column) for n, c in zip(names, cells, strict=True)]
        # Only what tells more rows of one compute apart: a second name of a condition does not.
        if _repeats(x, joined) < _repeats(x, names):
            names = joined
            chosen.append(column)
    # A tenth may repeat: a resumed run logs some steps twice.
    if not chosen or _repeats(x, names) > 0.1 * len(x):
        return None
    return chosen, names


def _joined(name: str | None, cell: str | None, column: str) -> str | None:
    if cell is None:
        return name
    word = f"{column}={cell}" if cell.replace(".", "", 1).isdigit() else cell
    return word if name is None else f"{name} {word}"


def _repeats(x: Array, names: list[str | None]) -> int:
    """Number of rows with the compute of an earlier row of the same name."""
    pairs = [(n, v) for n, v in zip(names, x.tolist(), strict=True) if v == v]
    return len(pairs) - len(set(pairs))


def _by_text(table: Table, rows: Rows, starts: Rows) -> Labels | None:
    """The names of runs that follow each other: from a column that changes where compute goes back,
    and nowhere else."""
    if not len(starts) or len(rows) / (len(starts) + 1) < MIN_ROWS:
        return None
    parts = np.split(rows, starts)
    for column in table.columns:
        names = table.texts(column)
        found = [{names[i] for i in part} - {None} for part in parts]
        constant = all(len(f) == 1 for f in found) and len(set.union(*found)) > 1
        named = column.strip().lower() in metrics.CONDITION
        if constant and (named or not table.is_numeric(column)):
            return [column], names
    return None


def _by_rows(table: Table, x: Array) -> Labels | None:
    """The names of runs in a table that is sorted by compute: from a text column that leaves no two
    rows of one name with the same compute."""
    nothing: list[str | None] = [None] * len(table)
    if _repeats(x, nothing) < MIN_REPEATS * np.isfinite(x).sum():
        return None
    for column in table.columns:
        names = table.texts(column)
        few = 1 < len(set(names) - {None}) <= len(names) / MIN_ROWS
        few = few and metrics.ITEM.fullmatch(column.strip()) is None
        if few and not table.is_numeric(column) and _repeats(x, names) == 0:
            return [column], names
    return None


def _by_start(table: Table, x: Array, rows: Rows, starts: Rows) -> list[Table]:
    again = [int(i) for i in starts if x[i] <= x[0]]
    if not again or len(x) / (len(again) + 1) < MIN_ROWS:
        return [table]
    ends = [x[a:b].max() for a, b in zip([0, *again], [*again, len(x)], strict=True)]
    # One restart with another end is a run that was broken off and started again.
    if len(again) == 1 and ends[0] != ends[1]:
        return [table]
    # Rows without compute (evaluations on lines of their own) stay with the rows before them.
    edges = [0, *(int(rows[i]) for i in again), len(table)]
    parts = {f"{table.name} #{n}": list(range(a, b)) for n, (a, b) in enumerate(pairwise(edges), 1)}
    return _take(table, parts, f"compute starts again at {x[0]:g}: read as {len(parts)} runs")


def _take(table: Table, parts: dict[str, list[int]], note: str) -> list[Table]:
    made = [table.take(indices, name) for name, indices in parts.items()]
    for part in made:
        part.notes.append(note)
    return made
