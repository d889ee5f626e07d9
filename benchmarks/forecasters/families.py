"""Sums of parametric learning-curve families: the prior of LC-PFN, and the ensemble of Domhan et
al. (2015).

x runs from 1 at zero compute to 100 at the budget: LC-PFN was trained on 100 epochs, and several
families have no value at x = 0.
"""

from __future__ import annotations

import numpy as np

from forecasters.posterior import uniform
from scalerl.curves.formula import Array


def epoch(share: Array) -> Array:
    """Position on the axis that the families were made for."""
    return 1.0 + 99.0 * share


def lognormal(z: Array, mean: float, sd: float) -> Array:
    # Clipped far out, where powers of x would overflow.
    return np.exp(np.clip(mean + sd * z, -12.0, 12.0))


def power(log_base: Array, exponent: Array) -> Array:
    """A power that is kept finite."""
    return np.exp(np.clip(log_base * exponent, -60.0, 60.0))


class LcPfn:
    """The prior that LC-PFN is trained on (`lcpfn.domhan_prior` of lcpfn 0.1.3): a sum of pow3,
    ilog2 and Janoschek with weights from U(0, 1), which ends above its beginning and stays within
    [0, 1]."""

    dimensions = 13
    draws = 600
    moves = 20
    # Denser at the beginning, where most of these curves rise.
    checked = np.array([0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0])

    def values(self, z: Array, share: Array) -> Array:
        x = epoch(share)[None, :]
        log_x = np.log(x)
        weight = uniform(z[:, :3], 0.0, 1.0)
        c, a, top, bottom = (
            uniform(z[:, i], low, high)[:, None]
            for i, (low, high) in enumerate([(0, 1.25), (-0.6, 0.6), (0, 1), (0, 2)], start=3)
        )
        pow3 = c - a * power(log_x, -lognormal(z[:, 7:8], 0.0, 2.0))
        ilog2 = uniform(z[:, 8:9], 0.0, 1.0) - uniform(z[:, 9:10], -0.5, 0.5) / np.log(x + 1.0)
        rate, exponent = lognormal(z[:, 10:11], -2.0, 1.0), lognormal(z[:, 11:12], 0.0, 0.5)
        janoschek = top - (top - bottom) * np.exp(-rate * power(log_x, exponent))
        return weight[:, :1] * pow3 + weight[:, 1:2] * ilog2 + weight[:, 2:] * janoschek

    def noise(self, z: Array) -> Array:
        return lognormal(z[:, 12], -4.0, 1.0)

    def allowed(self, values: Array) -> Array:
        return (
            (values[:, -1] > values[:, 0]) & (values >= 0).all(axis=1) & (values <= 1).all(axis=1)
        )


class Domhan:
    """The eleven families of Domhan et al. with normalised weights, under their soft condition of
    monotony: the end lies above the beginning.

    Their priors are flat, and their chain starts from least-squares fits. Sampling from the prior
    needs proper ones. Levels are flat: the families share a final and a first level from U(0, 1),
    from which each deviates by an sd of 0.1. Rates and exponents have the priors that the authors
    of LC-PFN give for these families.
    """

    #: 11 weights, 2 common levels, 10 final and 6 first levels, 19 rates and exponents, the noise.
    dimensions = 49
    # Few, since a draw costs eleven families. On 99 tasks with 600 draws, 20 and 60 moves made the
    # CRPS 4 and 7 % smaller than 6 did.
    draws = 300
    moves = 10
    checked = np.array([0.0, 1.0])

    def values(self, z: Array, share: Array) -> Array:
        # Exponential variables over their sum are uniform on the simplex.
        weight = -np.log(uniform(z[:, :11], 1e-9, 1.0))
        weight /= weight.sum(axis=1, keepdims=True)
        last = (uniform(z[:, 11:12], 0.0, 1.0) + 0.1 * z[:, 13:23])[:, :, None]
        first = (uniform(z[:, 12:13], 0.0, 1.0) + 0.1 * z[:, 23:29])[:, :, None]
        curves = _families(epoch(share)[None, :], last, first, z[:, 29:48, None])
        return np.einsum("fkn,kf->kn", np.stack(curves), weight)

    def noise(self, z: Array) -> Array:
        return lognormal(z[:, 48], -4.0, 1.0)

    def allowed(self, values: Array) -> Array:
        return (values[:, -1] > values[:, 0]) & (values[:, -1] <= 1.0)


def _families(x: Array, last: Array, first: Array, z: Array) -> list[Array]:
    """The eleven curves at x, each (draws, len(x))."""
    log_x = np.log(x)
    parameter = iter(range(z.shape[1]))
    levels = iter(range(last.shape[1]))
    starts = iter(range(first.shape[1]))

    def normal(mean: float, sd: float) -> Array:
        return mean + sd * z[:, next(parameter)]

    def positive(mean: float, sd: float) -> Array:
        return lognormal(z[:, next(parameter)], mean, sd)

    def rising(left: Array) -> Array:
        """From the first to the last level, where `left` is the share of the gain still to come."""
        end = last[:, next(levels)]
        return end - (end - first[:, next(starts)]) * left

    def from_zero(left: Array) -> Array:
        return last[:, next(levels)] * (1.0 - left)

    offset = np.exp(uniform(z[:, next(parameter)], 0.0, 1.0))
    pow4 = power(np.log(positive(-3.0, 2.0) * x + offset), -positive(0.0, 1.0))
    slope = uniform(z[:, next(parameter)], 0.0, 3.0)
    pressure = uniform(z[:, next(parameter)], -4.0, 0.0) / x
    drift = positive(-4.0, 1.0) * (log_x - np.log(100.0))
    return [
        rising(power(log_x, -positive(0.0, 1.0))),  # pow3
        rising(np.exp(-power(log_x + normal(-2.0, 1.0), positive(0.0, 0.5)))),  # Weibull
        rising(np.exp(-positive(-2.0, 1.0) * power(log_x, positive(0.0, 0.5)))),  # Janoschek
        rising(1.0 / (1.0 + power(log_x + normal(0.0, 2.0), positive(0.0, 1.0)))),  # MMF
        rising(np.log(2.0) / np.log(x + 1.0)),  # ilog2
        from_zero(np.exp(-positive(-2.0, 1.0) * power(log_x, positive(0.0, 1.0)))),  # exp4
        from_zero(1.0 / (1.0 + power(log_x - normal(1.0, 1.0), slope))),  # log power
        from_zero(1.0 / (1.0 + power(log_x - normal(1.0, 2.0), positive(1.0, 1.0)))),  # Hill3
        last[:, next(levels)] * np.exp(pressure + drift),  # vapour pressure
        last[:, next(levels)] - pow4,
        np.log(positive(-2.0, 1.0) * log_x + np.exp(first[:, next(starts)])),  # log log linear
    ]
