"""Draws from a posterior whose prior is N(0, 1) in every coordinate, by tempered sequential
Monte Carlo: from the prior to the posterior in steps that keep half of the particles effective,
with Metropolis moves along differences of particles (ter Braak 2006). It needs no starting value
and no gradient, and finds several modes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scalerl.curves.formula import Array

#: Share of the particles that stay effective in a step: more is slower, fewer lose modes.
EFFECTIVE = 0.5
#: Shares of the coordinates that a move changes.
SHARES = (0.1, 0.3, 1.0)
#: Moves accept about this often at their best size, in tens of dimensions.
ACCEPTED = 0.25
#: Draws from the prior that are tried for one particle, before its constraint is given up.
TRIES = 400


def sample(
    log_likelihood: Callable[[Array], Array],
    prior: Array,
    rng: np.random.Generator,
    moves: int = 20,
) -> Array:
    """Posterior draws (particles, dimensions), from as many draws of the prior, with so many
    Metropolis moves after every step and twice as many at the end. A draw outside the model's
    constraints has the log likelihood -inf."""
    z = prior.copy()
    found = log_likelihood(z)
    heat, size = 0.0, 1.0
    while heat < 1.0:
        rise = _next_rise(found, 1.0 - heat)
        heat = 1.0 if rise >= 1.0 - heat else heat + rise
        keep = _resample(rise * (found - found.max()), rng)
        z, found = z[keep], found[keep]
        for _ in range(moves if heat < 1.0 else 2 * moves):
            size *= _move(z, found, heat, size, log_likelihood, rng)
    return z


def prior_draws(
    allowed: Callable[[Array], Array], count: int, dimensions: int, rng: np.random.Generator
) -> Array:
    """Draws of the prior within the constraints."""
    kept: list[Array] = []
    for _ in range(TRIES):
        z = rng.standard_normal((count, dimensions))
        kept.append(z[allowed(z)])
        if sum(map(len, kept)) >= count:
            return np.concatenate(kept)[:count]
    raise RuntimeError(f"fewer than {count} of {TRIES * count} draws of the prior are allowed")


def _next_rise(found: Array, most: float) -> float:
    """The rise of the inverse temperature that leaves EFFECTIVE of the particles."""

    def effective(rise: float) -> float:
        w = np.exp(rise * (found - found.max()))
        return float(w.sum() ** 2 / (w**2).sum()) / len(w)

    if effective(most) >= EFFECTIVE:
        return most
    low, high = 0.0, most
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if effective(middle) >= EFFECTIVE else (low, middle)
    return high


def _resample(log_weight: Array, rng: np.random.Generator) -> Array:
    w = np.cumsum(np.exp(log_weight))
    n = len(w)
    return np.minimum(np.searchsorted(w, (np.arange(n) + rng.random()) / n * w[-1]), n - 1)


def _move(
    z: Array,
    found: Array,
    heat: float,
    size: float,
    log_likelihood: Callable[[Array], Array],
    rng: np.random.Generator,
) -> float:
    """Move particles in place; returns the factor by which the next move should be larger."""
    n, d = z.shape
    a, b = rng.integers(n, size=(2, n))
    # A move changes some of the coordinates, as in DREAM (Vrugt et al. 2009): most parameters of a
    # sum of curves matter little, and large moves along those are accepted.
    chosen = rng.random((n, d)) < rng.choice(SHARES, (n, 1))
    # At least one: a move that changes nothing is always accepted, and the size would grow.
    chosen[np.arange(n), rng.integers(d, size=n)] = True
    # Sizes vary within a move, so that one of them suits each mode.
    step = size * 2.38 / np.sqrt(2.0 * chosen.sum(axis=1, keepdims=True))
    step = step * np.exp(0.7 * rng.standard_normal((n, 1)))
    new = z + chosen * (step * (z[a] - z[b]) + 1e-3 * rng.standard_normal((n, d)))
    value = log_likelihood(new)
    # The prior is a standard normal distribution.
    gain = heat * (value - found) - 0.5 * ((new**2).sum(axis=1) - (z**2).sum(axis=1))
    accept = np.log(rng.random(n)) < gain
    z[accept], found[accept] = new[accept], value[accept]
    return float(np.exp(accept.mean() - ACCEPTED))
