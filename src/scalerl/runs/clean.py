"""From logged points to a curve: sorted, finite, each compute once.

The rules, each with a note on the run when it changed something:

1. A row without a finite compute and a finite score is dropped. Negative compute is refused.
2. Where compute goes back in log order, the run was resumed: the later attempt replaces the
   earlier points at or beyond the place it restarted from. It counts as a resume when the two
   attempts share a compute value, or, for a clock or tokens (which never repeat exactly) and for
   fractions of an unknown unit, when both hold three points or more.
3. A log that keeps going back (stretches of fewer than 2.5 rows) or that goes back without
   sharing a value is merely unsorted: it is sorted.
4. Of several points at the same compute the last logged one stays.
5. A gap of more than five times the usual distance is kept and noted.

Compute 0, a single point and a constant score are kept: what to make of them is for the fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalerl.errors import InputError
from scalerl.runs.record import Array, ComputeKind, Rows


@dataclass(frozen=True)
class Clean:
    """Compute ascending and unique, the rows it came from, and what was done."""

    compute: Array
    rows: Rows
    notes: tuple[str, ...]


def clean(compute: Array, score: Array, kind: ComputeKind = "unknown") -> Clean:
    """Apply the rules above. `rows` are the indices into the input that stay.

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
    rows = rows[np.argsort(compute[rows], kind="stable")]
    last = np.append(compute[rows][1:] != compute[rows][:-1], True)
    if repeated := int((~last).sum()):
        notes.append(f"{repeated} points at a compute logged again later: the last one stays")
    rows = rows[last]
    ordered = compute[rows]
    notes.extend(_gaps(ordered))
    return Clean(ordered, rows, tuple(notes))


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
