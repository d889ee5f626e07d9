"""The prior of FT-PFN (`ifbo.priors.ftpfn_prior` of ifbo 0.4.1), for one curve by itself.

A curve is a weighted mean of four families that lead from Y_0 to Y_inf. Each family has a point of
saturation, after which its axis goes on at another speed: slower, not at all, or backwards, so that
the curve falls again. FT-PFN draws these numbers for many related curves together; for a single
curve they are independent.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forecasters.families import power
from forecasters.posterior import uniform
from scalerl.curves.formula import Array

#: Where the slope at zero compute is taken, as the package does.
EPS = 1e-9


def _log_left(x: Array, a: Array, p: Array) -> Array:
    # ln((a^p - a) x + a) without a^p, which overflows.
    log_a = np.log(a)
    gap = np.log(-np.expm1((1.0 - p) * log_a) + 1e-300) + p * log_a
    return log_a / np.logaddexp(gap + np.log(x), log_a)


#: Share of the gain that is left, given x / x_sat, the exponent, and the 1 / share left at x_sat.
LEFT: list[Callable[[Array, Array, Array], Array]] = [
    lambda x, a, p: power(np.log1p((power(np.log(p), 1.0 / a) - 1.0) * x), -a),
    lambda x, a, p: power(np.log(p), -power(np.log(x), a)),
    _log_left,
    lambda x, a, p: 1.0 / (power(np.log(x), a) * (p - 1.0) + 1.0),
]
#: Mean and sd of ln of the exponents; the third is 1 + that.
EXPONENTS = [(1.0, 1.0), (0.0, 1.0), (-4.0, 1.0), (0.5, 0.5)]


class FtPfn:
    """The prior over one curve, as a function of independent N(0, 1) numbers."""

    #: Y_0 and Y_max 3, Y_inf 1, weights 4, exponents 4, x_sat 5, share left 4, speeds 4, noise 1.
    dimensions = 26
    draws = 300
    moves = 8
    checked = np.array([1.0])

    def values(self, z: Array, share: Array) -> Array:
        z = np.clip(z, -7.0, 7.0)  # further out 1 - u is 0 in floating point
        u = uniform(z, 0.0, 1.0)
        first, second = np.minimum(u[:, 0], u[:, 1]), np.maximum(u[:, 0], u[:, 1])
        most = np.where(u[:, 2] < 0.25, second, 1.0)
        y0, gain = first[:, None], (u[:, 3] * (most - first))[:, None]
        weight, relative, faster = -np.log(u[:, 4:8]), -np.log(u[:, 13:17]), -np.log(u[:, 21:25])
        weight /= weight.sum(axis=1, keepdims=True)
        furthest = 10.0 ** z[:, 12]
        saturation = furthest[:, None] * relative / relative.max(axis=1, keepdims=True)
        total = np.zeros((len(z), len(share)))
        for k, left in enumerate(LEFT):
            mean, sd = EXPONENTS[k]
            a = np.exp(mean + sd * z[:, 8 + k])[:, None] + (1.0 if k == 2 else 0.0)
            p = 10.0 ** (3.0 * u[:, 17 + k])[:, None]
            end, speed = saturation[:, k, None], 1.0 - faster[:, k, None]
            x = np.where(share < end, share, speed * (share - end) + end)
            # Behind its beginning the curve falls exponentially from Y_0, with its first slope.
            near, next_to = left(EPS / end, a, p), left(2.0 * EPS / end, a, p)
            slope = gain * (near - next_to) / EPS + EPS
            fallen = y0 * np.exp(np.clip(np.minimum(x, 0.0) * slope / y0, -60.0, 0.0))
            risen = y0 + gain * (1.0 - left(np.maximum(x, 1e-200) / end, a, p))
            total += weight[:, k, None] * np.where(x > 0, risen, fallen)
        return total

    def noise(self, z: Array) -> Array:
        return np.exp(-5.0 + z[:, 25])

    def allowed(self, values: Array) -> Array:
        return np.isfinite(values).all(axis=1)
