"""The noise of one evaluation, and a curve binned for fitting.

Scores of a validation set scatter *less* than binomially, because every evaluation has the same
prompts, and neighbouring evaluations are correlated, because they share most of their weights. So
the variance of one score is estimated from the second differences of the curve, shrunk towards a
fraction PHI of the binomial variance where the number of samples is known, and a mean of m
neighbouring scores is given VIF times (less for small m) the variance of m independent ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from scalerl.curves.formula import Array, Flags

#: Share of the binomial variance that evaluations on a fixed set of prompts show. Real curves
#: scatter about half as much as binomially.
PHI = 0.4
#: Pseudo-observations behind the binomial estimate of the variance.
NU_BINOMIAL = 4.0
#: Variance inflation of a mean of many neighbouring evaluations (lag-1 correlation about 1/3).
VIF = 2.0
#: A denser curve is averaged into this many bins of equal width in ln C: correlated neighbours
#: would otherwise overstate the information, and the cost of a fit grows with points cubed.
MAX_BINS = 40
#: Smallest variance of one score, for curves without any scatter.
MIN_VARIANCE = 1e-6
#: Limits of an evaluation's weight, which is its size over the median size.
WEIGHT_RANGE = (0.01, 100.0)
#: A score this many standard deviations away from neighbours that agree with each other counts as a
#: failed evaluation: its variance is raised until the distance is plausible.
OUTLIER_SD = 6.0
#: Two amounts of compute that differ by less than this in ln C are the same amount, in another unit
#: or with fewer digits. Evaluations are often at round shares of the compute, as the cuts are:
#: without the tolerance, rounding would decide on which side of a cut or a break a point lies.
SAME_LOG_COMPUTE = 1e-3
#: Median of a chi-square variable with one degree of freedom.
CHI2_MEDIAN = 0.455


def tail_length(n: int) -> int:
    """Number of last points that make up the present level: 15 % of n, between 3 and 10."""
    return int(min(max(round(0.15 * n), 3), 10, n))


def sampling_interval(score: float, n: float, level: float) -> tuple[float, float]:
    """Interval of the true pass rate given a score from n samples, by Wilson's formula.

    >>> [round(v, 3) for v in sampling_interval(0.8, 500, 0.9)]
    [0.769, 0.828]
    """
    z = NormalDist().inv_cdf((1.0 + level) / 2.0)
    middle = score + z * z / (2.0 * n)
    half = z * math.sqrt(score * (1.0 - score) / n + (z / (2.0 * n)) ** 2)
    low, high = ((middle + sign * half) / (1.0 + z * z / n) for sign in (-1.0, 1.0))
    return max(low, 0.0), min(high, 1.0)


def mean_variance(m: npt.ArrayLike) -> Array:
    """Variance of the mean of m neighbouring scores, in units of one score's variance."""
    count = np.asarray(m, dtype=np.float64)
    return (1.0 + (VIF - 1.0) * (1.0 - 1.0 / count)) / count


def _robust_mean_square(d: Array) -> float:
    """Mean of d^2 with each term clipped at 9 times its typical value, against outliers."""
    squares = d * d
    typical = float(np.median(squares)) / CHI2_MEDIAN
    return (
        float(np.minimum(squares, 9.0 * typical).mean()) if typical > 0 else float(squares.mean())
    )


def score_variance(score: Array, n_eval: Array | None) -> float:
    """Variance of one evaluation (of median size) about the smooth curve.

    A second difference y_1 - 2 y_2 + y_3 has variance v_1 + 4 v_2 + v_3: 6 for scores of one size,
    more where one of them was taken on few samples."""
    n = len(score)
    observed = MIN_VARIANCE
    if n >= 4:
        v = 1.0 / _weights(score, n_eval)
        # Second differences remove any locally straight trend, which first differences would count.
        expected = v[:-2] + 4.0 * v[1:-1] + v[2:]
        observed = _robust_mean_square(np.diff(score, 2) / np.sqrt(expected))
    # Second differences miss noise that is correlated over several evaluations; on long curves the
    # scatter about a 9-point running mean (8/9 of the variance, hence 9/8) sees it.
    if n >= 60:
        running = np.convolve(score, np.ones(9) / 9.0, mode="valid")
        observed = max(observed, _robust_mean_square(score[4:-4] - running) * 9.0 / 8.0)
    if n_eval is None:
        return max(observed, MIN_VARIANCE)
    size = float(np.median(n_eval))
    level = float(score[-max(n // 3, min(3, n)) :].mean())
    # Shrunk away from 0 and 1, where the binomial variance would vanish.
    p = (3.0 * level * size + 0.5) / (3.0 * size + 1.0)
    binomial = PHI * p * (1.0 - p) / size
    seen = max(n - 3, 0)
    return max((NU_BINOMIAL * binomial + seen * observed) / (NU_BINOMIAL + seen), 1e-12)


def _weights(score: Array, n_eval: Array | None) -> Array:
    """Size of each evaluation over the median size."""
    if n_eval is None:
        return np.ones(len(score))
    return np.clip(n_eval / np.median(n_eval), *WEIGHT_RANGE)


@dataclass(frozen=True, slots=True)
class BinnedCurve:
    """A curve of at most MAX_BINS points, with the variance of each."""

    #: ln C of the points.
    t: Array
    #: Mean score of each bin.
    score: Array
    #: Variance of each mean score.
    variance: Array
    #: True where C = 0, so that the law's fraction is exactly 0 there.
    at_zero: Flags
    #: Variance of a single evaluation.
    score_variance: float
    #: Mean of the last scores.
    level: float
    #: Mean of the two highest minus the mean of the two lowest points.
    rise: float
    #: Size that residuals scale with: the rise, but at least 0.1.
    scale: float
    #: ln C of the breaks (`Run.breaks`), ascending: points up to one of them lie before it.
    breaks: Array = field(default_factory=lambda: np.empty(0))


def bin_curve(
    compute: Array, score: Array, n_eval: Array | None, breaks: Sequence[float] = ()
) -> BinnedCurve:
    """Sorted points with C >= 0 as a binned curve. An evaluation at C = 0 is put one halving before
    the first other one, since ln 0 has no place on the axis. Jumps at the `breaks` count neither as
    noise nor as rise."""
    at = np.log(np.asarray(breaks, dtype=np.float64))
    variance = score_variance(without_jumps(np.log(np.maximum(compute, 1e-300)), score, at), n_eval)
    weight = _weights(score, n_eval)
    positive = compute > 0
    t = np.log(np.where(positive, compute, 1.0))
    t = np.where(positive, t, t[positive][0] - np.log(2.0)) if positive.any() else t
    y, relative = score, np.maximum(1.0 / weight, _outlier_variance(score, variance))
    weight = 1.0 / relative
    at_zero = ~positive
    if len(t) > MAX_BINS:
        t, y, relative, at_zero = _bins(t, y, weight, at_zero, at)
    top = np.sort(without_jumps(t, y, at))
    rise = float(top[-2:].mean() - top[:2].mean()) if len(top) > 1 else 0.0
    return BinnedCurve(
        t=t,
        score=y,
        variance=variance * relative,
        at_zero=at_zero,
        score_variance=variance,
        level=float(score[-last_points(compute, breaks) :].mean()),
        rise=rise,
        scale=max(rise, 0.1),
        breaks=at,
    )


def last_points(compute: Array, breaks: Sequence[float]) -> int:
    """Number of last points that make up the present level: none from before the last break."""
    after = len(compute) if not len(breaks) else int((compute > breaks[-1]).sum())
    return min(tail_length(len(compute)), max(after, 1))


def without_jumps(t: Array, score: Array, breaks: Array) -> Array:
    """The scores with those before each break (ln C) shifted, so that they join those after it: by
    the means of the two points on either side.

    >>> t = np.arange(6.0)
    >>> without_jumps(t, np.array([0.1, 0.1, 0.1, 0.4, 0.4, 0.5]), np.array([2.0])).tolist()
    [0.4, 0.4, 0.4, 0.4, 0.4, 0.5]
    """
    joined = score.copy()
    for at in breaks:
        i = int(is_before(t, at).sum())
        if 0 < i < len(score):
            joined[:i] += joined[i : i + 2].mean() - joined[max(i - 2, 0) : i].mean()
    return joined


def is_before(t: Array, break_: Array | float) -> Flags:
    """Whether a point lies before a break, both in ln C: at the break is before it, because the
    weights that were evaluated there were trained without the change."""
    # A break may be given in another unit, with fewer digits.
    return np.asarray(t <= break_ + SAME_LOG_COMPUTE)


def _outlier_variance(score: Array, variance: float) -> Array:
    """Variance that makes each outlier plausible, in units of `variance`; 0 for other scores.

    >>> score = np.array([0.30, 0.31, 0.31, 0.02, 0.32, 0.32, 0.33])
    >>> _outlier_variance(score, 1e-4).round().tolist()
    [0.0, 0.0, 0.0, 870.0, 0.0, 0.0, 0.0]
    """
    need = np.zeros(len(score))
    if len(score) < 5:
        return need
    # The last two scores are never outliers: they may be the beginning of a fall.
    around = np.stack([score[:-4], score[1:-3], score[3:-1], score[4:]])
    off = score[2:-2] - np.median(around, axis=0)
    agree = np.ptp(around, axis=0) < np.abs(off) / 2.0
    squares = off * off / variance
    need[2:-2] = np.where(agree & (squares > OUTLIER_SD**2), squares, 0.0)
    return need


def _bins(
    t: Array, y: Array, weight: Array, at_zero: Flags, breaks: Array
) -> tuple[Array, Array, Array, Flags]:
    """Weighted means of t and y in bins of ln C, the variance of each in units of one score's, and
    which are at C = 0 (these are kept apart)."""
    inner, w = t[~at_zero], weight[~at_zero]
    edges = np.linspace(inner[0], inner[-1], MAX_BINS + 1)
    # A point at an edge belongs to the later bin, whatever the last digits of its compute are.
    edges -= 1e-3 * (edges[1] - edges[0])
    index = np.clip(np.searchsorted(edges, inner, side="right") - 1, 0, MAX_BINS - 1)
    # A bin that holds a break is two bins. Numbered anew, since `index` is ascending.
    for at in breaks:
        index += ~is_before(inner, at)
    index = np.cumsum(np.diff(index, prepend=index[0]) > 0)
    count = np.bincount(index)
    total = np.bincount(index, w)
    zeros = int(at_zero.sum())
    return (
        np.concatenate([t[at_zero], np.bincount(index, inner * w) / total]),
        np.concatenate([y[at_zero], np.bincount(index, y[~at_zero] * w) / total]),
        np.concatenate([1.0 / weight[at_zero], mean_variance(count) * count / total]),
        np.concatenate([np.ones(zeros, dtype=bool), np.zeros(len(count), dtype=bool)]),
    )
