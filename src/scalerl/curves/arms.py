"""Arms of a comparison: each the runs of one recipe, or a single run.

Runs of a recipe differ by their seed alone. They are fitted as one curve through all their points
(`Arm.law`): three seeds show the recipe's curve three times over, and what is believed beforehand
counts once. (A mean of three fits counts it three times: three short runs that each leave the
ceiling between .6 and 1 would be sure that their mean is near .8.) What seeds do to the ceiling,
which more points of the same seeds do not tell, is added where recipes are compared
(`seed_spread`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.curves.fit import fit
from scalerl.curves.kin import Habit, Kin
from scalerl.curves.paths import law_error
from scalerl.curves.result import IDENTIFIED_WIDTH, Fit
from scalerl.runs.record import Run

Array = npt.NDArray[np.float64]

#: The paper's margin on A. Draws in which both ceilings lie this near to 1 are ties.
MARGIN = 0.02
#: A side is taken above this probability.
SURE = 0.97
#: A ceiling that is not identified may be a perfect one when it lies this near to 1 with more than
#: 1 - SURE: its interval, which may not be that narrow, was cut off there.
OPEN_TOP = IDENTIFIED_WIDTH / 2.0
#: Seeds alone move the ceiling by about this much (sd), and the observations that it counts for
#: when replicates say otherwise.
SEED_SD = 0.01
SEED_NU = 6.0
#: Spreads that are weighed.
SPREADS = np.geomspace(0.002, 0.1, 60)
#: Curves are compared with every THIN-th draw, at this many knots behind.
THIN = 4
KNOTS_BEHIND = 32


class Arm:
    """One arm of a comparison: the runs of a recipe, or a single run.

    >>> from scalerl import compare, load_runs
    >>> [arm.name for arm in compare(load_runs("example:paper-8b", "example:paper-moe")).arms]
    ['paper-moe', 'paper-8b']
    """

    def __init__(self, name: str, fits: tuple[Fit, ...], habit: Habit | None = None) -> None:
        self.name = name
        self.fits = fits
        self.habit = habit
        self._levels: dict[bytes, Array] = {}

    @cached_property
    def alone(self) -> Fit:
        """The law through the points of all its runs."""
        first = self.fits[0]
        if len(self.fits) == 1:
            return first
        return fit(pooled(self.name, self.fits), law=first.law, r0=first.r0, level=first.level)

    @cached_property
    def law(self) -> Fit:
        """The same with what the other arms know of runs of this kind."""
        return self.alone if self.habit is None else self.habit.of(self.alone)

    @property
    def end(self) -> float:
        return max(f.end for f in self.fits)

    @property
    def seeds(self) -> float:
        """How many seeds it stands for: one that is half as long counts half."""
        return sum(f.end for f in self.fits) / self.end

    @cached_property
    def ceiling(self) -> Array:
        """Ceiling of the arm, per draw."""
        return self.law.belief.parameter("A")

    def to_dict(self) -> dict[str, Any]:
        """The ceiling that the arm is ranked and compared by (that of `law`)."""
        return {
            "name": self.name,
            "A": self.law.params["A"],
            "interval": list(self.law.interval("A")),
            "identified": self.law.identified and not self.declines,
        }

    @property
    def declines(self) -> bool:
        return any(f.alarm is not None for f in self.fits)

    @property
    def open_at_the_top(self) -> bool:
        """Whether the points leave the ceiling open up to 1, so that 1 itself is what bounds it."""
        open_top = float((self.ceiling > 1.0 - OPEN_TOP).mean()) > 1.0 - SURE
        return not self.law.identified and open_top

    def levels(self, compute: Array) -> Array:
        """Pass rate, per draw: (draws / THIN, len(compute)).

        Kept, since a leader is compared with many at the same compute."""
        key = compute.tobytes()
        if key not in self._levels:
            self._levels[key] = self.law.belief.thinned(THIN).levels(compute)
        return self._levels[key]

    @cached_property
    def behind(self) -> tuple[Array, Array]:
        """ln C inside the window, and the climb there (running maximum, per draw)."""
        positive = self.law.points.compute[self.law.points.compute > 0]
        knots = np.geomspace(positive[0], self.law.end, KNOTS_BEHIND)
        levels = self.law.belief.thinned(THIN).levels(knots)
        return np.log(knots), np.maximum.accumulate(levels, axis=1)

    @property
    def top(self) -> float:
        """The score reached by now."""
        return float(np.median(self.behind[1][:, -1]))

    @property
    def start(self) -> float:
        return float(np.mean([f.points.score[:2].mean() for f in self.fits]))

    def log_compute_to(self, score: float) -> Array:
        """ln C at which each draw first passes a score inside the window."""
        position, levels = self.behind
        i = np.clip((levels < score).sum(axis=1), 1, len(position) - 1)
        rows = np.arange(len(levels))
        before, after = levels[rows, i - 1], levels[rows, i]
        rise = np.where(after > before, after - before, 1.0)
        share = np.clip((score - before) / rise, 0.0, 1.0)
        return np.asarray(position[i - 1] + share * (position[i] - position[i - 1]))


def pooled(name: str, fits: Sequence[Fit]) -> Run:
    """The points of several runs as one curve."""
    parts = [f.points for f in fits]
    compute = np.concatenate([p.compute for p in parts])
    order = np.argsort(compute, kind="stable")
    sizes = [p.n_eval for p in parts if p.n_eval is not None]
    return parts[0].replace(
        name=name,
        group=name,
        compute=compute[order],
        score=np.concatenate([p.score for p in parts])[order],
        n_eval=np.concatenate(sizes)[order] if len(sizes) == len(parts) else None,
        signs={},
    )


def akin(arms: Iterable[Arm]) -> list[Arm]:
    """The arms with what they tell about each other."""
    given = list(arms)
    kin = Kin([arm.alone for arm in given])
    return [among(arm, kin.habit(arm.alone)) for arm in given]


def among(arm: Arm, habit: Habit | None) -> Arm:
    """The arm with what others tell it; its runs are not fitted again."""
    made = Arm(arm.name, arm.fits, habit)
    made.alone = arm.alone
    return made


def seed_spread(arms: Iterable[Arm]) -> float:
    """Spread of the ceiling between runs of one recipe: about SEED_SD, as replicates correct it.

    The medians of n runs scatter by the spread *and* by what each fit does not know of its ceiling,
    so s is weighed by m_i ~ N(mean, s^2 + v_i), the mean unknown:

        medians .640 .652 .661, each known to .010      they say nothing of a spread above 0
        medians .640 .690 .610, each known to .010      s about .04
    """
    weight = -SEED_NU * (np.log(SPREADS) + 0.5 * (SEED_SD / SPREADS) ** 2)
    for arm in arms:
        if len(arm.fits) < 2:
            continue
        ceilings = [f.belief.parameter("A") for f in arm.fits]
        middle = np.array([np.median(a) for a in ceilings])
        variance = np.array([own_variance(a) for a in ceilings]) + SPREADS[:, None] ** 2
        precision = 1.0 / variance
        total = precision.sum(axis=1)
        mean = (precision * middle).sum(axis=1) / total
        weight -= 0.5 * (np.log(variance).sum(axis=1) + np.log(total))
        weight -= 0.5 * (precision * (middle - mean[:, None]) ** 2).sum(axis=1)
    p = np.exp(weight - weight.max())
    return float(np.sqrt((p * SPREADS**2).sum() / p.sum()))


def own_variance(ceiling: Array) -> float:
    """Of a run's ceiling, without the law's error, which all runs share."""
    z = law_error(len(ceiling))
    rest = ceiling - z * float(np.mean(z * (ceiling - ceiling.mean())) / np.mean(z * z))
    low, high = np.quantile(rest, [0.16, 0.84])
    return float(((high - low) / 2.0) ** 2)
