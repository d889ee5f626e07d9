"""From the table of a file to the tables of its runs."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from dataclasses import replace

import numpy as np

from scalerl.runs import metrics
from scalerl.runs.axis import named_columns
from scalerl.runs.names import ANY, LoadOptions
from scalerl.runs.restarts import split_restarts
from scalerl.runs.table import Table, is_missing, rows_by_name, to_text

#: What differs between the columns of runs that are numbered: `seed1/acc`, `seed2/acc`.
_NUMBERED = re.compile(r"(?:seed|run|trial|rep|replicate|exp)[ _\-#]?\d+", re.IGNORECASE)
# W&B exports the band around each curve as well, in columns of its lower and upper edge.
_WANDB_EXPORT = re.compile(r"(.+) - (.+?)(__MIN|__MAX)?")


def split_runs(
    table: Table, choice: LoadOptions = ANY, run_column: str | None = None
) -> list[Table]:
    """One table for each run: by a run column, by W&B's `run - metric` headers, by a condition or
    where steps start again, by compute kind. Rows of training and of evaluations, where a column
    tells them apart, become columns of their own. `run_column` is the column that names the runs
    where that was said.

    >>> t = Table("file", {"run": ["a", "b"], "step": [1, 1], "acc": [0.1, 0.2]})
    >>> [part.name for part in split_runs(t)]
    ['a', 'b']
    """
    if run_column is not None:
        parts = _split_by(table, (run_column.strip().lower(),), "{value}")
    else:
        parts = [piece for part in _split_wandb_export(table) for piece in _split_by_run(part)]
    named = named_columns(table, choice)
    parts = [_by_stage(_pivot(part), named) for part in parts]
    parts = [piece for part in parts for piece in _split_by(part, metrics.KIND, "{name} [{value}]")]
    several = len(parts) > 1
    return [piece for part in parts for piece in split_restarts(part, choice, inside=several)]


def names_runs(table: Table, column: str) -> str | None:
    """The column of this name, in any case, if its values can separate runs: each is on several
    rows. A column of scores, as a table with one column for each run has, cannot, nor can compute;
    and a run of this name is meant where the usual column has one."""
    found = _find(table, (column.strip().lower(),))
    if found is None or metrics.is_plain_compute(found):
        return None
    usual = _find(table, metrics.RUN)
    if usual not in (None, found) and column in map(to_text, table.columns[usual or ""]):
        return None
    values = [name for name in table.texts(found) if name is not None]
    # Two rows for each value on average, at least: a run has several points.
    return found if values and len(set(values)) * 2 <= len(values) else None


def split_scores(table: Table, choice: LoadOptions) -> list[Table]:
    """One table for each column that a pattern of scores matches, named after the column.

    >>> t = Table("file", {"step": [1, 2], "seed-1": [0.1, 0.2], "seed-2": [0.2, 0.3]})
    >>> [part.name for part in split_scores(t, LoadOptions(y="seed-*"))]
    ['seed-1', 'seed-2']
    """
    asked, known = choice.y, metrics.compute_columns(table.columns)
    computes = list(dict.fromkeys([*named_columns(table, choice), *known]))
    if asked is None:
        return _split_columns(table, computes)
    if asked in table.columns or not set("*?[") & set(asked):
        return [table]
    found = [
        c
        for c in table.columns
        if fnmatch.fnmatchcase(c, asked) and c not in computes and table.is_numeric(c)
    ]
    parts = [replace(table, y=c, notes=table.notes[:]) for c in found]
    if len(parts) > 1:
        whole_table = len(parts) + len(computes) == len(table.columns)
        for part in parts:
            part.name = str(part.y) if whole_table else f"{table.name} {part.y}"
    return parts or [table]


def _split_columns(table: Table, computes: list[str]) -> list[Table]:
    """A table of compute and otherwise only scores, under no known name or under names that differ
    in the number of a run: one run each."""
    scores = [c for c in table.columns if c not in computes]
    if not computes or len(scores) < 2 or table.y is not None:
        return [table]
    numbered = len({_NUMBERED.sub("#", c) for c in scores}) == 1 and all(
        _NUMBERED.search(c) for c in scores
    )
    if not numbered and (
        metrics.score_columns(scores)[0] or any(map(metrics.is_other_metric, scores))
    ):
        return [table]
    for column in scores:
        numbers = table.numbers(column)
        # Outside of percent it is no score, so that the columns are metrics and not runs.
        if not table.is_numeric(column) or np.nanmin(numbers) < 0 or np.nanmax(numbers) > 100:
            return [table]
    note = f"each column beside {' and '.join(computes)} is read as a run"
    shared = {c: table.columns[c] for c in computes}
    return [
        table.made(
            shared | {"score": table.columns[column]},
            name=column,
            notes=[*table.notes, note],
            y="score",
            y_title=column,
        )
        for column in scores
    ]


def _split_wandb_export(table: Table) -> list[Table]:
    matches = {c: _WANDB_EXPORT.fullmatch(c) for c in table.columns}
    shared = [c for c, m in matches.items() if m is None]
    if len(shared) > 2 or len(shared) == len(matches) or not shared:
        return [table]
    runs: dict[str, dict[str, list[object]]] = {}
    for column, match in matches.items():
        if match is not None and match[3] is None and match[2] not in {"_step", "_timestamp"}:
            runs.setdefault(match[1], {})[match[2]] = table.columns[column]
    if not runs:
        return [table]
    return [
        table.made({c: table.columns[c] for c in shared} | columns, name=name)
        for name, columns in runs.items()
    ]


def _find(table: Table, names: tuple[str, ...]) -> str | None:
    """The first of these columns that the table has."""
    return next(iter(table.called(names)), None)


def _split_by_run(table: Table) -> list[Table]:
    """By the column that names the runs; named by the one that names them, where both are."""
    names: tuple[str, ...] = metrics.RUN
    own = _find(table, ("id",))
    if own and not _find(table, ("run_id",)) and _find(table, metrics.RUN_NAME):
        ids = table.texts(own)
        # An id for each row is the row's, not the run's.
        if len(set(ids) - {None}) * 2 <= len(ids):
            names = ("id", *names)
    column = _find(table, names)
    parts = _split_by(table, names, "{value}")
    for part in parts if column is not None else []:
        others = tuple(n for n in metrics.RUN_NAME if n != (column or "").strip().lower())
        called = _find(part, others)
        found = rows_by_name(part.texts(called)) if called else {}
        if len(found) == 1:
            part.id, part.name = part.name, next(iter(found))
    return parts


def _by_stage(table: Table, axis: list[str]) -> Table:
    """A column that says which rows are of training and which of evaluations: each gets columns of
    its own, so that nothing is merged and `--y` can name either.

        type,accuracy: train,0.5 / eval,0.4     ->     train/accuracy: 0.5 / eval/accuracy: 0.4
    """
    column = _find(table, metrics.SPLIT)
    if column is None or table.is_numeric(column):
        return table
    said = table.texts(column)
    values = {v: count for v, count in Counter(said).items() if v is not None}
    stages = {v: metrics.stage_of_rows(v) for v in values}
    # A column with more values is an id or a free text, not a split.
    if len(values) > 20 or set(stages.values()) <= {"unknown"}:
        return table
    shared = {column, *axis, *metrics.compute_columns(table.columns)}
    shared |= {c for c in table.columns if c.strip().lower() in _ABOUT_THE_RUN}
    rows_of: dict[str | None, list[int]] = {}
    for i, value in enumerate(said):
        rows_of.setdefault(value, []).append(i)
    columns: dict[str, list[object]] = {}
    for name, cells in table.columns.items():
        if name in shared or not table.is_numeric(name):
            columns.setdefault(name, cells)
            continue
        for value, rows in rows_of.items():
            if not any(not is_missing(cells[i]) for i in rows):
                continue
            new = name if value is None else metrics.under_stage(name, value)
            column_of_value = columns.setdefault(new, [None] * len(cells))
            for i in rows:
                column_of_value[i] = cells[i]
    counts = ", ".join(f"{count} {value}" for value, count in list(values.items())[:4])
    note = f"rows separated by {column}: {counts}"
    return table.made(columns, notes=[*table.notes, note] if len(values) > 1 else table.notes[:])


_ABOUT_THE_RUN = frozenset((*metrics.RUN, *metrics.CONDITION, *metrics.KIND, *metrics.N_EVAL))


def _split_by(table: Table, names: tuple[str, ...], label: str) -> list[Table]:
    column = _find(table, names)
    if column is None:
        return [table]
    rows = rows_by_name(table.texts(column))
    if not rows or ("{name}" in label and len(rows) == 1):
        return [table]
    if nameless := len(table.columns[column]) - sum(map(len, rows.values())):
        table.notes.append(f"{nameless} rows without a {column} left out")
    return [
        table.take(indices, label.format(name=table.name, value=value))
        for value, indices in rows.items()
    ]


def _pivot(table: Table) -> Table:
    """A metric column and a value column become one column for each metric."""
    metric, value = _find(table, metrics.METRIC), _find(table, metrics.VALUE)
    if metric is None or value is None or table.is_numeric(metric):
        return table
    columns = {c: v for c, v in table.columns.items() if c not in (metric, value)}
    length = len(table)
    rows = rows_by_name(table.texts(metric))
    for name, places in rows.items():
        cells = columns.setdefault(name, [None] * length)
        for i in places:
            cells[i] = table.columns[value][i]
    made = table.made(columns)
    if len(rows) == 1:
        made.y = next(iter(rows))
    return made
