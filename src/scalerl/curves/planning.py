"""How much more compute would settle it? Answered by trying: the run is continued many times as its
own forecast says it may go, and fitted again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.curves.fit import MIN_POINTS, fit
from scalerl.curves.result import Fit
from scalerl.runs.record import Run

#: Multiples of the compute spent that are tried, ascending.
MULTIPLES = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
#: Continuations per multiple, and the share of them that must settle it.
TRIALS = 12
ENOUGH = 0.7
#: A simulated continuation has at most this many new evaluations.
MAX_NEW = 48


@dataclass(frozen=True, slots=True)
class ComputeNeeded:
    """The compute that would settle a question, with the share of simulated futures that do then.

    >>> from scalerl import ComputeNeeded
    >>> print(ComputeNeeded("identify the ceiling", 24_000.0, 2.0, settled=0.75))
    going on to 24,000 (2 times the compute so far) would identify the ceiling,
    in 75% of simulated continuations
    """

    question: str
    #: None: not even the largest multiple tried is enough.
    compute: float | None
    multiple: float | None
    settled: float

    def __str__(self) -> str:
        if self.compute is None:
            return (
                f"more than {MULTIPLES[-1]:g} times the compute so far would be needed to "
                f"{self.question}"
            )
        return (
            f"going on to {_amount(self.compute)} ({self.multiple:g} times the compute so far) "
            f"would {self.question}, in {self.settled:.0%} of simulated continuations"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "compute": self.compute,
            "multiple": self.multiple,
            "settled": self.settled,
        }


def _amount(compute: float) -> str:
    return f"{compute:,.0f}" if compute >= 100.0 else f"{compute:.3g}"


def continued(f: Fit, multiple: float, rng: np.random.Generator) -> Run:
    """The run with one possible future appended, evaluated as often as it has been lately."""
    points = f.points
    recent = max(len(points) // 4, 2)
    step = (points.compute[-1] - points.compute[-recent]) / (recent - 1)
    new = int(np.clip((multiple - 1.0) * f.end / max(step, 1e-12), 4, MAX_NEW))
    at = np.linspace(f.end, multiple * f.end, new + 1)[1:]
    levels = f.belief.levels(at)
    row = rng.integers(len(levels))
    seen = levels[row] + f.belief.noise()[row] * rng.standard_normal(new)
    n_eval = points.n_eval
    if n_eval is not None:
        n_eval = np.concatenate([n_eval, np.full(new, np.median(n_eval))])
    return points.replace(
        compute=np.concatenate([points.compute, at]),
        score=np.concatenate([points.score, np.clip(seen, 0.0, 1.0)]),
        n_eval=n_eval,
        signs={},  # of the future none is known
    )


def to_identify(f: Fit) -> ComputeNeeded:
    """The compute that would identify the ceiling."""

    def settled(multiple: float, rng: np.random.Generator) -> bool:
        longer = fit(continued(f, multiple, rng), law=f.law, r0=f.r0)
        return longer.identified or longer.alarm is not None

    return search("identify the ceiling", f.end, settled, f.seed)


def search(
    question: str, spent: float, settled: Callable[[float, np.random.Generator], bool], seed: int
) -> ComputeNeeded:
    """The smallest multiple that settles it often enough, by bisection."""
    share: dict[int, float] = {}

    def enough(i: int) -> bool:
        rng = np.random.default_rng((seed, 21, i))
        share[i] = float(np.mean([settled(MULTIPLES[i], rng) for _ in range(TRIALS)]))
        return share[i] >= ENOUGH

    low, high = 0, len(MULTIPLES) - 1
    if not enough(high):
        return ComputeNeeded(question, None, None, share[high])
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return ComputeNeeded(question, MULTIPLES[high] * spent, MULTIPLES[high], share[high])


@dataclass(frozen=True, slots=True)
class OtherWindow:
    """The ceiling that another window of the same run gives."""

    window: tuple[float, float]
    a: float
    interval: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        return {"window": list(self.window), "A": self.a, "interval": list(self.interval)}


def sensitivity(f: Fit) -> list[OtherWindow]:
    """The ceiling when the first or the last 10 % or 25 % of the points are left out; nothing for a
    law that has none."""
    if "A" not in f.params:
        return []
    points = f.points
    found = []
    for first, last in ((0.1, 0.0), (0.25, 0.0), (0.0, 0.1), (0.0, 0.25)):
        lo = points.compute[int(first * len(points))]
        hi = points.compute[len(points) - 1 - int(last * len(points))]
        if len(points.window(lo, hi)) <= MIN_POINTS:
            continue
        again = fit(points, law=f.law, r0=f.r0, level=f.level, lo=float(lo), hi=float(hi))
        found.append(OtherWindow(again.window, again.params["A"], again.interval("A")))
    return found
