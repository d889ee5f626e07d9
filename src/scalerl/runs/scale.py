"""Which scores are fractions, which are percent, and which are neither.

The rule, decided once for all runs that share a score's name in one source, so that a run that
never left 1 % is not read as a fraction beside a run that did:

- all in [0, 1]: a fraction, unless the name says percent (`%`, `pct`, `percent`);
- all in [0, 100], at least half of the non-zero scores above 1, and either the name says percent
  or accuracy and the largest is above 1.5, or the name says neither accuracy nor reward and the
  largest is above 10: percent, divided by 100 with a note;
- anything else is refused with what to do. A reward that reaches 3 may be out of 3, 4 or 10, and
  one that goes below 0 may be ±1 or penalised: nobody but its owner knows. In a file where most
  runs are fractions only the runs outside are refused, and the others say so in a note.

`scale` overrides: "fraction", "percent", "pm1" (from [-1, 1]) or a number to divide by.
"""

from __future__ import annotations

import re

import numpy as np

from scalerl.errors import InputError
from scalerl.runs.record import Array

_PERCENT = re.compile(r"%|pct|percent", re.IGNORECASE)
_RIGHT = re.compile(
    r"acc|pass|solve|success|correct|exact|win_?rate|mean@|avg@|(?<![a-z])em(?![a-z])",
    re.IGNORECASE,
)
_REWARD = re.compile(r"reward|return|objective", re.IGNORECASE)
#: Float error around 0 and 1 that is forgiven.
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
