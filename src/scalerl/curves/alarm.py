"""The decline alarm: how far the last points of a run lie below its best stretch.

A declining run is not extrapolated as if it were healthy: the more clearly it has fallen, the more
of its simulated futures start from its present level and keep falling, stay or recover (paths.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scalerl.curves.formula import Array
from scalerl.curves.noise import BinnedCurve, bin_curve, mean_variance

# The alarm is raised when the mean of the last points is below the best earlier mean by ALARM_Z
# standard errors, by ALARM_DROP, and by ALARM_SHARE of the rise. On real curves it was then on at
# 1.5 % of the looks at healthy runs, and before the end of every declining one.
ALARM_Z = 4.0
ALARM_DROP = 0.02
ALARM_SHARE = 0.1
# A violent collapse inflates the noise estimate, and with it the standard error. So the alarm is
# also raised when all last scores are below all scores of the best stretch and the drop exceeds
# COLLAPSE_Z standard errors, COLLAPSE_DROP, and COLLAPSE_SHARE of the best mean.
COLLAPSE_DROP = 0.1
COLLAPSE_SHARE = 0.4
COLLAPSE_Z = 2.0
#: Probability that a fall is real, not noise, once the alarm is raised.
ALARM_PROBABILITY = 0.95
#: Standard errors at which a fall without an alarm is real with half of that probability.
HALF_Z = 3.0
#: Slope of the logistic in standard errors, about HALF_Z.
Z_SLOPE = 1.5
#: Most looks at growing prefixes of a curve in an alarm history, for speed.
MAX_LOOKS = 60
#: Points in the shortest prefix of an alarm history.
FIRST_LOOK = 6


@dataclass(frozen=True, slots=True)
class Fall:
    """The fall from the best stretch of a run to its last points."""

    #: Best mean minus last mean, in pass rate; negative if the run rises.
    drop: float
    #: The drop in standard errors.
    z: float
    #: The drop in units of the smallest that may raise the alarm.
    size: float
    #: Mean compute of the best stretch.
    since: float
    #: Mean of the last points.
    level: float
    #: Standard error of `level`.
    level_sd: float
    #: Whether the alarm is raised.
    alarm: bool

    @property
    def probability(self) -> float:
        """Probability that the fall is real, not noise.

        >>> Fall(.03, 3.0, 1.5, 100, .5, .01, alarm=False).probability
        0.475
        """
        if self.alarm:
            return ALARM_PROBABILITY
        clear = 1.0 / (1.0 + float(np.exp(Z_SLOPE * (HALF_Z - self.z))))
        return ALARM_PROBABILITY * float(np.clip(self.size, 0.0, 1.0)) ** 2 * clear

    def __str__(self) -> str:
        return (
            f"declining: the last points are {self.drop:.3f} below the best, near "
            f"compute {self.since:.4g} ({self.z:.1f} standard errors)"
        )


def find_fall(compute: Array, score: Array, points: BinnedCurve) -> Fall | None:
    """The fall of the last k points from the best earlier, non-overlapping k points; None where
    there are too few points for two such means."""
    found = _best_and_last(score)
    if found is None:
        return None
    k, best, earlier, level = found
    drop = earlier - level
    variance = points.score_variance * float(mean_variance(k))
    # Both means have this variance, hence the 2.
    z = drop / float(np.sqrt(2.0 * variance))
    least = max(ALARM_DROP, ALARM_SHARE * points.rise)
    collapse = (
        z > COLLAPSE_Z
        and drop > max(COLLAPSE_DROP, COLLAPSE_SHARE * earlier)
        and float(score[-k:].max()) < float(score[best : best + k].min())
    )
    since = float(compute[best : best + k].mean())
    return Fall(
        drop=drop,
        z=z,
        size=drop / least,
        since=since,
        level=level,
        level_sd=float(np.sqrt(variance)),
        alarm=(z > ALARM_Z and drop > least) or collapse,
    )


def _best_and_last(score: Array) -> tuple[int, int, float, float] | None:
    """Length k of the compared stretches, start of the best earlier one, its mean and the last
    one's."""
    n = len(score)
    # Single scores are too noisy to compare; more than 12 would react late to a collapse.
    k = int(np.clip(round(0.12 * n), 2, 12))
    if n < 2 * k:
        return None
    sums = np.concatenate([[0.0], np.cumsum(score)])
    means = (sums[k:] - sums[:-k]) / k
    # Earlier stretches may not overlap the last one.
    best = int(np.argmax(means[: n - 2 * k + 1]))
    return k, best, float(means[best]), float(means[-1])


@dataclass(frozen=True, slots=True)
class AlarmSpan:
    """An alarm, as a user would have seen it while the points came in."""

    #: Compute at which it was raised.
    raised: float
    #: Compute at which it was cleared; None: it is on.
    cleared: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def alarm_history(
    compute: Array, score: Array, n_eval: Array | None, breaks: Sequence[float] = ()
) -> tuple[AlarmSpan, ...]:
    """Every time the alarm was on while the curve grew, including alarms that were cleared later.
    A break (`Run.breaks`) clears an alarm, and scores from before it are no longer compared with.

    >>> c = np.arange(1.0, 31.0)
    >>> dip = np.where((c > 15) & (c < 20), 0.2, 0.5) + 0.004 * (-1) ** np.arange(30)
    >>> alarm_history(c, dip, None)
    (AlarmSpan(raised=16.0, cleared=22.0),)
    """
    if breaks:
        before = compute <= breaks[0]
        sizes = (None, None) if n_eval is None else (n_eval[before], n_eval[~before])
        first = alarm_history(compute[before], score[before], sizes[0])
        closed = tuple(AlarmSpan(s.raised, s.cleared or float(breaks[0])) for s in first)
        return closed + alarm_history(compute[~before], score[~before], sizes[1], breaks[1:])
    spans: list[AlarmSpan] = []
    n = len(score)
    ends = np.unique(np.linspace(min(FIRST_LOOK, n), n, min(MAX_LOOKS, n)).round().astype(int))
    for end in ends:
        on = _alarm_is_on(compute[:end], score[:end], None if n_eval is None else n_eval[:end])
        if on and (not spans or spans[-1].cleared is not None):
            spans.append(AlarmSpan(float(compute[end - 1]), None))
        elif not on and spans and spans[-1].cleared is None:
            spans[-1] = AlarmSpan(spans[-1].raised, float(compute[end - 1]))
    return tuple(spans)


def _alarm_is_on(compute: Array, score: Array, n_eval: Array | None) -> bool:
    # A drop this small never raises the alarm: most looks end here, without a noise estimate.
    found = _best_and_last(score)
    if found is None or found[2] - found[3] <= ALARM_DROP:
        return False
    fall = find_fall(compute, score, bin_curve(compute, score, n_eval))
    return fall is not None and fall.alarm
