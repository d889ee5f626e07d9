"""Signs of trouble ahead: side metrics that leave what was usual for the run.

A score does not foretell its fall, but the record knows more. Each sign compares the last RECENT
evaluation intervals with the run's own earlier ones, by rules stated here and nothing fitted:

    gradient norm        3 times its usual
    entropy              a fifth of its usual, or twice it
    length of answers    half of its usual, or one and a half times it
    cut-off answers      a tenth of them, and twice as many as usual
    ratio, ESS           the largest ratio 5 times its usual or above 50, or ESS below a half

Every sign that is on multiplies the hazard of a fall (paths.py). How often they are on before falls
and in healthy runs is measured (benchmarks/hazard.py, docs/explanation/calibration.md).

>>> usual = np.array([1.0, 1.1, 0.9, 1.0, 1.2, 1.0])
>>> [s.name for s in find_signs({"grad_norm": np.append(usual, [4.0, 5.0])})]
['gradient norm']
>>> find_signs({"grad_norm": usual})
()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Evaluation intervals that are "now", and that must lie before them to know what is usual.
RECENT = 1
BEFORE = 4
#: What each sign does to the hazard, and the most that all do.
TIMES = 4.0
MOST = 16.0


@dataclass(frozen=True, slots=True)
class Rule:
    """A metric of the record and when it is a sign: by its ratio to the usual, or by its value."""

    metric: str
    name: str
    above: float = np.inf
    below: float = 0.0
    #: Values from which on (up to which) it counts at all.
    least: float = -np.inf
    value_above: float = np.inf
    value_below: float = -np.inf

    def look(self, values: Array) -> Sign | None:
        known = values[np.isfinite(values)]
        if len(known) < RECENT + BEFORE:
            return None
        now, usual = float(np.median(known[-RECENT:])), float(np.median(known[:-RECENT]))
        ratio = now / usual if usual > 0 else 1.0
        off = now >= self.least and (ratio > self.above or ratio < self.below)
        if off or now > self.value_above or now < self.value_below:
            return Sign(self.name, now, usual)
        return None


@dataclass(frozen=True, slots=True)
class Sign:
    """A side metric that is not what it used to be."""

    name: str
    now: float
    usual: float

    def __str__(self) -> str:
        return f"{self.name} {self.now:.3g}, usually {self.usual:.3g}"

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "now": self.now, "usual": self.usual}


RULES = (
    Rule("grad_norm", "gradient norm", above=3.0),
    Rule("entropy", "entropy", above=2.0, below=0.2),
    Rule("length", "length of answers", above=1.5, below=0.5),
    Rule("truncated", "cut-off answers", above=2.0, least=0.1),
    Rule("ratio_max", "largest ratio", above=5.0, value_above=50.0),
    Rule("ess", "effective sample size", value_below=0.5),
)


def find_signs(signs: Mapping[str, Array]) -> tuple[Sign, ...]:
    """The signs that are on, given each metric at the evaluations so far."""
    found = [rule.look(signs[rule.metric]) for rule in RULES if rule.metric in signs]
    return tuple(sign for sign in found if sign is not None)


def times(signs: tuple[Sign, ...]) -> float:
    """What the signs multiply the hazard with."""
    return min(TIMES ** len(signs), MOST)
