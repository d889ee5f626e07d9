"""From a posterior to the future: sample paths of the pass rate beyond the window.

    level(x) = law(x_n) + g (law(x) - law(x_n)) + u_n exp(-REVERT d) + W(d),       d = ln(x / x_n)

g says that the law's remaining gain is itself uncertain; W is the random walk going on (now and
then a rougher one); with a small probability the run stalls or slides. A decline that has already
begun (alarm.py) is not pulled back to the law, and may go on.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalerl.curves.alarm import Decline
from scalerl.curves.posterior import Posterior

Array = npt.NDArray[np.float64]


LAW_ERROR_SEED = 20251015


@dataclass(frozen=True, slots=True)
class Future:
    """How a run may depart from its law after the window; see docs/explanation/calibration.md."""

    #: sd of ln g at d = 0.7 (a doubling), growing like sqrt(d) up to twice that horizon.
    gain_sd: float = 0.3
    #: Rate in ln C at which the present departure from the law fades.
    revert: float = 0.3
    #: Probability of a rougher future, and how much rougher.
    jump_probability: float = 0.05
    jump_size: float = 4.0
    #: Probability that the gain stops and the level slides, by this share of the rise per
    #: sqrt(ln C).
    stall_probability: float = 0.06
    stall_size: float = 0.2
    #: A decline under way goes on with this probability, at this share of its observed rate.
    decline_probability: float = 0.3
    decline_rate: float = 0.8


@functools.cache
def law_error(n: int) -> Array:
    """The z of ln g, one per draw: how wrong the law is about the remaining gain. It is the *same*
    for every run, since runs of one kind are wrong in the same way: differences between runs are
    then known better than either (what that does to verdicts: docs/explanation/comparing.md)."""
    return np.random.default_rng(LAW_ERROR_SEED).standard_normal(n)


def ceiling(posterior: Posterior, future: Future) -> Array:
    """Where each draw is heading: A with the law's error in what is still to be gained, plus the
    present departure from the law. Narrower than the bare A on long windows."""
    now = posterior.draws.law(np.array([posterior.t_end]))[:, 0]
    g = np.exp(future.gain_sd * np.sqrt(2.0) * law_error(len(now)))
    heading = now + (posterior.draws.a - now) * g + posterior.u_end
    return np.asarray(np.clip(heading, 0.0, 1.0))


def future_paths(
    posterior: Posterior,
    d: Array,
    decline: Decline | None,
    rng: np.random.Generator,
    future: Future,
) -> Array:
    """Pass rate at the ascending horizons d = ln(x / x_n) >= 0 for every draw: (draws, len(d))."""
    draws, points = posterior.draws, posterior.points
    n = len(draws)
    t_end = posterior.t_end
    law = draws.law(np.concatenate([[t_end], t_end + d]))
    now, ahead = law[:, :1], law[:, 1:] - law[:, :1]

    horizon = np.sqrt(np.clip(d / 0.7, 0.0, 2.0))
    g = np.exp(future.gain_sd * horizon[None, :] * law_error(n)[:, None])
    rough = np.where(rng.random(n) < future.jump_probability, future.jump_size, 1.0)
    step_sd = np.sqrt(np.diff(d, prepend=0.0))
    scale = np.sqrt(draws.s2 * posterior.walk.tau2[draws.tau]) * rough
    walk = scale[:, None] * np.cumsum(step_sd * rng.standard_normal((n, len(d))), axis=1)

    if decline is None:
        departure = posterior.u_end[:, None] * np.exp(-future.revert * d)[None, :]
        falls = rng.random(n) < future.stall_probability
        slide = future.stall_size * points.scale * np.sqrt(d)
    else:
        departure = np.repeat(posterior.u_end[:, None], len(d), axis=1)
        falls = rng.random(n) < future.decline_probability
        slide = future.decline_rate * decline.rate * d
    drop = rng.standard_exponential(n)[:, None] * slide[None, :]
    gain = np.where(falls[:, None], -drop, g * ahead)
    return np.asarray(np.clip(now + gain + departure + walk, 0.0, 1.0))
