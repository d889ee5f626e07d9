"""Which column of a table is compute, and how its numbers are read.

`--x NAME` names a column; `--x "EXPRESSION as KIND"` computes it (`expressions.py`) and says what
it counts; `--x 'sum(NAME)'` adds up what each step took (`step_costs.py`); `--gpus N` makes
GPU-hours of a clock, or of steps with `--seconds-per-step`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import cast, get_args

import numpy as np

from scalerl.errors import InputError
from scalerl.runs import metrics
from scalerl.runs.expressions import Expression, looks_like_arithmetic, parse, quoted
from scalerl.runs.names import LoadOptions, find, resolve
from scalerl.runs.record import Array, ComputeKind
from scalerl.runs.step_costs import StepCost, cost_ratio, per_step_kind, summed
from scalerl.runs.table import Table, is_missing, to_float, to_timestamp
from scalerl.text import listed

# Not left to expressions.py: a clock is in hours here, and hours times a number are GPU-hours.
_FACTOR = re.compile(r"(.+?)\s*\*\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)")
_SUM = re.compile(r"sum\((.+)\)")
_AS = re.compile(r"(.+?)\s+as\s+([\w\- ]+)", re.DOTALL)
#: Least share of the changes of a running total, row to row, that go up. Not 1: a resumed job may
#: set a clock back once.
MIN_RISING_SHARE = 0.9
#: A column that may be the size of an evaluation (`n_samples`) counts as compute if it grows by
#: this factor: the sizes of evaluations differ by a few samples.
MIN_GROWTH = 1.5


@dataclass(frozen=True)
class Axis:
    """The compute of every row. `name` may be given as `--x` again."""

    name: str
    values: Array
    kind: ComputeKind
    #: Columns that it was read from.
    columns: tuple[str, ...]
    #: Where it counts steps: how the cost of a step changes, if the log says so.
    cost: StepCost | None = None


def choose_axis(table: Table, y_name: str, choice: LoadOptions, notes: list[str]) -> Axis:
    """The compute of every row of a table with this score."""
    y = table.numbers(y_name)
    usable = [c for c in _usable(table) if c != y_name]
    if choice.gpus is not None:
        return _gpu_hours(table, usable, y, choice, notes)
    if choice.x is not None:
        return _with_cost(table, _asked_axis(table, usable, choice.x, notes))
    name = _found(table, usable, y, notes)
    return _with_cost(table, Axis(name, *read_column(table, name), (name,)))


def _with_cost(table: Table, axis: Axis) -> Axis:
    """An axis of steps with the change of a step's cost that is clearest, counts before clocks."""
    if axis.kind != "steps":
        return axis
    found: list[StepCost] = []
    for name, values, kind in costs(table, axis.values):
        ratio = cost_ratio(axis.values, values)
        if ratio is not None:
            # Sums and tokens count work; a clock goes on while a run waits or validates.
            found.append(StepCost(kind, name, ratio, name.startswith("sum(") or kind != "hours"))
    found.sort(key=lambda cost: (not cost.changes, not cost.counts_work))
    return replace(axis, cost=next(iter(found), None))


def costs(table: Table, steps: Array) -> list[tuple[str, Array, ComputeKind]]:
    """What the log says about the cost of its steps, as running totals: by name for `--x`, with
    values and kind. GPU-hours and FLOPs come first; a count of samples is no cost."""
    found: list[tuple[str, Array, ComputeKind]] = []
    for name in metrics.compute_columns(_usable(table)):
        values, kind = read_column(table, name)
        if kind in ("gpu_hours", "flops", "tokens", "hours") and _rises(values):
            found.append((name, values, kind))
    counted = {kind for _, _, kind in found if kind != "hours"}
    for name in table.numeric:
        kind, divisor = per_step_kind(name) or ("unknown", 1.0)
        if kind != "unknown" and kind not in counted:
            total = summed(table.numbers(name), steps) / divisor
            found.append((f"sum({name})", total, kind))
    return found


def named_columns(table: Table, choice: LoadOptions) -> list[str]:
    """The columns that an asked axis is read from; none where it is not asked for, or cannot be
    read from this table."""
    if choice.x is None:
        return []
    try:
        return list(_parse(table, list(table.columns), choice.x).columns)
    except InputError:
        return []


def other_axes(table: Table, y: Array, axis: Axis) -> dict[str, Array]:
    """By kind of compute: other running totals of the table, to convert amounts given in them."""
    found: dict[str, Array] = {}
    for name in metrics.compute_columns(_usable(table)):
        values, kind = read_column(table, name)
        if (
            kind not in found
            and kind not in ("unknown", axis.kind)
            and _rises(values[np.isfinite(y)])
        ):
            found[kind] = carry_forward(values, y)
    if axis.kind == "steps":
        for _, values, kind in costs(table, axis.values):
            found.setdefault(kind, carry_forward(values, y))
    return found


def _usable(table: Table) -> list[str]:
    # Moments may be written as ISO 8601 texts, which do not count as numeric.
    numbers = set(table.numeric)
    return [c for c in table.columns if c in numbers or metrics.compute_kind(c)[1] == "moments"]


@dataclass(frozen=True)
class _AxisRequest:
    """A parsed `--x`: a column, a column times a number, or an expression; and what it counts."""

    text: str
    columns: tuple[str, ...]
    kind: ComputeKind | None = None
    factor: float = 1.0
    expression: Expression | None = None
    #: Whether the column is summed over the steps.
    summed: bool = False


def _parse(table: Table, usable: list[str], asked: str) -> _AxisRequest:
    # A column may itself be called `hours as logged`: an exact name wins.
    match = None if asked in table.columns else _AS.fullmatch(asked.strip())
    text, kind = (match[1], _stated_kind(match[2])) if match else (asked, None)
    name = find(text, table, usable, "--x")
    factor = _FACTOR.fullmatch(text) if name is None else None
    total = _SUM.fullmatch(factor[1] if factor else text) if name is None else None
    if total is not None:
        column, by = resolve(total[1], table, usable, "--x"), float(factor[2]) if factor else 1.0
        shown = f"sum({column})*{_number(by)}" if factor else f"sum({column})"
        return _AxisRequest(shown, (column,), kind, by, summed=True)
    times = find(factor[1], table, usable, "--x") if factor else None
    if factor and times is not None:
        by = float(factor[2])
        return _AxisRequest(f"{times}*{_number(by)}", (times,), kind, factor=by)
    if name is None and looks_like_arithmetic(text):
        expression = parse(text, table, usable, "--x")
        return _AxisRequest(expression.text, expression.columns, kind, expression=expression)
    name = name or resolve(text, table, usable, "--x")
    return _AxisRequest(name, (name,), kind)


def _asked_axis(table: Table, usable: list[str], text: str, notes: list[str]) -> Axis:
    """The axis of `--x`. A clock is in hours, but in seconds, as logged, inside an expression."""
    asked = _parse(table, usable, text)
    if asked.expression is not None:
        kind: ComputeKind = "unknown"
        values = asked.expression.evaluate(lambda c: _as_logged(table, c), len(table))
        clocks = [c for c in asked.columns if metrics.compute_kind(c)[1]]
        notes += [f"{c} counts seconds in {asked.text}" for c in clocks]
    else:
        values, kind = (_sum if asked.summed else read_column)(table, asked.columns[0])
        if asked.factor != 1:
            kind = "gpu_hours" if kind in {"hours", "gpu_hours"} else "unknown"
            with np.errstate(over="ignore", invalid="ignore"):
                values = values * asked.factor
    name = asked.text if asked.kind is None else f"{asked.text} as {asked.kind}"
    return Axis(name, values, asked.kind or kind, asked.columns)


def _sum(table: Table, column: str) -> tuple[Array, ComputeKind]:
    """What the steps took together, up to each row, and what that counts."""
    usable = _usable(table)
    steps = [c for c in metrics.compute_columns(usable) if metrics.compute_kind(c)[0] == "steps"]
    if not steps:
        raise InputError(f"{table.name}: --x sum({column}) needs a column of steps")
    kind, divisor = per_step_kind(column) or ("unknown", 1.0)
    return summed(table.numbers(column), table.numbers(steps[0])) / divisor, kind


def _stated_kind(word: str) -> ComputeKind:
    plain = re.sub(r"[\s\-]+", "_", word.strip().lower())
    known = [k for k in get_args(ComputeKind) if k != "unknown"]
    if plain not in known:
        raise InputError(f"--x … as {word.strip()}: give one of {', '.join(known)}")
    return cast(ComputeKind, plain)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and value < 1e15 else repr(value)


def _gpu_hours(
    table: Table, usable: list[str], y: Array, choice: LoadOptions, notes: list[str]
) -> Axis:
    """Hours on the clock, or steps of so many seconds, times the number of GPUs."""
    gpus, seconds = float(choice.gpus or 1.0), choice.seconds_per_step
    wanted = "hours" if seconds is None else "steps"
    name = choice.x or (_steps if seconds else _clock)(table, usable, y)
    base = _asked_axis(table, usable, name, notes)
    # What is asked for with --seconds-per-step are steps, whatever their column is called.
    if base.kind != wanted and not (seconds is not None and base.kind == "unknown"):
        what = "has no known unit" if base.kind == "unknown" else f"counts {base.kind}"
        raise InputError(
            f"{table.name}: {base.name} {what}, and GPU-hours come from {wanted} here: choose "
            f"another --x, or say it with --x 'NAME as {wanted}'"
        )
    text = re.sub(r" as \w+$", "", base.name)
    if seconds is None:
        end = "" if text == base.name else " as gpu_hours"
        # Parentheses, so that the name means the same when it is given as --x: `(a + b)*8`.
        alone = text in (base.columns[0], f"sum({base.columns[0]})")
        text = text if alone else f"({text})"
        return Axis(f"{text}*{_number(gpus)}{end}", base.values * gpus, "gpu_hours", base.columns)
    text = quoted(text) if text in base.columns else f"({text})"
    text = f"{text}*{_number(gpus)}*{_number(seconds)}/3600 as gpu_hours"
    return Axis(text, base.values * gpus * seconds / 3600, "gpu_hours", base.columns)


def _clock(table: Table, usable: list[str], y: Array) -> str:
    clocks = [c for c in metrics.compute_columns(usable) if read_column(table, c)[1] == "hours"]
    rising = [c for c in clocks if _rises(read_column(table, c)[0])]
    taken = [c for c in table.numeric if (per_step_kind(c) or ("",))[0] == "hours"]
    if not rising and taken:
        return f"sum({taken[0]})"
    if not rising:
        why = f" ({listed(clocks, 3)} does not rise)" if clocks else ""
        raise InputError(
            f"{table.name}: --gpus needs a clock, such as _runtime or _timestamp{why}: add "
            "--seconds-per-step, or write --x 'step*8*31.2/3600 as gpu_hours'"
        )
    return _most_there(table, rising, y) or rising[0]


def _steps(table: Table, usable: list[str], y: Array) -> str:
    steps = [c for c in metrics.compute_columns(usable) if metrics.compute_kind(c)[0] == "steps"]
    name = _most_there(table, [c for c in steps if _counts_up(table, c, y)], y)
    if name is None:
        raise InputError(
            f"{table.name}: --seconds-per-step needs a column of steps: name it with --x"
        )
    return name


def _found(table: Table, usable: list[str], y: Array, notes: list[str]) -> str:
    if table.x is not None and table.x in usable and _is_there(table, table.x, y):
        return table.x
    known = metrics.compute_columns(usable)
    counting = [name for name in known if _counts_up(table, name, y)]
    name = _most_there(table, counting, y)
    if name is None:
        # A single evaluation counts nothing up, and steps are steps.
        name = next((c for c in known if metrics.compute_kind(c)[0] == "steps"), None)
    notes += _unreadable(table, usable, name)
    if name is not None:
        passed = [c for c in known[: known.index(name)] if c not in counting]
        if passed:
            notes.append(f"{name} is the compute, not {listed(passed, 3)}: no running total")
        return name
    rest = [c for c in usable if table.is_numeric(c)]
    if not rest:
        raise InputError(f"{table.name}: no column of compute: it has {listed(table.columns)}")
    why = f" ({listed(known, 3)} does not count up)" if known else ""
    raise InputError(f"{table.name}: no known compute{why}, choose one with --x: {listed(rest)}")


def _unreadable(table: Table, usable: list[str], chosen: str | None) -> list[str]:
    """A note of each column that would have come before the chosen one, had it held numbers."""
    known = metrics.compute_columns(table.columns)
    before = known[: known.index(chosen)] if chosen in known else known
    return [why for c in before if c not in usable and (why := why_unread(table, c))]


def why_unread(table: Table, column: str) -> str:
    """That a column is passed over, with its first cell that is no number; "" if it is empty."""
    cells = (c for c in table.columns[column] if not is_missing(c) and np.isnan(to_float(c)))
    first = next(cells, None)
    return "" if first is None else f"{column} is passed over: {str(first)[:40]!r} is not a number"


def _is_there(table: Table, name: str, y: Array) -> bool:
    """Whether most rows of the score have a finite value in this column."""
    return bool(np.isfinite(read_column(table, name)[0][np.isfinite(y)]).mean() > 0.5)


def _most_there(table: Table, columns: list[str], y: Array) -> str | None:
    """The first column that most rows of the score have, else the first; None of none."""
    name = next((c for c in columns if _is_there(table, c, y)), next(iter(columns), None))
    # W&B's own _step counts calls of log: steps on the rows of training are carried forward.
    steps = [c for c in columns if metrics.compute_kind(c)[0] == "steps" and c != "_step"]
    return steps[0] if name == "_step" and steps else name


def _rises(values: Array) -> bool:
    """Whether a column is a running total: it changes, and hardly ever goes down."""
    changes = np.diff(values[np.isfinite(values)])
    changes = changes[changes != 0]
    return bool(len(changes) and (changes > 0).mean() >= MIN_RISING_SHARE)


def _counts_up(table: Table, name: str, y: Array) -> bool:
    """Whether a column may be compute: it is not the same everywhere; what counts samples or tokens
    mostly rises; and steps under an unknown name are whole numbers that mostly rise.

        num_rollouts 64, 64, 64: a batch size.   n_samples 500, 500, 480: the evaluation's.
        n_samples 500, 501, 503: still not what a run has used up.
    """
    x, kind = read_column(table, name)
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
        # A running total has grown since its first value, and hardly ever goes down.
        if metrics.MAYBE_N_EVAL.fullmatch(name.strip()):
            rising = rising and _rises(x) and x.max() >= MIN_GROWTH * x[0]
        return bool(rising and whole)
    return True


def read_column(table: Table, name: str) -> tuple[Array, ComputeKind]:
    """The compute in a column, a clock in hours, and what it counts."""
    kind, unit = metrics.compute_kind(name)
    stated = next((table.columns[c] for c in metrics.KIND if c in table.columns), None)
    if stated is not None and unit == "" and name.lower() in {"x", "c", "compute"}:
        word = next((str(v).strip() for v in stated if not is_missing(v)), "")
        kind = cast(ComputeKind, word) if word in get_args(ComputeKind) else "unknown"
    # Numbers near the largest float become infinite here; cleaning drops and counts them.
    with np.errstate(over="ignore", invalid="ignore"):
        values = _as_logged(table, name)
        return values / 3600 if unit else values, kind


def _as_logged(table: Table, name: str) -> Array:
    """The numbers of a column; moments as seconds since the first."""
    if metrics.compute_kind(name)[1] != "moments":
        return table.numbers(name)
    moments = np.array([to_timestamp(v) for v in table.columns[name]], dtype=np.float64)
    finite = moments[np.isfinite(moments)]
    return moments - finite[0] if finite.size else moments


def carry_forward(x: Array, y: Array) -> Array:
    """Compute for the rows of a score: where most have none of their own, the last before them."""
    # Trackers log evaluations on rows of their own, without the step of the training row before.
    here = np.isfinite(y)
    if not here.any() or np.isfinite(x[here]).mean() > 0.5:
        return x
    last = np.maximum.accumulate(np.where(np.isfinite(x), np.arange(len(x)), -1))
    filled: Array = np.where(last >= 0, x[np.maximum(last, 0)], np.nan)
    return filled
