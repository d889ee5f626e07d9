"""What a step of training costs, and whether that changes over a run: answers grow longer.

A log may count what was used so far (`num_tokens`, `_runtime`), or what each step took
(`step_time`, `perf/total_num_tokens`). The latter is summed over the steps: `--x 'sum(step_time)'`.
A step that a resumed run took again counts once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from scalerl.runs.record import Array, ComputeKind

#: Least factor by which the cost of a step changes from the first to the last quarter of a run for
#: an axis of steps to mislead.
MIN_CHANGE = 1.25
#: Standard errors by which the two quarters have to differ.
MIN_Z = 3.0
#: Fewest steps with a known cost: two in each quarter.
MIN_STEPS = 8
#: Names of what one step took, with the kind of the sum and what divides it to be in that unit.
_PER_STEP: tuple[tuple[re.Pattern[str], ComputeKind, float], ...] = (
    (
        re.compile(
            r"(?:.*[/_])?(?:(?:seconds?|secs?|time)_per_(?:step|iteration)|total_step_time"
            r"|(?:step|iteration|iter)_(?:time|seconds?|secs?)(?:_?s|_sec)?|timing_s/step"
            r"|time/step)",
            re.IGNORECASE,
        ),
        "hours",
        3600.0,
    ),
    (
        re.compile(
            r"(?:.*[/_])?(?:tokens_per_step|step_tokens|total_num_tokens|progress/tokens)",
            re.IGNORECASE,
        ),
        "tokens",
        1.0,
    ),
)


def per_step_kind(name: str) -> tuple[ComputeKind, float] | None:
    """What the sum of a column counts, and its divisor; None for a column that is not of a step.

    >>> per_step_kind("timing_s/step"), per_step_kind("perf/total_num_tokens")
    (('hours', 3600.0), ('tokens', 1.0))
    >>> per_step_kind("num_tokens"), per_step_kind("time/rollout")
    (None, None)
    """
    for pattern, kind, divisor in _PER_STEP:
        if pattern.fullmatch(name.strip()):
            return kind, divisor
    return None


def summed(cost: Array, steps: Array) -> Array:
    """What was used up to each row, given the cost of a step there: rows between two that say it
    cost as much as the later one; of a step on several rows the last one counts.

    >>> summed(np.array([1.0, np.nan, 3.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])).tolist()
    [1.0, 4.0, 7.0, 10.0]
    """
    known = np.flatnonzero(np.isfinite(cost) & np.isfinite(steps))
    if not len(known):
        return np.full(len(cost), np.nan)
    last = {float(steps[i]): float(cost[i]) for i in known}
    at = np.array(sorted(last))
    each = np.array([last[s] for s in at])
    # The first row may be step 0 or 1, or the end of the first stretch between two lines.
    length = np.diff(at, prepend=0.0)
    total = np.cumsum(each * length)
    found = np.interp(steps, np.append(0.0, at), np.append(0.0, total))
    return np.where(np.isfinite(steps), found, np.nan)


@dataclass(frozen=True, slots=True)
class StepCost:
    """How the cost of a step changes over a run, in the unit in which that is clearest."""

    kind: ComputeKind
    #: As `--x` takes it.
    name: str
    #: Cost of a step in the last quarter of the run over that in the first.
    ratio: float
    #: Whether it is a sum over steps or a count, which a pause of the run does not change.
    counts_work: bool

    @property
    def changes(self) -> bool:
        """Whether an axis of steps hides a change."""
        return max(self.ratio, 1.0 / self.ratio) > MIN_CHANGE

    def __str__(self) -> str:
        return (
            f"a step takes {self.ratio:.2g} times as many {self.kind} in the last quarter of the "
            "run as in the first"
        )


def cost_ratio(steps: Array, total: Array) -> float | None:
    """Cost of a step in the last quarter of a run over that in the first, given a running total;
    None where too little is known, or where noise may explain the difference. Medians, so that a
    pause of the run does not count.

    >>> steps = np.arange(1.0, 21.0)
    >>> cost_ratio(steps, np.where(steps <= 10, steps, 2 * steps - 10))
    2.0
    """
    known = np.isfinite(steps) & np.isfinite(total)
    at, index = np.unique(steps[known][::-1], return_index=True)
    if len(at) <= MIN_STEPS:
        return None
    used = total[known][::-1][index]
    rate = np.diff(used) / np.diff(at)
    quarter = len(rate) // 4
    parts = rate[:quarter], rate[-quarter:]
    first, last = (float(np.median(part)) for part in parts)
    if first <= 0 or last <= 0:
        return None
    # sd from the median absolute deviation; a median of n values has 1.25 times their mean's error.
    errors = [1.25 * 1.48 * np.median(np.abs(p - np.median(p))) / np.sqrt(quarter) for p in parts]
    clear = abs(last - first) >= MIN_Z * np.hypot(*errors)
    return last / first if clear else None
