"""How much more compute would settle a question, by simulation.

A trial is one possible future of the run, drawn from its own forecast if the run stays healthy. It
is followed to the largest of MULTIPLES, and the run is fitted again with the part of it up to one
multiple after another: where is the question settled first?

    trial    settled at first, in multiples of the compute so far
    0        2
    1        1.4
    2        5.7                        half of the trials: 2 times the compute so far
    ...                                 80 % of them: 1.4 to 5.7 times

Two things keep the answer from being luck. A trial is one path with one set of random numbers for
all multiples, so that what is settled at one multiple stays settled, nearly always, at the next.
And seeds are fixed numbers, not made from the data: the same curve in another unit of compute, or
written with fewer digits, has the same futures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.curves.beliefs import SigmoidBelief
from scalerl.curves.fit import MIN_POINTS, fit
from scalerl.curves.posterior import DRAWS
from scalerl.curves.prediction import tails
from scalerl.curves.result import Fit
from scalerl.curves.window import Window
from scalerl.runs.record import Run

Array = npt.NDArray[np.float64]

#: Multiples of the compute so far at which a trial is fitted again: 1.2, then factors of the square
#: root of 2 up to 16. The share of settled trials is interpolated in between.
MULTIPLES = (2.0**0.25, *(2.0 ** (k / 2.0) for k in range(1, 9)))
#: Trials. Of 40 the median is known to about 10 %, which takes 0.7 s a run.
TRIALS = 40
#: Share of the trials that the interval of the answer holds. An interval of 90 % would end at the
#: second lowest and the second highest of 40, which are luck.
LEVEL = 0.8
#: Posterior draws of a trial's fit: enough for one interval, of which many are looked at.
TRIAL_DRAWS = 1000
#: Evaluations of a trial, at most: those of a run that was evaluated more often are further apart.
MAX_NEW = 3000
#: Evaluations up to the first multiple, at least.
MIN_NEW = 2
#: A trial's level is drawn at this many knots, equally far apart in ln C, and interpolated.
KNOTS = 64
#: Seeds of the trials of one run begin this far after those of another.
SEED_STEP = 1000


@dataclass(frozen=True, slots=True)
class ComputeNeeded:
    """The compute that would settle a question in half of the simulated continuations of a run, and
    how widely the continuations differ.

    >>> from scalerl import ComputeNeeded
    >>> print(ComputeNeeded("identify the ceiling", 24_000.0, 2.0, (1.4, 5.7), settled=0.95))
    going on to 24,000, 2 times the compute so far (80 % of simulated continuations: 1.4 to
    5.7 times), would identify the ceiling
    """

    question: str
    #: None: in fewer than half of the continuations the largest multiple tried is enough.
    compute: float | None
    #: `compute` over the compute so far, to two digits.
    multiple: float | None
    #: The multiples that hold LEVEL of the continuations; None: above the largest multiple tried.
    interval: tuple[float | None, float | None]
    #: Share of the continuations in which the largest multiple tried is enough.
    settled: float

    @property
    def interval_words(self) -> str:
        """The interval in words.

        >>> ComputeNeeded("decide", 24.0, 2.0, (1.4, None), settled=0.85).interval_words
        '80 % of simulated continuations: 1.4 to more than 16 times'
        """
        low, high = (_times(v) for v in self.interval)
        return f"{100 * LEVEL:.0f} % of simulated continuations: {low} to {high} times"

    def __str__(self) -> str:
        if self.compute is None:
            return (
                f"more than {MULTIPLES[-1]:g} times the compute so far would be needed to "
                f"{self.question} (less is enough in {100 * self.settled:.0f} % of simulated "
                "continuations)"
            )
        return (
            f"going on to {_amount(self.compute)}, {self.multiple:g} times the compute so far "
            f"({self.interval_words}), would {self.question}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "compute": self.compute,
            "multiple": self.multiple,
            "interval": list(self.interval),
            "settled": self.settled,
        }


def _amount(compute: float) -> str:
    """Up to a million in full; FLOPs and tokens by their first digits.

    >>> _amount(3_900.0), _amount(2_236_289_651_712.0), _amount(0.5)
    ('3,900', '2.24e+12', '0.5')
    """
    return f"{compute:,.0f}" if 100.0 <= compute < 1e6 else f"{compute:.3g}"


def _times(multiple: float | None) -> str:
    return f"more than {MULTIPLES[-1]:g}" if multiple is None else f"{multiple:g}"


@dataclass(frozen=True, slots=True, eq=False)
class Futures:
    """Possible futures of a run that stays healthy, evaluated as often as it has been lately."""

    fit: Fit
    #: Compute of the new evaluations, in units of the compute so far.
    at: Array
    #: (TRIALS, len(at)) scores of the new evaluations.
    score: Array
    #: Seed of the first trial's fit.
    seed: int

    @staticmethod
    def draw(f: Fit, number: int = 0) -> Futures:
        """TRIALS futures. Runs that are simulated together have different numbers."""
        seed = (number + 1) * SEED_STEP
        # Drawn anew with a fixed seed: that of `f` changes with every digit of the scores.
        f = _fit(f, f.points, seed - 1, DRAWS)
        belief = f.belief.healthy() if isinstance(f.belief, SigmoidBelief) else f.belief
        # The first knot is just after the end of the window, where the future begins.
        knots = np.geomspace(1.0 + 1e-9, MULTIPLES[-1], KNOTS)
        levels, noise = belief.levels(knots * f.end), belief.noise()
        at = _evaluations(f.points)
        score = np.empty((TRIALS, len(at)))
        for trial in range(TRIALS):
            # A generator for each trial: a trial keeps its noise if the others change in length.
            z = np.random.default_rng((seed, trial)).standard_normal(len(at))
            row = trial % len(levels)
            score[trial] = np.interp(np.log(at), np.log(knots), levels[row]) + noise[row] * z
        return Futures(f, at, np.clip(score, 0.0, 1.0), seed)

    def fitted(self, trial: int, multiple: float) -> Fit:
        """The run fitted again with a trial's evaluations up to this multiple of its compute."""
        new = int(np.searchsorted(self.at, multiple * (1.0 + 1e-9)))
        points = self.fit.points
        n_eval = points.n_eval
        if n_eval is not None:
            n_eval = np.concatenate([n_eval, np.full(new, np.median(n_eval))])
        longer = points.replace(
            compute=np.concatenate([points.compute, self.at[:new] * self.fit.end]),
            score=np.concatenate([points.score, self.score[trial, :new]]),
            n_eval=n_eval,
            signs={},  # those of the future are not known
        )
        return _fit(self.fit, longer, self.seed + trial, TRIAL_DRAWS)


def _fit(f: Fit, points: Run, seed: int, draws: int) -> Fit:
    """These points fitted as `f` was."""
    window = Window(points, points, f.law, f.method, f.level, f.r0, draws=draws, fixed_seed=seed)
    return f.law.methods[f.method](window)


def _evaluations(points: Run) -> Array:
    """Compute of the evaluations to come, in units of the compute so far: as far apart as the last
    quarter of the points, within MIN_NEW and MAX_NEW."""
    recent = max(len(points) // 4, 2)
    end = points.compute[-1]
    step = float((end - points.compute[-recent]) / (recent - 1) / end)
    ahead = MULTIPLES[-1] - 1.0
    step = float(np.clip(step, ahead / MAX_NEW, (MULTIPLES[0] - 1.0) / MIN_NEW))
    return np.asarray(1.0 + step * np.arange(1, int(ahead / step + 1e-9) + 1))


def to_identify(f: Fit) -> ComputeNeeded:
    """The compute that would identify the ceiling, if the run stays healthy."""
    futures = Futures.draw(f)

    def settled(trial: int, multiple: float) -> bool:
        return futures.fitted(trial, multiple).identified

    return search("identify the ceiling", f.end, settled)


def search(
    question: str, spent: float, settled: Callable[[int, float], bool], trials: int = TRIALS
) -> ComputeNeeded:
    """Where `settled(trial, multiple)` first holds, over all trials; each is bisected."""
    first = [
        bisect_left(range(len(MULTIPLES)), True, key=lambda k: settled(i, MULTIPLES[k]))
        for i in range(trials)
    ]
    low, high = tails(LEVEL)
    multiple = enough(first, 0.5)
    return ComputeNeeded(
        question,
        compute=None if multiple is None else multiple * spent,
        multiple=multiple,
        interval=(enough(first, low), enough(first, high)),
        settled=float(np.mean(np.asarray(first) < len(MULTIPLES))),
    )


def enough(first: Sequence[int], share: float) -> float | None:
    """The multiple, to two digits, at which this share of the trials is settled; `first` has the
    index of the first of MULTIPLES at which each is. Interpolated in ln C from 1, where none is.
    None: above the largest.

    >>> enough([2, 2, 4, 9], 0.25), enough([2, 2, 4, 9], 0.5), enough([2, 2, 4, 9], 0.9)
    (1.7, 2.0, None)
    """
    count = np.bincount(first, minlength=len(MULTIPLES) + 1)[:-1]
    settled = np.concatenate([[0.0], np.cumsum(count) / len(first)])
    if settled[-1] < share:
        return None
    k = int(np.argmax(settled >= share))
    part = (share - settled[k - 1]) / (settled[k] - settled[k - 1])
    log = np.log([1.0, *MULTIPLES])
    return float(f"{np.exp(log[k - 1] + part * (log[k] - log[k - 1])):.2g}")


@dataclass(frozen=True, slots=True)
class OtherWindow:
    """The ceiling that another window of the same run gives."""

    window: tuple[float, float]
    a: float
    interval: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        return {"window": list(self.window), "A": self.a, "interval": list(self.interval)}


def sensitivity(f: Fit) -> list[OtherWindow]:
    """The ceiling when the first or the last 10 % or 25 % of the points are left out; nothing for a
    law that has none."""
    if "A" not in f.params:
        return []
    points = f.points
    found = []
    for first, last in ((0.1, 0.0), (0.25, 0.0), (0.0, 0.1), (0.0, 0.25)):
        lo = points.compute[int(first * len(points))]
        hi = points.compute[len(points) - 1 - int(last * len(points))]
        if len(points.window(lo, hi)) <= MIN_POINTS:
            continue
        again = fit(points, law=f.law, r0=f.r0, level=f.level, lo=float(lo), hi=float(hi))
        found.append(OtherWindow(again.window, again.params["A"], again.interval("A")))
    return found
