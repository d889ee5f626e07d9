"""Which column of a table is the score, whether it falls as a model improves, and its scale."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from itertools import takewhile
from typing import Literal

import numpy as np

from scalerl.errors import InputError
from scalerl.runs import metrics
from scalerl.runs.axis import why_unread
from scalerl.runs.expressions import looks_like_arithmetic, parse
from scalerl.runs.names import find, resolve
from scalerl.runs.record import Array
from scalerl.runs.table import Table
from scalerl.text import listed


def with_expression(table: Table, asked: str | None) -> Table:
    """With the score as a column of the table where it is asked for as `1 - val_error`."""
    if (
        asked is None
        or find(asked, table, table.numeric, "--y")
        or not looks_like_arithmetic(asked)
    ):
        return table
    pattern = bool(set("*?[") & set(asked))
    if asked in table.columns or (pattern and table.y is not None):
        return table
    try:
        expression = parse(asked, table, table.numeric, "--y")
    except InputError:
        if pattern:  # one that matches nothing: the error names it
            return table
        raise
    values: list[object] = list(expression.evaluate(table.numbers, len(table)).tolist())
    return table.made(table.columns | {asked: values}, expressions=(*table.expressions, asked))


def choose_score(table: Table, asked: str | None) -> tuple[str, list[str], Direction]:
    """The column of scores, notes, and whether it holds a score or an error rate."""
    by_pattern = asked is not None and table.y is not None and fnmatch.fnmatchcase(table.y, asked)
    if asked is not None and not by_pattern:
        name = resolve(asked, table, table.numeric, "--y")
        # What an expression makes of a loss is for its author to know.
        way = direction(name) if asked not in table.expressions else "score"
        return name, [], _refuse_loss(table, name, way)
    if table.y is not None and table.y in table.numeric:
        way = _refuse_loss(table, table.y, direction(table.y))
        if way == "error" and not by_pattern:
            raise InputError(_say_error(table, table.y))
        return table.y, [], way
    if table.y is not None and table.y in table.columns:
        why = f" ({table.notes[-1]})" if table.notes else ""
        raise InputError(f"{table.name}: {table.y} holds no number{why}: choose another with --y")
    found, stage = metrics.score_columns(c for c in table.numeric if direction(c) == "score")
    if found and stage == "training" and len(only := held_out_metrics(table)) == 1:
        why = f"{only[0]} is read as the score, the only held-out metric in [0, 1]"
        return only[0], [f"{why}; --y {found[0]} reads the training scores"], "score"
    best = metrics.best_score(found) if found else None
    notes = [why for c in _better_unread(table, found) if (why := why_unread(table, c))]
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
    return _only_column(table), notes, "score"


def _only_column(table: Table) -> str:
    """The score of a table in which no column has the name of one."""
    computes = set(metrics.compute_columns(table.numeric))
    rest = [c for c in table.numeric if c not in computes]
    scores = [c for c in rest if direction(c) == "score"]
    # A table of two columns leaves nothing to choose.
    alone = len(rest) == len(scores) == 1 and len(table.numeric) == 2 and computes
    if alone and not metrics.is_of_a_step(rest[0]) and not metrics.ITEM.fullmatch(rest[0].strip()):
        return rest[0]
    if not rest:
        named = [c for c in table.columns if metrics.score_columns([c])[0]]
        unread = [why for c in named if (why := why_unread(table, c))]
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
    _refuse_loss(table, rest[0], "loss")
    raise AssertionError("a loss is refused")


def _refuse_loss(table: Table, name: str, way: Direction) -> Direction:
    if way != "loss":
        return way
    others = could_serve(table, name)
    what = f"choose a score with --y: {listed(others)}" if others else "log an accuracy beside it"
    raise InputError(f"{table.name}: {name} is a loss, which falls as a model gets better: {what}")


def _say_error(table: Table, name: str) -> str:
    return f"{table.name}: {name} is an error rate: --y {name} reads it as 1 - {name}"


def could_serve(table: Table, but: str) -> tuple[str, ...]:
    """Columns that may be scores, the likeliest first: known names with values in [0, 1], else
    whatever lies there and is neither compute nor a metric of a training step."""
    inside = [c for c in _in_unit_range(table, table.numeric) if c != but]
    found = metrics.known_scores(inside)
    if not found:
        computes = set(metrics.compute_columns(table.numeric))
        found = [c for c in inside if c not in computes and not metrics.is_of_a_step(c)]
    return tuple(found)


def held_out_metrics(table: Table) -> list[str]:
    """Held-out metrics that may be scores though no known name says so: their values change, lie in
    [0, 1], and their names are about nothing else (a length, a share of truncated answers)."""
    computes = set(metrics.compute_columns(table.numeric))
    named = [
        c
        for c in table.numeric
        if metrics.is_held_out(c)
        and c not in computes
        and not metrics.is_beside(c)
        and not metrics.is_other_metric(c)
    ]
    found = _in_unit_range(table, named)
    return [c for c in found if np.nanmin(table.numbers(c)) < np.nanmax(table.numbers(c))]


def training_scores(table: Table) -> dict[str, int]:
    """Training scores in [0, 1] with their number of values, the likeliest first."""
    named = [c for c in table.numeric if metrics.stage_of(c) == "training"]
    found = metrics.known_scores(_in_unit_range(table, named))
    return {c: int(np.isfinite(table.numbers(c)).sum()) for c in found}


def _in_unit_range(table: Table, columns: Iterable[str]) -> list[str]:
    return [
        c
        for c in columns
        if direction(c) != "loss"
        and np.nanmin(values := table.numbers(c)) >= 0
        and np.nanmax(values) <= 1
    ]


def _better_unread(table: Table, found: list[str]) -> list[str]:
    """Columns with a better known name than the score's that hold no numbers."""
    known, _ = metrics.score_columns(c for c in table.columns if direction(c) == "score")
    return [c for c in known if c not in table.numeric and c not in found]


def _pattern(names: list[str]) -> str:
    """A pattern that these names match and that says what they share; "" if they share nothing.

    >>> _pattern(["grpo_acc", "dapo_acc"]), _pattern(["a/acc", "b/score"])
    ('*_acc', '')
    """
    letters = zip(*(reversed(n) for n in names), strict=False)
    tail = "".join(each[0] for each in takewhile(lambda each: len(set(each)) == 1, letters))
    cut = re.search(r"[/_.\- ].*", tail[::-1])
    return f"*{cut[0]}" if cut and not set("*?[]'") & set(cut[0]) else ""


# -- losses and error rates -----------------------------------------------------------------------


#: Unbounded: no score follows from these.
_LOSSES = frozenset(
    {"loss", "losses", "nll", "perplexity", "ppl", "crossentropy", "xent", "bpb", "bpc", "mse",
     "mae", "rmse"}
)  # fmt: skip
_LOSS_PHRASES = re.compile(r"cross entropy|negative log likelihood|bits per (?:byte|character)")
#: Shares of something wrong: 1 minus one is a score.
_ERROR_RATES = frozenset(
    {"error", "errors", "err", "wer", "cer", "misclassification", "failure", "failures", "failed",
     "incorrect", "wrong"}
)  # fmt: skip
#: `evalLoss`, `valError`: where a word begins inside a name.
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")

Direction = Literal["score", "loss", "error"]


def direction(name: str) -> Direction:
    """Whether a metric of this name is a score, a loss, or an error rate.

    >>> [direction(n) for n in ("eval_loss", "val/wer", "evalError", "val_acc", "lossless_acc")]
    ['loss', 'error', 'error', 'score', 'score']
    """
    if metrics.is_about_being_right(name):
        return "score"
    words = [w for w in re.split(r"[^a-z0-9]+", _CAMEL.sub(" ", name).lower()) if w]
    if _LOSSES & set(words) or _LOSS_PHRASES.search(" ".join(words)):
        return "loss"
    # A standard error says how sure a score is.
    return "error" if _ERROR_RATES & set(words) and "std" not in words else "score"


# -- fractions and percent ------------------------------------------------------------------------


_PERCENT = re.compile(r"%|pct|percent", re.IGNORECASE)
_RIGHT = re.compile(
    r"acc|pass|solve|success|correct|exact|win_?rate|mean@|avg@|(?<![a-z])em(?![a-z])",
    re.IGNORECASE,
)
_REWARD = re.compile(r"reward|return|objective", re.IGNORECASE)
#: Rounding error outside of [0, 1] that is accepted and clipped.
_SLACK = 1e-9


def rescale(score: Array, name: str, scale: str | float | None = None) -> tuple[Array, list[str]]:
    """Scores in [0, 1], and a note where they were changed. What is not finite stays as it is.

    >>> import numpy as np
    >>> rescale(np.array([12.0, 40.0]), "val_accuracy")
    (array([0.12, 0.4 ]), ['val_accuracy is in percent: divided by 100'])
    """
    finite = np.isfinite(score)
    if not finite.all():
        inner, notes = rescale(score[finite], name, scale)
        result = score.copy()
        result[finite] = inner
        return result, notes
    if not score.size:
        return score, []
    if scale is None:
        scale = guess_scale(score, name)
    if scale == "fraction":
        result, notes = score, []
    elif scale == "percent":
        result, notes = score / 100, [f"{name} is in percent: divided by 100"]
    elif scale == "pm1":
        result, notes = (score + 1) / 2, [f"{name} mapped from [-1, 1] to [0, 1]"]
    else:
        by = _divisor(scale)
        with np.errstate(over="ignore"):
            result, notes = score / by, [f"{name} divided by {by:g}"]
    low, high = float(result.min()), float(result.max())
    if low < -_SLACK or high > 1 + _SLACK:
        raise InputError(
            f"{name} goes from {score.min():g} to {score.max():g}, which is outside [0, 1] "
            f"with --scale {scale}: give another --scale or choose another --y"
        )
    return np.clip(result, 0.0, 1.0), notes


def guess_scale(score: Array, name: str) -> str:
    """What finite scores of this name are: "fraction" or "percent", else an InputError.

    >>> import numpy as np
    >>> guess_scale(np.array([0.2, 31.0, 40.0]), "val_acc")
    'percent'
    """
    low, high = float(score.min()), float(score.max())
    says_percent = bool(_PERCENT.search(name))
    if low < -_SLACK:
        hint = "--scale pm1 if it is a ±1 reward" if low >= -1 and high <= 1 else "another --y"
        raise InputError(f"{name} goes down to {low:g}, below 0: use {hint}")
    if high <= 1 + _SLACK and not says_percent:
        return "fraction"
    nonzero = score[score > 0]
    mostly_above_1 = nonzero.size > 0 and float((nonzero > 1).mean()) >= 0.5
    if high <= 100 + _SLACK:
        if says_percent:
            return "percent"
        reward = bool(_REWARD.search(name))
        accuracy = bool(_RIGHT.search(name)) and not reward
        if mostly_above_1 and ((accuracy and high > 1.5) or (not reward and high > 10)):
            return "percent"
    raise InputError(
        f"{name} goes from {low:g} to {high:g}, not a score in [0, 1]: use --scale percent, "
        "or --scale N to divide by its largest possible value"
    )


def _divisor(scale: str | float) -> float:
    try:
        value = float(scale)
    except (TypeError, ValueError):
        value = float("nan")
    if not np.isfinite(value) or value <= 0:
        raise InputError(
            f"scale {scale!r} is not known: use fraction, percent, pm1 or a positive number"
        )
    return value
