"""How much more compute would answer a question, by simulation.

A trial is one possible continuation of the run, drawn from its own forecast under the assumption
that the run stays healthy. It is simulated up to the largest of MULTIPLES, and the run is fitted
again with the part of it up to one multiple after another: where is the question answered first?

    trial    first answered at, in multiples of the compute so far
    0        2
    1        1.4
    2        5.7                        half of the trials: 2 times the compute so far
    ...                                 80 % of them: 1.4 to 5.7 times

Two things keep luck out of the answer. A trial is one path with one set of random numbers for all
multiples, so a question answered at one multiple nearly always stays answered at the next. And
seeds are fixed numbers, not derived from the data: the same curve in another unit of compute, or
written with fewer digits, has the same continuations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scalerl.curves.formula import Array
from scalerl.curves.posterior import DRAWS
from scalerl.curves.prediction import SigmoidPredictive, tails
from scalerl.curves.result import Fit, Window
from scalerl.runs.record import Run

#: Multiples of the compute so far at which a trial is fitted again: 1.2, then factors of the square
#: root of 2 up to 16. The share of answered trials is interpolated in between.
MULTIPLES = (2.0**0.25, *(2.0 ** (k / 2.0) for k in range(1, 9)))
#: Number of trials. With 40 the median is known to about 10 %, in 0.7 s a run.
TRIALS = 40
#: Share of the trials that the interval of the answer holds. An interval of 90 % would end at the
#: second lowest and the second highest of 40, which are luck.
INTERVAL_LEVEL = 0.8
#: Posterior draws of a trial's fit: fewer than usual, since only one interval of each is used.
TRIAL_DRAWS = 1000
#: Most evaluations of a trial. Runs that were evaluated more often get sparser ones, for speed.
MAX_NEW = 3000
#: Fewest evaluations up to the first multiple.
MIN_NEW = 2
#: Knots, evenly spaced in ln C, at which a trial's pass rate is drawn; linear in between.
KNOTS = 64
#: Offset between the seeds of runs that are simulated together, so that their trials differ.
SEED_STEP = 1000


@dataclass(frozen=True, slots=True)
class ComputeNeeded:
    """The compute that would answer a question in half of the simulated continuations of a run, and
    how widely the continuations differ.

    >>> from scalerl import ComputeNeeded
    >>> print(ComputeNeeded("identify the ceiling", 24_000.0, 2.0, (1.4, 5.7), settled=0.95))
    going on to 24,000, 2 times the compute so far (80 % of simulated continuations: 1.4 to
    5.7 times), would identify the ceiling
    """

    #: What more compute would do, as a verb phrase: "identify the ceiling".
    question: str
    #: Compute in the run's own unit; None where fewer than half of the continuations are answered
    #: at the largest multiple tried.
    compute: float | None
    #: `compute` over the compute so far, to two digits.
    multiple: float | None
    #: Multiples between which INTERVAL_LEVEL of the continuations lie; None: above the largest.
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
        return f"{100 * INTERVAL_LEVEL:.0f} % of simulated continuations: {low} to {high} times"

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
        return asdict(self) | {"interval": list(self.interval)}


def _amount(compute: float) -> str:
    """Compute as text: up to a million in full, larger amounts (FLOPs, tokens) to three digits.

    >>> _amount(3_900.0), _amount(2_236_289_651_712.0), _amount(0.5)
    ('3,900', '2.24e+12', '0.5')
    """
    return f"{compute:,.0f}" if 100.0 <= compute < 1e6 else f"{compute:.3g}"


def _times(multiple: float | None) -> str:
    return f"more than {MULTIPLES[-1]:g}" if multiple is None else f"{multiple:g}"


@dataclass(frozen=True, slots=True, eq=False)
class Continuations:
    """Simulated continuations of a healthy run, with evaluations as frequent as its latest ones."""

    fit: Fit
    #: Compute of the new evaluations, in units of the compute so far.
    at: Array
    #: (trials, len(at)) scores of the new evaluations.
    score: Array
    #: Seed of the first trial's fit.
    seed: int

    @staticmethod
    def simulate(f: Fit) -> Continuations:
        """TRIALS continuations of a run."""
        return Continuations.from_draws(with_fixed_seed(f), range(TRIALS))

    @staticmethod
    def from_draws(f: Fit, draws: Sequence[int], number: int = 0) -> Continuations:
        """One continuation of a fit `with_fixed_seed` for each of these posterior draws; runs that
        are simulated together have different numbers."""
        seed = (number + 1) * SEED_STEP
        predictive = f.predictive
        if isinstance(predictive, SigmoidPredictive):
            predictive = predictive.healthy()
        # The first knot is just after the end of the window, where the continuation begins.
        knots = np.geomspace(1.0 + 1e-9, MULTIPLES[-1], KNOTS)
        levels, noise = predictive.levels(knots * f.end), predictive.noise()
        at = _new_evaluations(f.points)
        score = np.empty((len(draws), len(at)))
        for trial, chosen in enumerate(draws):
            # One generator per trial: a trial keeps its noise if the others change in length.
            z = np.random.default_rng((seed, trial)).standard_normal(len(at))
            draw = chosen % len(levels)
            score[trial] = np.interp(np.log(at), np.log(knots), levels[draw]) + noise[draw] * z
        return Continuations(f, at, np.clip(score, 0.0, 1.0), seed)

    def refit(self, trial: int, multiple: float) -> Fit:
        """The run fitted again with a trial's evaluations up to this multiple of its compute."""
        # The tolerance includes an evaluation exactly at the multiple, whatever its last digit.
        new = int(np.searchsorted(self.at, multiple * (1.0 + 1e-9)))
        points = self.fit.points
        n_eval = points.n_eval
        if n_eval is not None:
            n_eval = np.concatenate([n_eval, np.full(new, np.median(n_eval))])
        longer = points.replace(
            compute=np.concatenate([points.compute, self.at[:new] * self.fit.end]),
            score=np.concatenate([points.score, self.score[trial, :new]]),
            n_eval=n_eval,
            signs={},  # side metrics of the future are not known
        )
        return _fit(self.fit, longer, self.seed + trial, TRIAL_DRAWS)


def with_fixed_seed(f: Fit, number: int = 0) -> Fit:
    """The run fitted again with a fixed seed: that of `f` changes with every digit of the scores.
    Runs that are simulated together have different numbers."""
    return _fit(f, f.points, (number + 1) * SEED_STEP - 1, DRAWS)


def _fit(f: Fit, points: Run, seed: int, draws: int) -> Fit:
    """These points fitted with the law and method of `f`."""
    window = Window(points, points, f.law, f.method, f.level, f.r0, draws=draws, fixed_seed=seed)
    return f.law.methods[f.method](window)


def _new_evaluations(points: Run) -> Array:
    """Compute of the new evaluations, in units of the compute so far: spaced as the last quarter of
    the points, within MIN_NEW and MAX_NEW."""
    recent = max(len(points) // 4, 2)
    end = points.compute[-1]
    step = float((end - points.compute[-recent]) / (recent - 1) / end)
    ahead = MULTIPLES[-1] - 1.0
    step = float(np.clip(step, ahead / MAX_NEW, (MULTIPLES[0] - 1.0) / MIN_NEW))
    return np.asarray(1.0 + step * np.arange(1, int(ahead / step + 1e-9) + 1))


def compute_to_identify(f: Fit) -> ComputeNeeded:
    """The compute that would identify the ceiling, if the run stays healthy."""
    continuations = Continuations.simulate(f)

    def answered(trial: int, multiple: float) -> bool:
        return continuations.refit(trial, multiple).identified

    return search_compute("identify the ceiling", f.end, answered)


def search_compute(
    question: str, spent: float, answered: Callable[[int, float], bool], trials: int = TRIALS
) -> ComputeNeeded:
    """The multiple at which `answered(trial, multiple)` first holds, over all trials."""
    # Bisection is valid because a trial, once answered, nearly always stays answered.
    first = [
        bisect_left(range(len(MULTIPLES)), True, key=lambda k: answered(i, MULTIPLES[k]))
        for i in range(trials)
    ]
    low, high = tails(INTERVAL_LEVEL)
    multiple = multiple_for_share(first, 0.5)
    return ComputeNeeded(
        question,
        compute=None if multiple is None else multiple * spent,
        multiple=multiple,
        interval=(multiple_for_share(first, low), multiple_for_share(first, high)),
        settled=float(np.mean(np.asarray(first) < len(MULTIPLES))),
    )


def multiple_for_share(first: Sequence[int], share: float) -> float | None:
    """The multiple, to two digits, at which this share of the trials is answered; None if it is
    above the largest. `first` has the index of the first of MULTIPLES at which each trial is
    answered. Interpolated in ln C from 1, where none is.

    >>> [multiple_for_share([2, 2, 4, 9], share) for share in (0.25, 0.5, 0.9)]
    [1.7, 2.0, None]
    """
    count = np.bincount(first, minlength=len(MULTIPLES) + 1)[:-1]
    answered = np.concatenate([[0.0], np.cumsum(count) / len(first)])
    if answered[-1] < share:
        return None
    k = int(np.argmax(answered >= share))
    part = (share - answered[k - 1]) / (answered[k] - answered[k - 1])
    log = np.log([1.0, *MULTIPLES])
    return float(f"{np.exp(log[k - 1] + part * (log[k] - log[k - 1])):.2g}")
