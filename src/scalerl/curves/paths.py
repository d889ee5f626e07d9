"""Sample paths of the pass rate beyond the fitted window, drawn from a posterior.

    level(x) = law(x_n) + g (law(x) - law(x_n)) + u_n exp(-reversion d) + W(d),    d = ln(x / x_n)

g is the uncertainty of the law's remaining gain; W continues the random walk of the residuals (now
and then a rougher one). On top of that each draw has a scenario that no law describes
(`FutureScenarios`): a flat run may take off, a healthy one may begin to fall, and one that has
already fallen (alarm.py) continues from its present level: it keeps falling, stays or recovers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace

import numpy as np

from scalerl.curves.alarm import Fall
from scalerl.curves.formula import Array, Flags, IntArray
from scalerl.curves.posterior import Posterior
from scalerl.curves.priors import FuturePriors

#: Seed of the law's error, which all runs share. Any number would do; changing it would change
#: every published interval in its last digits.
LAW_ERROR_SEED = 20251015
#: Horizon in ln C at which `gain_sd` applies: about one doubling.
GAIN_HORIZON = 0.7
#: The law's error grows like sqrt(d) up to this many GAIN_HORIZON, and no further.
MAX_GAIN_HORIZONS = 2.0
#: Depths of falls, as shares of the level before: the loss is uniform between two of them.
#: `FuturePriors.fall_weight` has the probability of each range.
FALL_DEPTHS = (0.0, 0.08, 0.2, 0.5, 1.0)
#: Rate per unit of ln C at which a fall completes: runs that fall do so within a few evaluations.
FALL_RATE = 5.0
#: ln C after which a plateau no longer raises the hazard of a fall: longer ones are too rare to
#: learn from.
MAX_PLATEAU = 2.0


@dataclass(frozen=True, slots=True)
class FutureScenarios:
    """What happens to each draw beyond its law; all arrays have one value per draw."""

    #: ln C ahead at which a healthy run begins to fall.
    onset: Array
    #: Share of its level that it loses.
    depth: Array
    #: Rise still to come in a flat run that takes off; 0 elsewhere.
    takeoff: Array
    #: True where the fall that was seen is real.
    fallen: Flags
    #: Level from which a fallen run continues.
    start: Array
    #: What a fallen run loses per sqrt(ln C).
    loss: Array
    #: What a fallen run recovers.
    recovery: Array

    @staticmethod
    def draw(
        posterior: Posterior,
        fall: Fall | None,
        priors: FuturePriors,
        seed: int,
        hazard_factor: float = 1.0,
    ) -> FutureScenarios:
        """One scenario per draw; warning signs multiply the hazard by `hazard_factor`."""
        # The order of the calls on rng fixes the published numbers: do not reorder.
        rng = np.random.default_rng((seed, 5))
        draws = posterior.draws
        n = len(draws)
        takeoff = np.zeros(n)
        takes_off = draws.flat & (rng.random(n) < priors.takeoff_probability)
        takeoff[takes_off] = (rng.random(n) * (1.0 - draws.a))[takes_off]
        onset, speed = rng.standard_exponential((2, n))
        edges = np.concatenate([[0.0], np.cumsum(priors.fall_weight)])
        depth = np.interp(rng.random(n) * edges[-1], edges, FALL_DEPTHS)
        fallen = np.zeros(n, dtype=bool)
        start, loss, recovery = np.zeros((3, n))
        if fall is not None:
            fallen = rng.random(n) < fall.probability
            start = fall.level + fall.level_sd * rng.standard_normal(n)
            u, drop = rng.random(n), max(fall.drop, 0.0)
            continues = u < priors.fall_continues
            recovers = u > 1.0 - priors.recovery_probability
            loss = np.where(continues, priors.continued_fall_speed * drop * speed, 0.0)
            recovery = np.where(recovers, drop * rng.random(n), 0.0)
        plateau = np.minimum(posterior.plateau, MAX_PLATEAU)
        hazard = hazard_factor * (priors.hazard + priors.plateau_hazard * plateau)
        return FutureScenarios(onset / hazard, depth, takeoff, fallen, start, loss, recovery)

    def healthy(self) -> FutureScenarios:
        """The same scenarios without falls."""
        n = len(self.onset)
        return replace(self, onset=np.full(n, np.inf), fallen=np.zeros(n, dtype=bool))

    def only(self, chosen: slice | IntArray) -> FutureScenarios:
        """The scenarios of the chosen draws."""
        return FutureScenarios(*(getattr(self, f.name)[chosen] for f in fields(self)))


@functools.cache
def law_error(n: int) -> Array:
    """The z of ln g, one per draw: how wrong the law is about the remaining gain. It is the *same*
    for every run, because runs of one kind are wrong in the same way: differences between runs are
    then known more precisely than either run (its effect on verdicts:
    docs/explanation/comparing.md)."""
    return np.random.default_rng(LAW_ERROR_SEED).standard_normal(n)


def ceiling(posterior: Posterior, scenarios: FutureScenarios, priors: FuturePriors) -> Array:
    """The ceiling of each draw if the run stays healthy: A with the law's error in the gain still
    to come, plus the present departure from the law. On long windows it is narrower than A."""
    now = posterior.draws.law(np.array([posterior.t_end]))[:, 0]
    g = np.exp(priors.gain_sd * np.sqrt(MAX_GAIN_HORIZONS) * law_error(len(now)))
    heading = now + (posterior.draws.a - now) * g
    heading += priors.ceiling_keeps * posterior.u_end + scenarios.takeoff
    return np.asarray(np.clip(heading, 0.0, 1.0))


def future_paths(
    posterior: Posterior,
    d: Array,
    scenarios: FutureScenarios,
    rng: np.random.Generator,
    priors: FuturePriors,
    joint: bool = True,
) -> Array:
    """Pass rate at the ascending horizons d = ln(x / x_n) >= 0 for every draw: (draws, len(d)).

    joint=False draws W at each horizon by itself: W(d) = sqrt(d) z with one z per draw. Every
    column then has its exact distribution and does not depend on the other horizons, whereas the
    increments of a path do."""
    draws = posterior.draws
    n = len(draws)
    # The law holds until the run begins to fall.
    healthy = np.minimum(d[None, :], scenarios.onset[:, None])
    now = draws.law(np.array([posterior.t_end]))
    gain = draws.law(posterior.t_end + healthy) - now
    horizons = np.clip(healthy / GAIN_HORIZON, 0.0, MAX_GAIN_HORIZONS)
    gain *= np.exp(priors.gain_sd * np.sqrt(horizons) * law_error(n)[:, None])
    gain += scenarios.takeoff[:, None] * (1.0 - np.exp(-healthy))
    gain += now + posterior.u_end[:, None] * np.exp(-priors.reversion * d)
    gain *= 1.0 - scenarios.depth[:, None] * (1.0 - np.exp(-FALL_RATE * (d[None, :] - healthy)))

    fallen = scenarios.start[:, None] - scenarios.loss[:, None] * np.sqrt(d)
    fallen += scenarios.recovery[:, None] * (1.0 - np.exp(-priors.recovery_rate * d))
    level = np.where(scenarios.fallen[:, None], fallen, gain)
    rough = np.where(rng.random(n) < priors.jump_probability, priors.jump_size, 1.0)
    walk_sd = np.sqrt(draws.s2 * posterior.covariance.tau2[draws.hypothesis]) * rough
    if joint:
        step_sd = np.sqrt(np.diff(d, prepend=0.0))
        walk = np.cumsum(step_sd * rng.standard_normal((n, len(d))), axis=1)
    else:
        walk = np.sqrt(d) * rng.standard_normal((n, 1))
    level += walk_sd[:, None] * walk
    return np.asarray(np.clip(level, 0.0, 1.0))
