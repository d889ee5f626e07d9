"""What growing doses do to a line, as samples: levels with their uncertainty, and the dose from
which on a line has fallen.

A level is the pass rate of a recipe, so its uncertainty includes what a seed alone does. The spread
between the runs of a cell is learned from all cells of its line (SPREAD and SPREAD_COUNT say what
is assumed before) and its own uncertainty is kept. Levels are taken to fall or stay as the dose
grows: samples that rise are pooled with their neighbours (isotonic regression).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scalerl.curves.arms import MARGIN, WINNER_PROBABILITY
from scalerl.curves.formula import Array, logistic

#: Samples of every cell.
DRAWS = 4000
#: sd between the runs of a cell before any were seen: what a seed does to a ceiling (about 0.01)
#: and the noise of some 1,500 answers (about 0.01), added as squares.
SPREAD = 0.015
#: Pseudo-observations behind SPREAD, and again behind that of the line for each of its cells.
SPREAD_COUNT = 4.0
#: Probability from which on it is said that a line does not fall: its difference then stays above
#: the margin's lower end with the one-sided probability of a 90 % interval.
HOLDS_PROBABILITY = 0.95
#: Widths of the dose response of instability, as shares of the axis: from a step to a slow rise.
WIDTHS = np.geomspace(0.03, 0.5, 8)
#: Doses at which half of the runs may be unstable, as shares of the axis; beyond 1: not tried.
HALF_WAY = np.linspace(-0.5, 2.0, 126)
#: Central interval of the tables.
TAILS = (0.05, 0.5, 0.95)
Interval = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class CellScores:
    """One line at one dose: the level of each run that counts, and the runs that do not."""

    #: Pass rates, one for each run that is not unstable.
    levels: tuple[float, ...]
    unstable: int = 0
    #: Samples of the level without the spread between seeds, in place of the mean of `levels`:
    #: those of a pooled fit.
    fitted: Array | None = None

    @property
    def runs(self) -> int:
        return len(self.levels) + self.unstable


def spread_of(cells: Sequence[CellScores]) -> float:
    """sd between the runs of one cell, over all cells of a line."""
    squares, degrees = SPREAD_COUNT * SPREAD**2, SPREAD_COUNT
    for cell in cells:
        if len(cell.levels) > 1:
            squares += float(np.var(cell.levels) * len(cell.levels))
            degrees += len(cell.levels) - 1
    return float(np.sqrt(squares / degrees))


def level_draws(cell: CellScores, spread: float, seed: tuple[int, ...]) -> Array:
    """Samples of the level of a recipe; nan where no run counts."""
    n = len(cell.levels)
    if not n:
        return np.full(DRAWS, np.nan)
    rng = np.random.default_rng((47, *seed))
    degrees = SPREAD_COUNT + n - 1
    squares = SPREAD_COUNT * spread**2 + float(np.var(cell.levels) * n)
    own = np.sqrt(squares / rng.chisquare(degrees, DRAWS))
    middle: float | Array = float(np.mean(cell.levels))
    if cell.fitted is not None:
        middle = np.resize(cell.fitted, DRAWS)
    draws = middle + own / np.sqrt(n) * rng.standard_normal(DRAWS)
    return np.asarray(np.clip(draws, 0.0, 1.0))


def unstable_interval(unstable: int, runs: int) -> Interval:
    """P(unstable): the median and the ends of its 90 % interval (Jeffreys)."""
    if not runs:
        return (0.0, 0.5, 1.0)
    from scipy.stats import beta

    low, middle, high = (beta.ppf(tail, unstable + 0.5, runs - unstable + 0.5) for tail in TAILS)
    # As is usual: an end at which nothing else was seen is closed.
    return (0.0 if unstable == 0 else float(low), float(middle),
            1.0 if unstable == runs else float(high))  # fmt: skip


def positions(doses: Sequence[float]) -> Array:
    """Places of the doses on an axis from 0 to 1: even in the logarithm; a dose of 0 is as far from
    the next one as that is from its next.

    >>> positions([0.0, 0.1, 0.2, 0.4]).round(3).tolist()
    [0.0, 0.333, 0.667, 1.0]
    """
    values = np.asarray(doses, dtype=np.float64)
    if (values <= 0).any():
        if len(values) < 3 or (values[1:] <= 0).any():
            return np.linspace(0.0, 1.0, len(values))
        logs = np.log(values[1:])
        logs = np.concatenate([[2 * logs[0] - logs[1]], logs])
    else:
        logs = np.log(values)
    return np.asarray((logs - logs[0]) / (logs[-1] - logs[0]))


def places_of(doses: Sequence[float], axis: Sequence[float]) -> Array:
    """Places of some doses on the axis of all.

    >>> places_of([1.0, 4.0], [1.0, 4.0, 16.0]).tolist()
    [0.0, 0.5]
    """
    every = axis or doses
    where = positions(every)
    return np.array([where[list(every).index(dose)] for dose in doses])


def dose_at(place: float, doses: Sequence[float]) -> float:
    """The dose at a place of the axis; straight between 0 and the first dose above it."""
    if not np.isfinite(place):
        return float("inf")
    places, values = positions(doses), np.asarray(doses, dtype=np.float64)
    i = int(np.clip(np.searchsorted(places, place, side="right") - 1, 0, len(values) - 2))
    share = float((place - places[i]) / (places[i + 1] - places[i]))
    low, high = float(values[i]), float(values[i + 1])
    if min(low, high) <= 0:
        return low + share * (high - low)
    return float(low * (high / low) ** share)


@dataclass(frozen=True, eq=False)
class LineDraws:
    """A line over its doses, the first one the reference."""

    doses: tuple[float, ...]
    cells: tuple[CellScores, ...]
    #: What is known of the level at each dose by construction; falls are counted from it.
    known: tuple[float, ...]
    seed: int = 0
    #: All doses of the force, of which `doses` are those that were tried; empty: all were.
    axis: tuple[float, ...] = ()

    @cached_property
    def places(self) -> Array:
        """Places of its doses on the axis."""
        return places_of(self.doses, self.axis)

    @cached_property
    def spread(self) -> float:
        return spread_of(self.cells)

    @cached_property
    def levels(self) -> Array:
        """(DRAWS, doses); nan where no run counts."""
        made = [level_draws(cell, self.spread, (self.seed, i)) for i, cell in enumerate(self.cells)]
        return np.stack(made, axis=1)

    @cached_property
    def falls(self) -> Array:
        """How far each level is below that of the reference dose, (DRAWS, doses), compared
        directly: nothing is taken to be monotone."""
        beside = self.levels - np.asarray(self.known)
        return np.asarray(beside[:, :1] - beside)

    @cached_property
    def half_unstable(self) -> Array:
        """Place on the axis at which half of the runs are unstable, a sample each; inf where no run
        was unstable."""
        if not any(cell.unstable for cell in self.cells):
            return np.full(DRAWS, np.inf)
        counts = [(cell.unstable, cell.runs) for cell in self.cells]
        return half_way(counts, self.places, self.seed)

    @cached_property
    def thresholds(self) -> Array:
        """Place on the axis at which the level is MARGIN below the reference, or half of the runs
        are unstable; inf: not up to the largest dose. Levels are taken to be monotone."""
        seen = [i for i, cell in enumerate(self.cells) if cell.levels]
        found = np.full(DRAWS, np.inf)
        if len(seen) > 1 and seen[0] == 0:
            weights = np.array([len(self.cells[i].levels) for i in seen], dtype=np.float64)
            beside = (self.levels - np.asarray(self.known))[:, seen]
            smooth = falling(beside, weights)
            share = np.random.default_rng((67, self.seed)).random(DRAWS)
            found = first_crossing(smooth[:, :1] - smooth, self.places[seen], MARGIN, share)
        return np.asarray(np.minimum(found, self.half_unstable))


def half_way(counts: Sequence[tuple[int, int]], places: Array, seed: int) -> Array:
    """Samples of the place at which half of the runs break, by how many did of how many at each
    place; inf: beyond the largest dose. The share of broken runs is a logistic function of the
    place; the prior is flat on HALF_WAY and on WIDTHS."""
    log = np.zeros((len(HALF_WAY), len(WIDTHS)))
    for place, (broken, runs) in zip(places, counts, strict=True):
        p = logistic((place - HALF_WAY[:, None]) / WIDTHS[None, :])
        p = np.clip(p, 1e-12, 1 - 1e-12)
        log += broken * np.log(p) + (runs - broken) * np.log1p(-p)
    weight = np.exp(log - log.max()).sum(axis=1)
    rng = np.random.default_rng((53, seed))
    chosen = rng.choice(len(HALF_WAY), DRAWS, p=weight / weight.sum())
    step = HALF_WAY[1] - HALF_WAY[0]
    found = HALF_WAY[chosen] + step * (rng.random(DRAWS) - 0.5)
    return np.where(found > places[-1], np.inf, np.maximum(found, 0.0))


def falling(values: Array, weights: Array) -> Array:
    """The nearest sequences that never rise (weighted isotonic regression), row by row.

    >>> falling(np.array([[3.0, 1.0, 2.0]]), np.ones(3)).tolist()
    [[3.0, 1.5, 1.5]]
    """
    # The max-min formula: the least over starts of the largest mean over ends; few doses, so that
    # all ranges are cheap.
    n = values.shape[1]
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values * weights, axis=1)], axis=1)
    mass = np.concatenate([[0.0], np.cumsum(weights)])
    out = np.empty_like(values)
    for i in range(n):
        best = np.full(len(values), np.inf)
        for a in range(i + 1):
            means = [(sums[:, b + 1] - sums[:, a]) / (mass[b + 1] - mass[a]) for b in range(i, n)]
            best = np.minimum(best, np.max(means, axis=0))
        out[:, i] = best
    return out


def first_crossing(falls: Array, places: Array, margin: float, share: Array) -> Array:
    """Place at which each row of falls first passes the margin; inf: never. Between the last dose
    before that and the first one after it nothing was tried and any response is possible: the place
    is this share of the way.

    >>> fall = np.array([[0.0, 0.01, 0.05]])
    >>> first_crossing(fall, np.array([0.0, 0.5, 1.0]), 0.03, np.array([0.5])).tolist()
    [0.75]
    """
    beyond = falls > margin
    i = np.argmax(beyond, axis=1)
    before = np.maximum(i - 1, 0)
    found = places[before] + share * (places[i] - places[before])
    return np.asarray(np.where(beyond.any(axis=1), found, np.inf))


@dataclass(frozen=True, slots=True)
class DoseVerdict:
    """What is said of a line: it falls at a dose, it does not up to the largest dose tried, or it
    is undecided."""

    verdict: str
    #: Low end, median and high end of the dose; inf: beyond the largest.
    dose: Interval
    #: The same as places on the axis.
    at: Interval
    #: Probability that it has fallen at the largest dose, or before.
    p_falls: float
    #: Fall at the largest dose: 90 % interval and median; None where no run counts there.
    fall: Interval | None


def line_verdict(line: LineDraws) -> DoseVerdict:
    """The verdict of a line whose levels are monotone in the dose."""
    draws, last = line.thresholds, line.cells[-1]
    p_falls = float(np.isfinite(draws).mean())
    fall: Interval | None = None
    holds = False
    if last.levels and line.cells[0].levels:
        ends = np.quantile(line.falls[:, -1], TAILS)
        fall = (float(ends[0]), float(ends[1]), float(ends[2]))
        stays = (line.falls[:, -1] <= MARGIN) & ~np.isfinite(line.half_unstable)
        holds = float(stays.mean()) >= HOLDS_PROBABILITY
    verdict = "falls" if p_falls >= WINNER_PROBABILITY else "holds" if holds else "undecided"
    if not line.cells[0].levels:
        verdict = "undecided"  # nothing to fall from
    return _verdict(verdict, draws, line.axis or line.doses, p_falls, fall)


def break_verdict(
    counts: Sequence[tuple[int, int]], doses: tuple[float, ...], axis: tuple[float, ...] = ()
) -> DoseVerdict:
    """The verdict on the dose at which half of the runs of a line break, by how many did of how
    many at each dose. "falls": they do up to the largest dose; "holds": they do not."""
    draws = half_way(counts, places_of(doses, axis), 0)
    p_breaks = float(np.isfinite(draws).mean())
    verdict = "falls" if p_breaks >= WINNER_PROBABILITY else "undecided"
    if 1.0 - p_breaks >= HOLDS_PROBABILITY:
        verdict = "holds"
    return _verdict(verdict, draws, axis or doses, p_breaks, None)


def _verdict(
    name: str, draws: Array, doses: tuple[float, ...], p: float, fall: Interval | None
) -> DoseVerdict:
    low, middle, high = (float(v) for v in np.quantile(draws, TAILS, method="higher"))
    dose = tuple(dose_at(v, doses) for v in (low, middle, high))
    return DoseVerdict(name, (dose[0], dose[1], dose[2]), (low, middle, high), p, fall)


@dataclass(frozen=True, slots=True)
class Contrast:
    """One cell against another: the difference of their levels, and which is more often stable."""

    #: "higher", "lower", "no difference" or "undecided".
    verdict: str
    #: Low end, median and high end; None where one has no run that counts.
    difference: Interval | None
    #: Probability that its runs are less often stable than the other's.
    p_less_stable: float


def contrast(mine: Array, other: Array, cells: tuple[CellScores, CellScores]) -> Contrast:
    """The first cell against the second, by samples of their levels."""
    rng = np.random.default_rng(59)
    p = [rng.beta(c.unstable + 0.5, c.runs - c.unstable + 0.5, DRAWS) for c in cells]
    less_stable = float((p[0] > p[1]).mean())
    difference = mine - other
    if not np.isfinite(difference).all():
        return Contrast("undecided", None, less_stable)
    low, middle, high = (float(v) for v in np.quantile(difference, TAILS))
    above, below = float((difference > 0).mean()), float((difference < 0).mean())
    verdict = "undecided"
    if max(above, below) >= WINNER_PROBABILITY:
        verdict = "higher" if above > below else "lower"
    if float((np.abs(difference) < MARGIN).mean()) >= HOLDS_PROBABILITY:
        verdict = "no difference"
    return Contrast(verdict, (low, middle, high), less_stable)
