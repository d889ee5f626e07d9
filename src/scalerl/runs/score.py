"""Which column of a table is the score, and what is said where none is."""

from __future__ import annotations

import fnmatch
import re
from itertools import takewhile

import numpy as np

from scalerl.errors import InputError
from scalerl.runs import metrics
from scalerl.runs.axis import why_unread
from scalerl.runs.expressions import looks_like_arithmetic, parse
from scalerl.runs.lower_is_better import Direction, direction
from scalerl.runs.names import find, resolve
from scalerl.runs.table import Table
from scalerl.text import listed


def with_expression(table: Table, numeric: list[str], asked: str | None) -> tuple[Table, list[str]]:
    """With the score as a column of the table where it is asked for as `1 - val_error`."""
    if asked is None or find(asked, table, numeric, "--y") or not looks_like_arithmetic(asked):
        return table, numeric
    pattern = bool(set("*?[") & set(asked))
    if asked in table.columns or (pattern and table.y is not None):
        return table, numeric
    try:
        expression = parse(asked, table, numeric, "--y")
    except InputError:
        if pattern:  # one that matches nothing: the error names it
            return table, numeric
        raise
    values: list[object] = list(expression.evaluate(table.numbers, len(table)).tolist())
    made = table.made(table.columns | {asked: values}, expressions=(*table.expressions, asked))
    return made, [*numeric, asked] if made.is_numeric(asked) else numeric


def choose_score(
    table: Table, numeric: list[str], asked: str | None
) -> tuple[str, list[str], Direction]:
    """The column of scores, notes, and whether it holds a score or an error rate."""
    by_pattern = asked is not None and table.y is not None and fnmatch.fnmatchcase(table.y, asked)
    if asked is not None and not by_pattern:
        name = resolve(asked, table, numeric, "--y")
        # What an expression makes of a loss is for its author to know.
        way = direction(name) if asked not in table.expressions else "score"
        return name, [], _refuse_loss(table, numeric, name, way)
    if table.y is not None and table.y in numeric:
        way = _refuse_loss(table, numeric, table.y, direction(table.y))
        if way == "error" and not by_pattern:
            raise InputError(_say_error(table, table.y))
        return table.y, [], way
    if table.y is not None and table.y in table.columns:
        why = f" ({table.notes[-1]})" if table.notes else ""
        raise InputError(f"{table.name}: {table.y} holds no number{why}: choose another with --y")
    found, _ = metrics.score_columns(c for c in numeric if direction(c) == "score")
    best = metrics.best_score(found) if found else None
    notes = [why for c in _better_unread(table, numeric, found) if (why := why_unread(table, c))]
    if best is not None:
        others = [name for name in found if name != best]
        if others:
            notes.append(f"{best} is read as the score, not {listed(others, 4)}")
        return best, notes, "score"
    if found:
        each = f"; --y '{_pattern(found)}' reads each as a run" if _pattern(found) else ""
        raise InputError(
            f"{table.name}: several scores, choose one with --y: {listed(found)}{each}"
        )
    return _only_column(table, numeric), notes, "score"


def _only_column(table: Table, numeric: list[str]) -> str:
    """The score of a table in which no column has the name of one."""
    computes = set(metrics.compute_columns(numeric))
    rest = [c for c in numeric if c not in computes]
    scores = [c for c in rest if direction(c) == "score"]
    # A table of two columns leaves nothing to choose.
    alone = len(rest) == len(scores) == 1 and len(numeric) == 2 and computes
    if alone and not metrics.is_of_a_step(rest[0]):
        return rest[0]
    if not rest:
        unread = [why for c in table.columns if (why := _unread_score(table, c))]
        why = f" ({unread[0]})" if unread else ""
        raise InputError(f"{table.name}: no column of scores{why}: it has {listed(table.columns)}")
    if scores:
        alike = computes and len(scores) == len(rest) > 1
        each = "; --y '*' reads each column as a run" if alike else ""
        raise InputError(
            f"{table.name}: no known score, choose one with --y: {listed(scores)}{each}"
        )
    errors = [c for c in rest if direction(c) == "error"]
    if errors:
        raise InputError(_say_error(table, errors[0]))
    _refuse_loss(table, numeric, rest[0], "loss")
    raise AssertionError("a loss is refused")


def _refuse_loss(table: Table, numeric: list[str], name: str, way: Direction) -> Direction:
    if way != "loss":
        return way
    others = could_serve(table, numeric, name)
    what = f"choose a score with --y: {listed(others)}" if others else "log an accuracy beside it"
    raise InputError(f"{table.name}: {name} is a loss, which falls as a model gets better: {what}")


def _say_error(table: Table, name: str) -> str:
    return f"{table.name}: {name} is an error rate: --y {name} reads it as 1 - {name}"


def could_serve(table: Table, numeric: list[str], but: str) -> tuple[str, ...]:
    """Columns that may be scores, the likeliest first: known names with values in [0, 1], else
    whatever lies there and is neither compute nor a metric of a training step."""
    inside = [
        c
        for c in numeric
        if c != but
        and direction(c) != "loss"
        and np.nanmin(values := table.numbers(c)) >= 0
        and np.nanmax(values) <= 1
    ]
    found = metrics.known_scores(inside)
    if not found:
        computes = set(metrics.compute_columns(numeric))
        found = [c for c in inside if c not in computes and not metrics.is_of_a_step(c)]
    return tuple(found)


def _better_unread(table: Table, numeric: list[str], found: list[str]) -> list[str]:
    """Columns with a better known name than the score's that hold no numbers."""
    known, _ = metrics.score_columns(c for c in table.columns if direction(c) == "score")
    return [c for c in known if c not in numeric and c not in found]


def _unread_score(table: Table, column: str) -> str:
    return why_unread(table, column) if metrics.score_columns([column])[0] else ""


def _pattern(names: list[str]) -> str:
    """A pattern that these names match and that says what they share; "" if they share nothing.

    >>> _pattern(["grpo_acc", "dapo_acc"]), _pattern(["a/acc", "b/score"])
    ('*_acc', '')
    """
    letters = zip(*(reversed(n) for n in names), strict=False)
    tail = "".join(each[0] for each in takewhile(lambda each: len(set(each)) == 1, letters))
    cut = re.search(r"[/_.\- ].*", tail[::-1])
    return f"*{cut[0]}" if cut and not set("*?[]'") & set(cut[0]) else ""
