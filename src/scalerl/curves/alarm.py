"""The decline alarm: a run whose tail departs from its own best is not silently extrapolated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.curves.noise import Points, mean_variance

Array = npt.NDArray[np.float64]

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


@dataclass(frozen=True, slots=True)
class Decline:
    """A fall from the best stretch of the run to its last points."""

    drop: float
    z: float
    #: Compute of the best stretch, and the fall per unit of ln C since.
    since: float
    rate: float

    def __str__(self) -> str:
        return (
            f"declining: the last points are {self.drop:.3f} below the best, near "
            f"compute {self.since:.4g} ({self.z:.1f} standard errors)"
        )


def find_decline(compute: Array, score: Array, points: Points) -> Decline | None:
    """Compare the mean of the last k points with the best earlier, non-overlapping k-mean."""
    n = len(score)
    k = int(np.clip(round(0.12 * n), 2, 12))
    if n < 2 * k:
        return None
    sums = np.concatenate([[0.0], np.cumsum(score)])
    means = (sums[k:] - sums[:-k]) / k
    earlier = means[: n - 2 * k + 1]
    best = int(np.argmax(earlier))
    drop = float(earlier[best] - means[-1])
    z = drop / np.sqrt(2.0 * points.score_variance * float(mean_variance(k)))
    clear = z > ALARM_Z and drop > max(ALARM_DROP, ALARM_SHARE * points.rise)
    collapse = (
        z > COLLAPSE_Z
        and drop > max(COLLAPSE_DROP, COLLAPSE_SHARE * float(earlier[best]))
        and float(score[-k:].max()) < float(score[best : best + k].min())
    )
    if not (clear or collapse):
        return None
    since = float(compute[best : best + k].mean())
    tail = float(compute[-k:].mean())
    span = max(np.log(tail / since) if since > 0 else 1.0, 0.05)
    return Decline(drop=drop, z=float(z), since=since, rate=drop / span)
