"""From logged points to a curve: sorted, finite, each compute once.

The rules, each with a note on the run when it changed something:

1. A row without a finite compute and a finite score is dropped. Negative compute is refused.
2. Where compute goes back in log order, the run was resumed: the later attempt replaces the
   earlier points at or beyond the place it restarted from. It counts as a resume when the two
   attempts share a compute value, or, for a clock or tokens (which never repeat exactly) and for
   fractions of an unknown unit, when both hold three points or more.
3. A log that keeps going back (stretches of fewer than 2.5 rows) or that goes back without
   sharing a value is merely unsorted: it is sorted.
4. Where most points share their compute with the row before, as the groups or answers of a step
   do, each is the mean of its rows, weighted by their samples where these are known. Otherwise a
   step was logged again after a resume: of points at the same compute the last logged one stays.
5. A gap of more than five times the usual distance is kept and noted.

Compute 0, a single point and a constant score are kept: what to make of them is for the fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalerl.errors import InputError
from scalerl.runs.record import Array, ComputeKind, Flags, Rows


@dataclass(frozen=True)
class Clean:
    """Compute ascending and unique, the scores there, and what was done."""

    compute: Array
    score: Array
    #: Indices into the input, the last of each point.
    rows: Rows
    notes: tuple[str, ...]
    #: Samples behind each score where the rows have them; else, where a score is the mean of rows
    #: that are each right or wrong, their number.
    n_eval: Array | None = None


def clean(
    compute: Array, score: Array, kind: ComputeKind = "unknown", n_eval: Array | None = None
) -> Clean:
    """Apply the rules above.

    >>> import numpy as np
    >>> nan = float("nan")
    >>> clean(np.array([1.0, 2, 3, 2, 3, 4]), np.array([0.1, 0.2, nan, 0.3, 0.4, 0.5])).rows
    array([0, 3, 4, 5])
    """
    notes: list[str] = []
    finite = np.isfinite(compute) & np.isfinite(score)
    rows = np.flatnonzero(finite)
    if dropped := len(compute) - len(rows):
        notes.append(f"{dropped} of {len(compute)} rows without a finite compute and score dropped")
    if not len(rows):
        raise InputError("no row has both a compute and a score: check --x and --y")
    if compute[rows].min() < 0:
        raise InputError(f"compute is negative ({compute[rows].min():g}): check --x")
    # Before sorting, because only the order of the log shows where a run was resumed.
    rows = _resolve_restarts(rows, compute, kind, notes)
    # Stable, so that among equal values the last logged comes last.
    together = _logged_together(compute[rows])
    rows = rows[np.argsort(compute[rows], kind="stable")]
    last = np.append(compute[rows][1:] != compute[rows][:-1], True)
    kept = rows[last]
    sizes = None if n_eval is None else n_eval[kept]
    points = score[kept]
    if repeated := int((~last).sum()):
        if together:
            points, sizes = _means(score[rows], last, None if n_eval is None else n_eval[rows])
            notes.append(f"{len(rows)} rows at {len(kept)} amounts of compute: their means")
        else:
            notes.append(f"{repeated} points at a compute logged again later: the last one stays")
    notes.extend(_gaps(compute[kept]))
    return Clean(compute[kept], points, kept, tuple(notes), sizes)


def _logged_together(x: Array) -> bool:
    """Whether most points have several rows that follow each other in the log."""
    first = np.append(True, x[1:] != x[:-1])
    rows_of_each = np.diff(np.append(np.flatnonzero(first), len(x)))
    return bool((rows_of_each > 1).mean() > 0.5)


def _means(score: Array, last: Flags, n_eval: Array | None) -> tuple[Array, Array | None]:
    """The mean score of each point, from rows in order of compute, and the samples behind it."""
    starts = np.append(0, np.flatnonzero(last)[:-1] + 1)
    count = np.add.reduceat(np.ones(len(score)), starts)
    weight = np.ones(len(score)) if n_eval is None else n_eval
    if not (np.isfinite(weight) & (weight > 0)).all():
        return np.add.reduceat(score, starts) / count, None
    total = np.add.reduceat(weight, starts)
    mean = np.add.reduceat(weight * score, starts) / total
    if n_eval is not None:
        return mean, total
    return mean, count if np.isin(score, (0.0, 1.0)).all() and (count > 1).all() else None


def _resolve_restarts(rows: Rows, compute: Array, kind: ComputeKind, notes: list[str]) -> Rows:
    x = compute[rows]
    starts = np.flatnonzero(np.diff(x) < 0) + 1
    if not len(starts):
        return rows
    # A resumed run has long stretches; one or two rows each are an unsorted log.
    if len(rows) / (len(starts) + 1) < 2.5:
        notes.append(_unsorted(kind))
        return rows
    # Fractions show that a column of unknown unit is a clock or the like: steps are whole numbers.
    fractions = kind == "unknown" and bool((x != np.round(x)).any())
    never_repeats = fractions or kind in {"hours", "gpu_hours", "flops", "tokens"}
    stretches = np.split(rows, starts)
    kept = stretches[0]
    for new in stretches[1:]:
        back_to = compute[new[0]]
        shared = np.intersect1d(compute[kept], compute[new]).size > 0
        if shared or (never_repeats and len(kept) >= 3 and len(new) >= 3):
            replaced = int((compute[kept] >= back_to).sum())
            notes.append(f"resumed at {back_to:g}: {replaced} earlier points left out")
            kept = kept[compute[kept] < back_to]
        elif _unsorted(kind) not in notes:
            notes.append(_unsorted(kind))
        kept = np.concatenate([kept, new])
    return kept


def _unsorted(kind: ComputeKind) -> str:
    if kind in {"steps", "unknown"}:
        return "rows were not in order of compute: sorted"
    return "rows were not in order of compute: sorted (is it a running total?)"


def _gaps(compute: Array) -> list[str]:
    if len(compute) < 6:
        return []
    steps = np.diff(compute)
    # The upper median, which one long gap among few points does not move.
    usual = np.sort(steps)[len(steps) // 2]
    # Not `steps > 5 * usual`, which may overflow for compute near the largest float.
    wide = np.flatnonzero(steps / 5 > usual)
    if not len(wide):
        return []
    at = int(wide[np.argmax(steps[wide])])
    count = "a gap" if len(wide) == 1 else f"{len(wide)} gaps, the largest"
    return [f"{count} between {compute[at]:g} and {compute[at + 1]:g}"]
