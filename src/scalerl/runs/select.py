"""From a table to curves: which rows are one run, which column is compute, which is the score."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import cast, get_args

import numpy as np

from scalerl.errors import InputError
from scalerl.runs import metrics
from scalerl.runs.record import Array, ComputeKind
from scalerl.runs.table import Table, is_missing, to_timestamp

_FACTOR = re.compile(r"(.+?)\s*\*\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)")
_WANDB_EXPORT = re.compile(r"(.+) - (.+?)(__MIN|__MAX)?")


@dataclass(frozen=True)
class Choice:
    """What the user asked for; None means: find it."""

    x: str | None = None
    y: str | None = None
    n_eval: str | float | None = None
    group_by: str | None = None


@dataclass
class Curve:
    """The points of one run as logged: not yet cleaned, not yet in [0, 1]."""

    name: str
    x: Array
    y: Array
    n_eval: Array | None
    x_kind: ComputeKind
    x_name: str
    y_name: str
    group: str | None
    source: str
    notes: list[str] = field(default_factory=list)


def split_runs(table: Table) -> list[Table]:
    """One table for each run: by a run column, by W&B's `run - metric` headers, by compute kind.

    >>> t = Table("file", {"run": ["a", "b"], "step": [1, 1], "acc": [0.1, 0.2]})
    >>> [part.name for part in split_runs(t)]
    ['a', 'b']
    """
    parts = _split_wandb_export(table)
    parts = [piece for part in parts for piece in _split_by(part, metrics.RUN, "{value}")]
    parts = [_pivot(part) for part in parts]
    return [piece for part in parts for piece in _split_by(part, metrics.KIND, "{name} [{value}]")]


def split_scores(table: Table, asked: str | None) -> list[Table]:
    """One table for each column that a pattern of scores matches, named after the column.

    >>> t = Table("file", {"step": [1, 2], "seed-1": [0.1, 0.2], "seed-2": [0.2, 0.3]})
    >>> [part.name for part in split_scores(t, "seed-*")]
    ['seed-1', 'seed-2']
    """
    if asked is None or asked in table.columns or not set("*?[") & set(asked):
        return [table]
    computes = metrics.compute_columns(table.columns)
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


def to_curve(table: Table, choice: Choice) -> Curve:
    """Choose compute, score and evaluation size from the table of one run."""
    numeric = [c for c in table.columns if table.is_numeric(c)]
    y_name, notes = _choose_y(table, numeric, choice.y)
    y = table.numbers(y_name)
    x_name, factor = _choose_x(table, numeric, y, y_name, choice.x)
    x, kind = _read_x(table, x_name, factor)
    x = _carry_forward(x, y, x_name, notes)
    for column in dict.fromkeys((x_name, y_name)):
        if bad := table.count_unreadable(column) if column in numeric else 0:
            notes.append(f"{bad} cells of {column} are not numbers")
    here = _rows_of_score(table.columns[y_name], y)
    n_eval = _read_n_eval(table, choice.n_eval, notes)
    return Curve(
        name=table.name,
        x=x[here],
        y=y[here],
        n_eval=None if n_eval is None else n_eval[here],
        x_kind=kind,
        x_name=x_name if factor == 1 else f"{x_name}*{factor:g}",
        y_name=y_name,
        group=_group(table, choice.group_by),
        source=table.source,
        notes=[*table.notes, *notes],
    )


def _rows_of_score(cells: list[object], y: Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The rows that are meant to hold a score, whether or not they hold a finite one.

    Where more than three rows in four have one, a row without is a hole, which cleaning counts.
    Otherwise the log is sparse: rows without a score are rows of other metrics.
    """
    if np.isfinite(y).mean() > 0.75:
        return np.ones(len(y), dtype=bool)
    return np.array([not is_missing(cell) for cell in cells], dtype=bool)


def _split_wandb_export(table: Table) -> list[Table]:
    matches = {c: _WANDB_EXPORT.fullmatch(c) for c in table.columns}
    shared = [c for c, m in matches.items() if m is None]
    if len(shared) > 2 or len(shared) == len(matches) or not shared:
        return [table]
    runs: dict[str, dict[str, list[object]]] = {}
    for column, match in matches.items():
        if match is not None and match[3] is None and match[2] not in {"_step", "_timestamp"}:
            runs.setdefault(match[1], {})[match[2]] = table.columns[column]
    return [
        Table(name, {c: table.columns[c] for c in shared} | columns, table.source, table.notes[:])
        for name, columns in runs.items()
    ]


def _split_by(table: Table, names: tuple[str, ...], label: str) -> list[Table]:
    lower = {c.strip().lower(): c for c in table.columns}
    column = next((lower[n] for n in names if n in lower), None)
    if column is None:
        return [table]
    values = table.columns[column]
    rows: dict[str, list[int]] = {}
    for i, value in enumerate(values):
        if not is_missing(value):
            rows.setdefault(_text(value), []).append(i)
    if not rows or ("{name}" in label and len(rows) == 1):
        return [table]
    if nameless := len(values) - sum(map(len, rows.values())):
        table.notes.append(f"{nameless} rows without a {column} left out")
    return [
        table.take(indices, label.format(name=table.name, value=value))
        for value, indices in rows.items()
    ]


def _pivot(table: Table) -> Table:
    """A metric column and a value column become one column for each metric."""
    lower = {c.strip().lower(): c for c in table.columns}
    metric = next((lower[n] for n in metrics.METRIC if n in lower), None)
    value = next((lower[n] for n in metrics.VALUE if n in lower), None)
    if metric is None or value is None or table.is_numeric(metric):
        return table
    columns = {c: v for c, v in table.columns.items() if c not in (metric, value)}
    length = len(table)
    for i, (key, cell) in enumerate(zip(table.columns[metric], table.columns[value], strict=True)):
        if not is_missing(key):
            columns.setdefault(_text(key), [None] * length)[i] = cell
    found = {_text(k) for k in table.columns[metric] if not is_missing(k)}
    table = replace(table, columns=columns, _numbers={})
    if len(found) == 1:
        table.y = found.pop()
    return table


def _choose_y(table: Table, numeric: list[str], asked: str | None) -> tuple[str, list[str]]:
    by_pattern = asked is not None and table.y is not None and fnmatch.fnmatchcase(table.y, asked)
    if asked is not None and not by_pattern:
        return resolve(asked, table, numeric, "--y"), []
    if table.y is not None and table.y in numeric:
        return table.y, _training_note(table.y)
    found, _ = metrics.score_columns(numeric)
    if len(found) == 1:
        return found[0], _training_note(found[0])
    if found:
        raise InputError(f"{table.name}: several scores, choose one with --y: {listing(found)}")
    computes = set(metrics.compute_columns(numeric))
    rest = [c for c in numeric if c not in computes]
    # A table of two columns leaves nothing to choose.
    if len(rest) == 1 and len(numeric) == 2 and computes:
        return rest[0], []
    if not rest:
        raise InputError(f"{table.name}: no column of scores: it has {listing(table.columns)}")
    raise InputError(f"{table.name}: no known score, choose one with --y: {listing(rest)}")


def _training_note(name: str) -> list[str]:
    if not metrics.is_training(name):
        return []
    return [f"{name} is measured on training prompts: no validation score was found"]


def _choose_x(
    table: Table, numeric: list[str], y: Array, y_name: str, asked: str | None
) -> tuple[str, float]:
    moments = [c for c in table.columns if metrics.compute_kind(c)[1] == "moments"]
    usable = [c for c in table.columns if (c in numeric or c in moments) and c != y_name]
    if asked is not None:
        match = _FACTOR.fullmatch(asked)
        if match and asked not in table.columns:
            return resolve(match[1], table, usable, "--x"), float(match[2])
        return resolve(asked, table, usable, "--x"), 1.0
    known = metrics.compute_columns(usable)
    if table.x is not None and table.x in usable:
        known.insert(0, table.x)
    here = np.isfinite(y)
    for name in known:
        x, _ = _read_x(table, name, 1.0)
        if np.isfinite(x[here]).mean() > 0.5:
            return name, 1.0
    if known:
        return known[0], 1.0
    rest = [c for c in usable if c in numeric]
    if not rest:
        raise InputError(f"{table.name}: no column of compute: it has {listing(table.columns)}")
    raise InputError(f"{table.name}: no known compute, choose one with --x: {listing(rest)}")


def _read_x(table: Table, name: str, factor: float) -> tuple[Array, ComputeKind]:
    kind, unit = metrics.compute_kind(name)
    stated = next((table.columns[c] for c in metrics.KIND if c in table.columns), None)
    if stated is not None and unit == "" and name.lower() in {"x", "c", "compute"}:
        word = next((str(v).strip() for v in stated if not is_missing(v)), "")
        kind = cast(ComputeKind, word) if word in get_args(ComputeKind) else "unknown"
    if unit == "moments":
        moments = np.array([to_timestamp(v) for v in table.columns[name]], dtype=np.float64)
        finite = moments[np.isfinite(moments)]
        x = (moments - finite[0]) / 3600 if finite.size else moments
    else:
        x = table.numbers(name) / (3600 if unit == "seconds" else 1)
    if factor != 1:
        x = x * factor
        kind = "gpu_hours" if kind in {"hours", "gpu_hours"} else "unknown"
    return x, kind


def _carry_forward(x: Array, y: Array, name: str, notes: list[str]) -> Array:
    """Scores logged on rows of their own take the last compute logged before them."""
    here = np.isfinite(y)
    if not here.any() or np.isfinite(x[here]).mean() > 0.5:
        return x
    last = np.maximum.accumulate(np.where(np.isfinite(x), np.arange(len(x)), -1))
    filled: Array = np.where(last >= 0, x[np.maximum(last, 0)], np.nan)
    if np.isfinite(filled[here]).any():
        notes.append(f"{name} is not on the rows of the score: the last value before is used")
    return filled


def _read_n_eval(table: Table, asked: str | float | None, notes: list[str]) -> Array | None:
    length = len(table)
    if isinstance(asked, int | float) and not isinstance(asked, bool):
        if not (np.isfinite(asked) and asked >= 1):
            raise InputError(f"n_eval {asked:g} is not a number of samples: give 1 or more")
        return np.full(length, float(asked))
    if isinstance(asked, str):
        name = resolve(asked, table, list(table.columns), "--n-eval")
    else:
        found = next((c for c in table.columns if c.strip().lower() in metrics.N_EVAL), None)
        if found is None:
            return None
        name = found
    values = table.numbers(name)
    if not np.isfinite(values).any():
        return None
    return values


def _group(table: Table, group_by: str | None) -> str | None:
    if group_by is None:
        return table.group
    if group_by in table.columns:
        values = {_text(v) for v in table.columns[group_by] if not is_missing(v)}
        if len(values) > 1:
            raise InputError(
                f"{table.name}: {group_by} changes within the run ({listing(sorted(values))}): "
                "group by a column that does not"
            )
        return values.pop() if values else None
    if group_by in table.facts:
        return table.facts[group_by]
    known = [*table.columns, *table.facts]
    raise InputError(f"{table.name}: no {group_by!r} to group by: {suggest(group_by, known)}")


def resolve(asked: str, table: Table, usable: list[str], flag: str) -> str:
    """The column meant by a name: exact, else in another case, else by its last part if unique."""
    if asked in usable:
        return asked
    lower = asked.lower()
    for match in (
        [c for c in usable if c.lower() == lower],
        [c for c in usable if c.lower().endswith("/" + lower)],
    ):
        if len(match) == 1:
            return match[0]
        if match:
            raise InputError(f"{table.name}: {flag} {asked} could be {listing(match)}")
    if asked in table.columns:
        raise InputError(f"{table.name}: {asked} holds no numbers: {suggest(asked, usable, flag)}")
    raise InputError(f"{table.name}: no column {asked!r}: {suggest(asked, usable, flag)}")


def suggest(asked: str, known: list[str], flag: str = "") -> str:
    """What was probably meant, nearest first."""
    by_lower = {c.lower(): c for c in known}
    near = [by_lower[c] for c in difflib.get_close_matches(asked.lower(), by_lower, 8, 0.5)]
    near += [c for c in known if asked.lower() in c.lower() and c not in near]
    use = f"use {flag} with" if flag else "try"
    return f"{use} {listing(near or known)}" if known else "the table has no such columns"


def listing(names: Iterable[object], most: int = 8) -> str:
    """At most eight names, and how many more there are."""
    all_names = [shorten(str(name)) for name in names]
    text = ", ".join(all_names[:most])
    return text + (f" and {len(all_names) - most} more" if len(all_names) > most else "")


def shorten(text: str, most: int = 80) -> str:
    """The text on one line, printable, and not longer than a name should be."""
    line = "".join(ch if ch.isprintable() else "?" for ch in text)
    return line if len(line) <= most else line[: most - 1] + "…"


def _text(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
