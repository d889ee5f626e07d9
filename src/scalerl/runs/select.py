"""From the table of one run to its curve: which column is compute, which is the score."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError
from scalerl.runs import metrics
from scalerl.runs.axis import carry_forward, choose_axis, other_axes
from scalerl.runs.names import LoadOptions, resolve, suggest
from scalerl.runs.record import Array, ComputeKind, Stage
from scalerl.runs.score import (
    choose_score,
    could_serve,
    held_out_metrics,
    training_scores,
    with_expression,
)
from scalerl.runs.step_costs import StepCost
from scalerl.runs.table import Table, is_missing, rows_by_name
from scalerl.text import listed


@dataclass
class Curve:
    """The points of one run as logged: not yet cleaned, not yet in [0, 1]."""

    #: The run's name, source, facts and id; without its columns.
    table: Table = field(repr=False)
    x: Array
    y: Array
    n_eval: Array | None
    x_kind: ComputeKind
    x_name: str
    y_name: str
    group: str | None
    stage: Stage = "unknown"
    notes: list[str] = field(default_factory=list)
    signs: dict[str, Array] = field(default_factory=dict)
    #: What else the log counts at the points, by kind of compute.
    axes: dict[str, Array] = field(default_factory=dict)
    #: Whether `y` is an error rate, of which the score is 1 minus it.
    is_error: bool = False
    #: Columns that may serve as the score in its place, where it may be refused for its range.
    alternatives: tuple[str, ...] = ()
    #: Where `x` counts steps: how the cost of a step changes.
    cost: StepCost | None = None
    #: Training scores of the log where there are few of these: columns, with their values' number.
    training: dict[str, int] = field(default_factory=dict)


#: With fewer scores than this, training scores of the same log are named.
FEW = 10
#: Steps one after another, each with a score, from which on these are not evaluations.
MIN_EVERY_STEP = 20


def to_curve(table: Table, choice: LoadOptions) -> Curve:
    """Choose compute, score and evaluation size from the table of one run."""
    table = with_expression(table, choice.y)
    y_name, notes, way = choose_score(table, choice.y)
    y = table.numbers(y_name)
    asked = choice.y is not None
    axis = choose_axis(table, y_name, choice, notes)
    stage = _stage(table, y_name, axis.values, notes, asked)
    x = carry_forward(axis.values, y)
    if x is not axis.values and np.isfinite(x[np.isfinite(y)]).any():
        notes.append(f"{axis.name} is not on the rows of the score: the last value before is used")
    for column in dict.fromkeys((*axis.columns, y_name)):
        if bad := table.count_unreadable(column) if column in table.numeric else 0:
            notes.append(f"{bad} cells of {column} are not numbers")
    if axis.cost is not None and axis.cost.changes:
        notes.append(f"{axis.cost}: --x '{axis.cost.name}' fits on {axis.cost.kind}")
    here = _rows_of_score(table.columns[y_name], y)
    n_eval = _read_n_eval(table, choice.n_eval, y_name, stage, notes)
    return Curve(
        table=table.made({}),
        x=x[here],
        y=y[here],
        n_eval=None if n_eval is None else n_eval[here],
        x_kind=axis.kind,
        x_name=axis.name,
        y_name=y_name,
        group=_group(table, choice.group_by),
        stage=stage,
        notes=[*table.notes, *notes],
        signs=read_warning_signs(table, np.flatnonzero(here)),
        axes={kind: v[here] for kind, v in other_axes(table, y, axis).items()},
        is_error=way == "error",
        cost=axis.cost,
        alternatives=could_serve(table, y_name) if ((y < 0) | (y > 1)).any() else (),
        training=training_scores(table) if np.isfinite(y).sum() < FEW and not asked else {},
    )


def _rows_of_score(cells: list[object], y: Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The rows that are meant to hold a score, whether or not they hold a finite one.

    Where more than three rows in four have one, a row without is a hole, which cleaning counts.
    Otherwise the log is sparse: rows without a score are rows of other metrics.
    """
    if np.isfinite(y).mean() > 0.75:
        return np.ones(len(y), dtype=bool)
    return np.array([not is_missing(cell) for cell in cells], dtype=bool)


def _stage(table: Table, y_name: str, x: Array, notes: list[str], asked: bool) -> Stage:
    """What the score was taken on: the format says it, else its name, else what is beside it."""
    stage = metrics.stage_of(y_name)
    if stage == "unknown" and table.stage is not None:
        stage = table.stage
    # One of a held-out metric where there is no other: `choose_score` has said so.
    if stage == "unknown" and metrics.is_held_out(y_name):
        stage = "validation"
    why = f"{y_name} is measured on training prompts"
    if stage == "unknown" and not metrics.says_what_of(y_name):
        found = _beside_training(table, y_name, x)
        if found:
            stage, why = "training", f"{y_name} {found}: taken as measured on training prompts"
    if stage == "training" and not asked:
        others = held_out_metrics(table)
        none = f"{listed(others, 3)} may be validation scores: choose one with --y"
        why += f"; {none if others else 'no validation score was found'}"
    if stage == "training":
        notes.append(why)
    return stage


def _beside_training(table: Table, y_name: str, x: Array) -> str:
    """What shows that a score without a stage in its name is of training prompts; "" if nothing."""
    here = np.isfinite(table.numbers(y_name))
    for name in (c for c in table.numeric if metrics.is_of_a_step(c)):
        beside = table.numbers(name)[here]
        # A bare `lr` that never changes is a setting of the run.
        changes = "/" in name or len(np.unique(beside)) > 1
        # Not all rows: the loss of a step may be missing or not finite.
        if changes and np.isfinite(beside).mean() > 0.8:
            return f"stands beside {name}"
    if any(metrics.is_held_out(c) for c in table.numeric if c != y_name):
        return "is not among the held-out metrics of the log"
    steps = np.unique(x[here & np.isfinite(x)])
    rewards = [c for c in table.numeric if c != y_name and metrics.stage_of(c) == "training"]
    # Evaluations come every few steps; what stands beside a reward at every single step does not.
    if len(steps) >= MIN_EVERY_STEP and (np.diff(steps) == 1).all() and rewards:
        return f"is logged at every step beside {rewards[0]}"
    return ""


def _read_n_eval(
    table: Table, asked: str | float | None, y_name: str, stage: Stage, notes: list[str]
) -> Array | None:
    length = len(table)
    if isinstance(asked, int | float) and not isinstance(asked, bool):
        if not (np.isfinite(asked) and asked >= 1):
            raise InputError(f"n_eval {asked:g} is not a number of samples: give 1 or more")
        return np.full(length, float(asked))
    if isinstance(asked, str):
        columns = [resolve(asked, table, list(table.columns), "--n-eval")]
    else:
        own = table.sizes.get(y_name, y_name.rpartition("/")[0] + "/n")
        usual = [c for c in table.columns if c.strip().lower() in metrics.N_EVAL]
        columns = [own, *usual] if own in table.columns else usual
    if columns:
        values = table.numbers(columns[0])
        return values if np.isfinite(values).any() else None
    # What is counted beside a training score is the batch, which is not an evaluation.
    if stage == "training":
        return None
    found = _from_stderr(table, y_name, notes)
    return found if found is not None else _from_size(table, y_name, notes)


def _from_stderr(table: Table, y_name: str, notes: list[str]) -> Array | None:
    """The size behind a score with a standard error: p (1 - p) / (n - 1) = stderr squared.
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
    # The median, because sizes from rounded standard errors differ a little.
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
            # 0.02: scores are often logged with four digits, which is off by 0.01 at 200 samples.
            if np.abs(right - np.round(right)).max() <= 0.02 and np.nanmax(y) <= 1:
                notes.append(f"{column} is the evaluation's size: {found[0]:g}")
                return np.where(np.isfinite(sizes), sizes, found[0])
    return None


def _group(table: Table, group_by: str | None) -> str | None:
    if group_by is None:
        return table.group
    if group_by in table.columns:
        values = rows_by_name(table.texts(group_by))
        if len(values) > 1:
            raise InputError(
                f"{table.name}: {group_by} changes within the run ({listed(sorted(values))}): "
                "group by a column that does not"
            )
        return next(iter(values), None)
    if group_by in table.facts:
        return table.facts[group_by]
    known = [*table.columns, *table.facts]
    raise InputError(f"{table.name}: no {group_by!r} to group by: {suggest(group_by, known)}")


# -- warning signs --------------------------------------------------------------------------------


#: By our name: the names that known trainers log it under; the first column that matches is read.
WARNING_SIGNS: dict[str, re.Pattern[str]] = {
    name: re.compile(rf"(?:.*[/.])?(?:{pattern})", re.IGNORECASE)
    for name, pattern in {
        "grad_norm": r"grad(?:ient)?_?norm(?:/mean)?",
        "entropy": r"(?:policy_|mean_|actor_)?entropy(?:/mean)?",
        "truncated": r"truncated|truncation(?:_rate|_ratio)?|clipped_ratio"
        r"|response_length/clip_ratio",
        "length": r"(?:response_length|completion_length|completions?|length|response)/mean"
        r"|completions/mean_length|mean_(?:response_|completion_)?length",
        "ratio_max": r"ratio[/_]max",
        "ess": r"ess|effective_sample_size",
    }.items()
}


def read_warning_signs(table: Table, rows: npt.NDArray[np.intp]) -> dict[str, Array]:
    """By name, the side metrics that foretell trouble: for each of `rows` (ascending, the rows of
    evaluations) the mean over the rows since the evaluation before.

    >>> table = Table("mine", {"step": [1, 2, 3, 4], "actor/grad_norm": [1.0, 3.0, None, 5.0]})
    >>> {k: v.tolist() for k, v in read_warning_signs(table, np.array([1, 3])).items()}
    {'grad_norm': [2.0, 5.0]}
    """
    found: dict[str, Array] = {}
    for name, pattern in WARNING_SIGNS.items():
        column = next((c for c in table.columns if pattern.fullmatch(c.strip())), None)
        if column is None or not table.is_numeric(column):
            continue
        values = table.numbers(column)
        means = _means(values, rows)
        if np.isfinite(means).any():
            found[name] = means
    return found


def _means(values: Array, rows: npt.NDArray[np.intp]) -> Array:
    """Of the finite values since the row before, for each of `rows`; nan where there is none."""
    if not len(rows):
        return np.empty(0)
    finite = np.isfinite(values[: rows[-1] + 1])
    starts = np.concatenate([[0], rows[:-1] + 1])
    total = np.add.reduceat(np.where(finite, values[: rows[-1] + 1], 0.0), starts)
    count = np.add.reduceat(finite, starts, dtype=np.intp)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
