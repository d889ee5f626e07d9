"""Breaks that no event announces: where a curve jumps as healthy curves do not.

The sharpest step of the curve is compared under two models of the same points (posterior.py): with
a jump of unknown size there (residual_process.py), and without. Nothing is re-based on the result:
a fit warns, and names the option that re-bases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scalerl.curves.formula import Array
from scalerl.curves.noise import bin_curve, mean_variance
from scalerl.curves.posterior import log_evidence
from scalerl.curves.priors import learned_priors, prior_kind
from scalerl.runs.record import Run

#: Fewest points on either side of a break.
MIN_SIDE = 4
#: Standard errors of the sharpest step below which no model is compared, for speed.
MIN_Z = 2.5
#: A break is suspected from this ln of the Bayes factor on. By this rule real curves that were not
#: changed under way were suspected at about one look in 200 (`benchmarks/breaks.py`); at 3 it would
#: be one in 60.
MIN_LOG_FACTOR = 5.0


@dataclass(frozen=True, slots=True)
class Jump:
    """The sharpest step of a curve."""

    #: Compute of the last point before it.
    at: float
    #: Height of the step, in pass rate.
    height: float
    #: ln of the Bayes factor of a break there, against none.
    log_factor: float


def suspected_break(run: Run) -> Jump | None:
    """The sharpest step of a curve, if a break there is much likelier than none; None for a run
    with known breaks.

    >>> c = np.arange(1.0, 41.0)
    >>> y = 0.2 + 0.004 * c + 0.003 * (-1.0) ** np.arange(40)
    >>> found = suspected_break(Run("mine", c, y + 0.2 * (c > 25), "steps"))
    >>> found.at, round(found.height, 1)
    (25.0, 0.2)
    >>> suspected_break(Run("mine", c, y, "steps")) is None
    True
    """
    found = sharpest_step(run)
    return None if found is None or found.log_factor < MIN_LOG_FACTOR else found


def sharpest_step(run: Run) -> Jump | None:
    """Where the curve jumps most clearly; None where no step stands out of noise and trend."""
    inside = run.window(1e-300)
    found = _steepest(inside.score, inside.n_eval)
    if found is None or run.breaks:
        return None
    i, height = found
    at = float(inside.compute[i - 1])
    points = bin_curve(run.compute, run.score, run.n_eval, (at,))
    priors = learned_priors(prior_kind(run, points)).window
    t_end = float(np.log(run.compute[-1]))
    whole = replace(points, breaks=np.empty(0))
    factor = log_evidence(points, t_end, priors) - log_evidence(whole, t_end, priors)
    return Jump(at, height, factor)


def _steepest(score: Array, n_eval: Array | None) -> tuple[int, float] | None:
    """Index of the first point after the sharpest step, and its height."""
    n = len(score)
    k = int(np.clip(n // 12, 2, 8))
    if n < max(2 * MIN_SIDE, 4 * k):
        return None
    sums = np.concatenate([[0.0], np.cumsum(score)])
    mean = (sums[k:] - sums[:-k]) / k
    # Four stretches of k points: the step between the middle two, less the trend of the outer two.
    first, second, third, fourth = (mean[j * k : len(mean) - (3 - j) * k] for j in range(4))
    height = 1.5 * (third - second) - 0.5 * (fourth - first)
    at = np.arange(len(height)) + 2 * k
    height = np.where((at >= MIN_SIDE) & (at <= n - MIN_SIDE), height, 0.0)
    best = int(np.argmax(np.abs(height)))
    # Of differences, since the step itself is in the second differences of the scores.
    changes = np.diff(score, 2)
    typical = float(np.median(changes * changes)) / 0.455 / 6.0
    # Variance of the height: 1.5^2 twice and 0.5^2 twice that of a mean.
    variance = 5.0 * max(typical, 1e-9) * float(mean_variance(k))
    if abs(height[best]) < MIN_Z * np.sqrt(variance):
        return None
    return int(at[best]), float(height[best])
