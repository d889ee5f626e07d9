"""Falls: how far the last points lie below the best stretch of the run, and when that is an alarm.

A run whose tail departs from its own best is not silently extrapolated: the more clearly it has
fallen, the more of its futures begin where it is now, and go on falling, settle or recover.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.curves.formula import Array
from scalerl.curves.noise import BinnedCurve, bin_curve, mean_variance

#: The tail must fall this many standard errors below the best earlier stretch ...
ALARM_Z = 4.0
#: ... and by at least this much, or this share of the rise.
ALARM_DROP = 0.02
ALARM_SHARE = 0.1
#: A collapse so violent that it passes for noise: the tail is below all scores of the best stretch,
#: by this much, this share of it, and this many standard errors.
COLLAPSE_DROP = 0.1
COLLAPSE_SHARE = 0.4
COLLAPSE_Z = 2.0
#: Probability that a fall is real when the alarm is raised; below that it grows with the size of
#: the fall, and with its standard errors around HALF_Z.
REAL = 0.95
HALF_Z = 3.0
Z_SLOPE = 1.5
#: A history looks at this many prefixes of the curve at most, none shorter than this.
MAX_LOOKS = 60
FIRST_LOOK = 6


@dataclass(frozen=True, slots=True)
class Fall:
    """From the best stretch of the run to its last points; drop < 0 is a rise."""

    drop: float
    z: float
    #: drop in units of the smallest that may raise the alarm.
    size: float
    #: Compute of the best stretch.
    since: float
    #: Mean of the last points and its standard error.
    level: float
    level_sd: float
    alarm: bool

    @property
    def probability(self) -> float:
        """That it is a fall, not noise.

        >>> Fall(.03, 3.0, 1.5, 100, .5, .01, alarm=False).probability
        0.475
        """
        if self.alarm:
            return REAL
        clear = 1.0 / (1.0 + float(np.exp(Z_SLOPE * (HALF_Z - self.z))))
        return REAL * float(np.clip(self.size, 0.0, 1.0)) ** 2 * clear

    def __str__(self) -> str:
        return (
            f"declining: the last points are {self.drop:.3f} below the best, near "
            f"compute {self.since:.4g} ({self.z:.1f} standard errors)"
        )


def find_fall(compute: Array, score: Array, points: BinnedCurve) -> Fall | None:
    """Compare the mean of the last k points with the best earlier, non-overlapping k-mean; None
    where there are too few points for two such means."""
    found = _drop(score)
    if found is None:
        return None
    k, best, earlier, level = found
    drop = earlier - level
    variance = points.score_variance * float(mean_variance(k))
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


def _drop(score: Array) -> tuple[int, int, float, float] | None:
    """Length of the stretches that are compared, where the best earlier one begins, its mean and
    that of the last."""
    n = len(score)
    k = int(np.clip(round(0.12 * n), 2, 12))
    if n < 2 * k:
        return None
    sums = np.concatenate([[0.0], np.cumsum(score)])
    means = (sums[k:] - sums[:-k]) / k
    best = int(np.argmax(means[: n - 2 * k + 1]))
    return k, best, float(means[best]), float(means[-1])


@dataclass(frozen=True, slots=True)
class AlarmSpan:
    """An alarm as it would have been seen while the points came in."""

    #: Compute at which it was raised, and at which it was cleared; None: it is on.
    raised: float
    cleared: float | None

    def to_dict(self) -> dict[str, Any]:
        return {"raised": self.raised, "cleared": self.cleared}


def alarm_history(compute: Array, score: Array, n_eval: Array | None) -> tuple[AlarmSpan, ...]:
    """Every time the alarm was on, looking at the curve as it grew: one that was raised is not
    forgotten because a later look cleared it.

    >>> c = np.arange(1.0, 31.0)
    >>> dip = np.where((c > 15) & (c < 20), 0.2, 0.5) + 0.004 * (-1) ** np.arange(30)
    >>> alarm_history(c, dip, None)
    (AlarmSpan(raised=16.0, cleared=22.0),)
    """
    spans: list[AlarmSpan] = []
    n = len(score)
    ends = np.unique(np.linspace(min(FIRST_LOOK, n), n, min(MAX_LOOKS, n)).round().astype(int))
    for end in ends:
        on = _alarming(compute[:end], score[:end], None if n_eval is None else n_eval[:end])
        if on and (not spans or spans[-1].cleared is not None):
            spans.append(AlarmSpan(float(compute[end - 1]), None))
        elif not on and spans and spans[-1].cleared is None:
            spans[-1] = AlarmSpan(spans[-1].raised, float(compute[end - 1]))
    return tuple(spans)


def _alarming(compute: Array, score: Array, n_eval: Array | None) -> bool:
    found = _drop(score)
    if found is None or found[2] - found[3] <= ALARM_DROP:
        return False  # too little for any alarm, whatever the noise: most looks end here
    fall = find_fall(compute, score, bin_curve(compute, score, n_eval))
    return fall is not None and fall.alarm
