"""Warning signs of a fall: side metrics that leave the range that was usual for the run.

Scores do not announce their own fall, but the record has more than scores. Each sign compares the
last RECENT evaluation intervals with the run's own earlier ones, by the rules below; nothing is
fitted:

    gradient norm        above 3 times its usual
    entropy              below a fifth of its usual, or above twice it
    length of answers    below half of its usual, or above one and a half times it
    cut-off answers      above a tenth of the answers, and above twice their usual share
    ratio, ESS           largest ratio above 5 times its usual or above 50, or ESS below a half

Every sign that is on multiplies the hazard of a fall (paths.py). How often signs are on before
falls and in healthy runs is measured (benchmarks/hazard.py, docs/explanation/calibration.md).

>>> usual = np.array([1.0, 1.1, 0.9, 1.0, 1.2, 1.0])
>>> [s.name for s in find_signs({"grad_norm": np.append(usual, [4.0, 5.0])})]
['gradient norm']
>>> find_signs({"grad_norm": usual})
()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scalerl.curves.formula import Array

#: Evaluation intervals that count as "now".
RECENT = 1
#: Earlier evaluation intervals needed to know what is usual.
MIN_EARLIER = 4
#: Factor on the hazard of a fall for each sign that is on.
SIGN_FACTOR = 4.0
#: Largest factor on the hazard, however many signs are on.
MAX_FACTOR = 16.0


@dataclass(frozen=True, slots=True)
class SignRule:
    """When a side metric is a warning sign: by its ratio to the usual, or by its value."""

    #: Key of the metric in `Run.signs`.
    metric: str
    #: Name in tables and warnings.
    name: str
    #: Ratio to the usual above which the sign is on.
    above: float = np.inf
    #: Ratio to the usual below which the sign is on.
    below: float = 0.0
    #: Smallest value at which ratios count.
    least: float = -np.inf
    #: Value above which the sign is on, whatever is usual.
    value_above: float = np.inf
    #: Value below which the sign is on, whatever is usual.
    value_below: float = -np.inf

    def check(self, values: Array) -> WarningSign | None:
        """The sign, if these values (one per evaluation) raise it."""
        known = values[np.isfinite(values)]
        if len(known) < RECENT + MIN_EARLIER:
            return None
        now, usual = float(np.median(known[-RECENT:])), float(np.median(known[:-RECENT]))
        ratio = now / usual if usual > 0 else 1.0
        off = now >= self.least and (ratio > self.above or ratio < self.below)
        if off or now > self.value_above or now < self.value_below:
            return WarningSign(self.name, now, usual)
        return None


@dataclass(frozen=True, slots=True)
class WarningSign:
    """A side metric that has left its usual range."""

    name: str
    #: Median of the last RECENT intervals.
    now: float
    #: Median of the earlier intervals.
    usual: float

    def __str__(self) -> str:
        return f"{self.name} {self.now:.3g}, usually {self.usual:.3g}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


RULES = (
    SignRule("grad_norm", "gradient norm", above=3.0),
    SignRule("entropy", "entropy", above=2.0, below=0.2),
    SignRule("length", "length of answers", above=1.5, below=0.5),
    SignRule("truncated", "cut-off answers", above=2.0, least=0.1),
    SignRule("ratio_max", "largest ratio", above=5.0, value_above=50.0),
    SignRule("ess", "effective sample size", value_below=0.5),
)


def find_signs(signs: Mapping[str, Array]) -> tuple[WarningSign, ...]:
    """The signs that are on, given the values of each metric at the evaluations so far."""
    found = [rule.check(signs[rule.metric]) for rule in RULES if rule.metric in signs]
    return tuple(sign for sign in found if sign is not None)


def hazard_factor(signs: tuple[WarningSign, ...]) -> float:
    """The factor by which these signs multiply the hazard of a fall."""
    return min(SIGN_FACTOR ** len(signs), MAX_FACTOR)
