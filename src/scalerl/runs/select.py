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
from scalerl.runs.record import Array, ComputeKind, Stage
from scalerl.runs.signs import read_signs
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
    stage: Stage = "unknown"
    table: Table = field(default_factory=lambda: Table("", {}), repr=False)
    notes: list[str] = field(default_factory=list)
    signs: dict[str, Array] = field(default_factory=dict)


def to_curve(table: Table, choice: ColumnChoice) -> Curve:
    """Choose compute, score and evaluation size from the table of one run."""
    numeric = [c for c in table.columns if table.is_numeric(c)]
    y_name, notes = _choose_y(table, numeric, choice.y)
    y = table.numbers(y_name)
    stage = _stage(table, numeric, y_name, notes, asked=choice.y is not None)
    x_name, factor = _choose_x(table, numeric, y, y_name, choice.x, notes)
    x, kind = _read_x(table, x_name, factor)
    x = _carry_forward(x, y, x_name, notes)
    for column in dict.fromkeys((x_name, y_name)):
        if bad := table.count_unreadable(column) if column in numeric else 0:
            notes.append(f"{bad} cells of {column} are not numbers")
    here = _rows_of_score(table.columns[y_name], y)
    n_eval = _read_n_eval(table, choice.n_eval, y_name, stage, notes)
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
        stage=stage,
        table=table.made({}),
        notes=[*table.notes, *notes],
        signs=read_signs(table, np.flatnonzero(here)),
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
        return table.y, []
    if table.y is not None and table.y in table.columns:
        why = f" ({table.notes[-1]})" if table.notes else ""
        raise InputError(f"{table.name}: {table.y} holds no number{why}: choose another with --y")
    found, _ = metrics.score_columns(numeric)
    best = metrics.best_score(found) if found else None
    if best is not None:
        others = [name for name in found if name != best]
        return best, [f"{best} is read as the score, not {listing(others, 4)}"] if others else []
    if found:
        raise InputError(f"{table.name}: several scores, choose one with --y: {listing(found)}")
    computes = set(metrics.compute_columns(numeric))
    rest = [c for c in numeric if c not in computes]
    # A table of two columns leaves nothing to choose.
    if len(rest) == 1 and len(numeric) == 2 and computes and not metrics.is_of_a_step(rest[0]):
        return rest[0], []
    if not rest:
        raise InputError(f"{table.name}: no column of scores: it has {listing(table.columns)}")
    raise InputError(f"{table.name}: no known score, choose one with --y: {listing(rest)}")


def _stage(table: Table, numeric: list[str], y_name: str, notes: list[str], asked: bool) -> Stage:
    """What the score was taken on: the format says it, else its name, else what is beside it."""
    stage = metrics.stage_of(y_name)
    if stage == "unknown" and table.stage is not None:
        stage = table.stage
    why = f"{y_name} is measured on training prompts"
    if stage == "unknown" and not metrics.says_what_of(y_name):
        here = np.isfinite(table.numbers(y_name))
        for name in (c for c in numeric if metrics.is_of_a_step(c)):
            beside = table.numbers(name)[here]
            # A bare `lr` that never changes is a setting of the run.
            changes = "/" in name or len(np.unique(beside)) > 1
            if changes and np.isfinite(beside).mean() > 0.8:
                stage = "training"
                why = f"{y_name} stands beside {name}: taken as measured on training prompts"
                break
    if stage == "training":
        notes.append(why if asked else f"{why}; no validation score was found")
    return stage


def _choose_x(
    table: Table,
    numeric: list[str],
    y: Array,
    y_name: str,
    asked: str | None,
    notes: list[str],
) -> tuple[str, float]:
    moments = [c for c in table.columns if metrics.compute_kind(c)[1] == "moments"]
    usable = [c for c in table.columns if (c in numeric or c in moments) and c != y_name]
    if asked is not None:
        match = _FACTOR.fullmatch(asked)
        if match and asked not in table.columns:
            return resolve(match[1], table, usable, "--x"), float(match[2])
        return resolve(asked, table, usable, "--x"), 1.0
    if table.x is not None and table.x in usable and _is_there(table, table.x, y):
        return table.x, 1.0
    known = metrics.compute_columns(usable)
    counting = [name for name in known if _counts_up(table, name, y)]
    name = next((c for c in counting if _is_there(table, c, y)), next(iter(counting), None))
    if name is None:
        # A single evaluation counts nothing up, and steps are steps.
        name = next((c for c in known if metrics.compute_kind(c)[0] == "steps"), None)
    if name is not None:
        passed = [c for c in known[: known.index(name)] if c not in counting]
        if passed:
            notes.append(f"{name} is the compute, not {listing(passed, 3)}: no running total")
        return name, 1.0
    rest = [c for c in usable if c in numeric]
    if not rest:
        raise InputError(f"{table.name}: no column of compute: it has {listing(table.columns)}")
    why = f" ({listing(known, 3)} does not count up)" if known else ""
    raise InputError(f"{table.name}: no known compute{why}, choose one with --x: {listing(rest)}")


def _is_there(table: Table, name: str, y: Array) -> bool:
    """Whether most rows of the score have it."""
    return bool(np.isfinite(_read_x(table, name, 1.0)[0][np.isfinite(y)]).mean() > 0.5)


def _counts_up(table: Table, name: str, y: Array) -> bool:
    """Whether a column may be compute: it is not the same everywhere; what counts samples or tokens
    mostly rises; and steps under an unknown name are whole numbers that mostly rise.

        num_rollouts 64, 64, 64: a batch size.   n_samples 500, 500, 480: the evaluation's.
    """
    x, kind = _read_x(table, name, 1.0)
    here = np.isfinite(y) & np.isfinite(x)
    x = x[here if here.any() else np.isfinite(x)]
    if len(x) < 2:
        return True
    steps = np.diff(x)
    if not steps.any():
        return False
    if kind in ("samples", "tokens") or not metrics.is_plain_compute(name):
        rising = (steps > 0).sum() >= 0.5 * (steps != 0).sum() and (steps == 0).mean() < 0.5
        whole = kind != "steps" or bool((x == np.round(x)).all())
        return bool(rising and whole)
    return True


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


def _read_n_eval(
    table: Table, asked: str | float | None, y_name: str, stage: Stage, notes: list[str]
) -> Array | None:
    length = len(table)
    if isinstance(asked, int | float) and not isinstance(asked, bool):
        if not (np.isfinite(asked) and asked >= 1):
            raise InputError(f"n_eval {asked:g} is not a number of samples: give 1 or more")
        return np.full(length, float(asked))
    if isinstance(asked, str):
        values = table.numbers(resolve(asked, table, list(table.columns), "--n-eval"))
        return values if np.isfinite(values).any() else None
    own = table.sizes.get(y_name, y_name.rpartition("/")[0] + "/n")
    usual = [c for c in table.columns if c.strip().lower() in metrics.N_EVAL]
    for column in (own, *usual):
        if column in table.columns:
            values = table.numbers(column)
            return values if np.isfinite(values).any() else None
    if stage == "training":
        return None
    found = _from_stderr(table, y_name, notes)
    return found if found is not None else _from_size(table, y_name, notes)


def _from_stderr(table: Table, y_name: str, notes: list[str]) -> Array | None:
    """The size behind a score whose standard error is given: p (1 - p) / (n - 1) = stderr squared.
    One size for the whole run, since where every answer is wrong the error says nothing."""
    head, comma, tail = y_name.partition(",")
    column = f"{head}_stderr{comma}{tail}"
    if column not in table.columns or not table.is_numeric(column):
        return None
    p, error = table.numbers(y_name), table.numbers(column)
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = 1 + p * (1 - p) / error**2
    sizes = sizes[np.isfinite(sizes) & (sizes > 1)]
    if not sizes.size:
        return None
    size = float(np.round(np.median(sizes)))
    notes.append(f"evaluation size from {column}: {size:g}")
    return np.full(len(table), size)


def _from_size(table: Table, y_name: str, notes: list[str]) -> Array | None:
    """A constant count of samples, if the scores are multiples of one over it."""
    y = table.numbers(y_name)
    here = np.isfinite(y)
    for column in table.columns:
        if not metrics.MAYBE_N_EVAL.fullmatch(column.strip()) or not table.is_numeric(column):
            continue
        sizes = table.numbers(column)
        found = np.unique(sizes[here & np.isfinite(sizes)])
        if len(found) == 1 and found[0] >= 2 and np.isfinite(sizes[here]).all():
            right = y[here] * found[0]
            if np.abs(right - np.round(right)).max() <= 0.02 and np.nanmax(y) <= 1:
                notes.append(f"{column} is the evaluation's size: {found[0]:g}")
                return np.where(np.isfinite(sizes), sizes, found[0])
    return None


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
