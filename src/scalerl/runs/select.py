"""From the table of one run to its curve: which column is compute, which is the score."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from typing import cast, get_args

import numpy as np

from scalerl.errors import InputError
from scalerl.runs import metrics
from scalerl.runs.names import listing, resolve, suggest
from scalerl.runs.record import Array, ComputeKind
from scalerl.runs.table import Table, is_missing, to_text, to_timestamp

_FACTOR = re.compile(r"(.+?)\s*\*\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True)
class ColumnChoice:
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


def to_curve(table: Table, choice: ColumnChoice) -> Curve:
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
    n_eval = _read_n_eval(table, choice.n_eval, y_name)
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
    # Absurd numbers become infinite here, which cleaning drops and counts.
    with np.errstate(over="ignore", invalid="ignore"):
        if unit == "moments":
            moments = np.array([to_timestamp(v) for v in table.columns[name]], dtype=np.float64)
            finite = moments[np.isfinite(moments)]
            x = (moments - finite[0]) / 3600 if finite.size else moments
        else:
            x = table.numbers(name) / (3600 if unit == "seconds" else 1)
        x = x * factor
    if factor != 1:
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


def _read_n_eval(table: Table, asked: str | float | None, y_name: str) -> Array | None:
    length = len(table)
    if isinstance(asked, int | float) and not isinstance(asked, bool):
        if not (np.isfinite(asked) and asked >= 1):
            raise InputError(f"n_eval {asked:g} is not a number of samples: give 1 or more")
        return np.full(length, float(asked))
    if isinstance(asked, str):
        name = resolve(asked, table, list(table.columns), "--n-eval")
    else:
        usual = next((c for c in table.columns if c.strip().lower() in metrics.N_EVAL), None)
        found = table.sizes.get(y_name, usual)
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
        values = {to_text(v) for v in table.columns[group_by] if not is_missing(v)}
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
