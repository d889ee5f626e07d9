"""From a posterior to the future: sample paths of the pass rate beyond the window.

    level(x) = law(x_n) + g (law(x) - law(x_n)) + u_n exp(-REVERT d) + W(d),       d = ln(x / x_n)

g says that the law's remaining gain is itself uncertain; W is the random walk going on (now and
then a rougher one). Then there are fates that no law knows, one per draw (Fates): a run that stands
still may take off, a healthy one may begin to fall, and one that has already fallen (alarm.py) goes
on from where it is: falls on, settles there or recovers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from scalerl.curves.alarm import Fall
from scalerl.curves.posterior import Posterior

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


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
    #: A healthy run begins to fall at this rate per unit of ln C ahead: its gain stops, and it
    #: loses Exp(1) times this share of its rise per sqrt(ln C).
    hazard: float = 0.08
    slide: float = 0.2
    #: A run without a gain takes off with this probability: by U (1 - level), over one ln C.
    take_off: float = 0.05
    #: A fall that is real goes on with this probability, by Exp(1) times this share of it per
    #: sqrt(ln C); with this one it is made good, by U of it, at this rate; else it settles.
    falls_on: float = 0.4
    fall_size: float = 0.8
    recovers: float = 0.25
    recovery_rate: float = 3.0


@dataclass(frozen=True, slots=True)
class Fates:
    """What becomes of each draw beyond its law."""

    #: ln C ahead at which a healthy run begins to fall, and how fast (in units of the slide).
    onset: Array
    speed: Array
    #: Rise still to come in a run that stands still; 0 where it stays.
    take_off: Array
    #: True where the fall that was seen is real; the level it starts from, what it loses per
    #: sqrt(ln C), and what it wins back.
    fallen: Flags
    start: Array
    loss: Array
    recovery: Array

    @staticmethod
    def draw(
        posterior: Posterior, fall: Fall | None, future: Future, seed: int, times: float = 1.0
    ) -> Fates:
        """`times` is what signs of trouble multiply the hazard with (hazard.py)."""
        rng = np.random.default_rng((seed, 5))
        draws = posterior.draws
        n = len(draws)
        take_off = np.zeros(n)
        takes_off = draws.flat & (rng.random(n) < future.take_off)
        take_off[takes_off] = (rng.random(n) * (1.0 - draws.a))[takes_off]
        onset, speed = rng.standard_exponential((2, n))
        fallen = np.zeros(n, dtype=bool)
        start, loss, recovery = np.zeros((3, n))
        if fall is not None:
            fallen = rng.random(n) < fall.probability
            start = fall.level + fall.level_sd * rng.standard_normal(n)
            what, drop = rng.random(n), max(fall.drop, 0.0)
            loss = np.where(what < future.falls_on, future.fall_size * drop * speed, 0.0)
            recovery = np.where(what > 1.0 - future.recovers, drop * rng.random(n), 0.0)
        onset = onset / (times * future.hazard)
        return Fates(onset, speed, take_off, fallen, start, loss, recovery)

    def healthy(self) -> Fates:
        """The same draws, of which none falls."""
        n = len(self.onset)
        return replace(self, onset=np.full(n, np.inf), fallen=np.zeros(n, dtype=bool))

    def only(self, chosen: slice | npt.NDArray[np.intp]) -> Fates:
        """Those of these draws."""
        return Fates(*(getattr(self, f.name)[chosen] for f in fields(self)))


@functools.cache
def law_error(n: int) -> Array:
    """The z of ln g, one per draw: how wrong the law is about the remaining gain. It is the *same*
    for every run, since runs of one kind are wrong in the same way: differences between runs are
    then known better than either (what that does to verdicts: docs/explanation/comparing.md)."""
    return np.random.default_rng(LAW_ERROR_SEED).standard_normal(n)


def ceiling(posterior: Posterior, fates: Fates, future: Future) -> Array:
    """Where each draw is heading if it stays healthy: A with the law's error in what is still to be
    gained, plus the present departure from the law. Narrower than the bare A on long windows."""
    now = posterior.draws.law(np.array([posterior.t_end]))[:, 0]
    g = np.exp(future.gain_sd * np.sqrt(2.0) * law_error(len(now)))
    heading = now + (posterior.draws.a - now) * g + posterior.u_end + fates.take_off
    return np.asarray(np.clip(heading, 0.0, 1.0))


def future_paths(
    posterior: Posterior,
    d: Array,
    fates: Fates,
    rng: np.random.Generator,
    future: Future,
    joint: bool = True,
) -> Array:
    """Pass rate at the ascending horizons d = ln(x / x_n) >= 0 for every draw: (draws, len(d)).

    joint=False draws W at each horizon by itself: W(d) = sqrt(d) z with one z per draw. Every
    column then has its exact distribution and does not depend on the other horizons, which the
    increments of a path do."""
    draws, scale = posterior.draws, posterior.points.scale
    n = len(draws)
    healthy = np.minimum(d[None, :], fates.onset[:, None])
    now = draws.law(np.array([posterior.t_end]))
    gain = draws.law(posterior.t_end + healthy) - now
    gain *= np.exp(
        future.gain_sd * np.sqrt(np.clip(healthy / 0.7, 0.0, 2.0)) * law_error(n)[:, None]
    )
    gain += fates.take_off[:, None] * (1.0 - np.exp(-healthy))
    gain -= future.slide * scale * fates.speed[:, None] * np.sqrt(d[None, :] - healthy)
    gain += now + posterior.u_end[:, None] * np.exp(-future.revert * d)

    on = fates.start[:, None] - fates.loss[:, None] * np.sqrt(d)
    on += fates.recovery[:, None] * (1.0 - np.exp(-future.recovery_rate * d))
    level = np.where(fates.fallen[:, None], on, gain)
    rough = np.where(rng.random(n) < future.jump_probability, future.jump_size, 1.0)
    walk_sd = np.sqrt(draws.s2 * posterior.walk.tau2[draws.walk]) * rough
    if joint:
        step_sd = np.sqrt(np.diff(d, prepend=0.0))
        walk = np.cumsum(step_sd * rng.standard_normal((n, len(d))), axis=1)
    else:
        walk = np.sqrt(d) * rng.standard_normal((n, 1))
    level += walk_sd[:, None] * walk
    return np.asarray(np.clip(level, 0.0, 1.0))
