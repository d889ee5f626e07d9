"""Scores of a model from its answers: mean@k with an interval, and pass@k.

Answers to one prompt are correlated, so prompts are the unit: the interval is for the mean over all
prompts of the task, and more answers to the same few prompts do not make it narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from scalerl.runs.lines import Play

#: Default probability of the interval.
LEVEL = 0.9


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The score of one model on one task: what `evaluate` returns, one for each model."""

    model: str
    task: str
    n_prompts: int
    #: Answers to each prompt.
    k: int
    #: Mean over prompts of the share of right answers; None where too few could be scored.
    mean: float | None
    #: Interval of the mean, with probability `level`.
    interval: tuple[float, float] | None
    #: k' -> chance that at least one of k' answers is right, averaged over prompts.
    pass_at: dict[int, float]
    level: float = LEVEL
    stderr: float | None = None
    #: Optimiser steps behind the weights; None for a model that is no checkpoint of a run.
    step: int | None = None
    #: Share of the answers that were cut off before their end.
    truncated: float = 0.0
    #: Number of answers that could not be scored.
    unscored: int = 0
    #: Most frequent reason, if there is no mean.
    failed: str | None = None
    #: Turns, tools and environments, as means over the answers; None where all have one turn.
    play: Play | None = None
    #: Directory of the record.
    path: str = ""
    #: File with the answers.
    answers: str = ""

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        if self.play is None:
            del found["play"]
        return {
            **found,
            "interval": None if self.interval is None else list(self.interval),
            "pass_at": {str(k): rate for k, rate in self.pass_at.items()},
        }


def pass_at(n: int, right: int, k: int) -> float:
    """The probability that at least one of k answers is correct, from n answers of which `right`
    are: the share of subsets of k with a correct one, 1 - C(n - right, k) / C(n, k). This estimate
    is unbiased; 1 - (1 - right/n)^k is not.

    >>> pass_at(4, 2, 1), round(pass_at(4, 2, 2), 4), pass_at(4, 0, 4)
    (0.5, 0.8333, 0.0)
    """
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def sizes(k: int) -> list[int]:
    """1, 2, 4, … and k itself.

    >>> sizes(16), sizes(6)
    ([1, 2, 4, 8, 16], [1, 2, 4, 6])
    """
    return sorted({2**i for i in range(k.bit_length())} | {k})


def pass_at_all(outcomes: Sequence[tuple[int, int]], k: int) -> dict[int, float]:
    """pass@1, 2, 4, …, k, averaged over prompts, each given as (right, scored). A prompt with fewer
    scored answers than a size is left out of that size."""
    found = {}
    for size in sizes(k):
        rates = [pass_at(n, right, size) for right, n in outcomes if n >= size]
        if rates:
            found[size] = float(np.mean(rates))
    return found


def interval(mean: float, stderr: float | None, prompts: int, level: float) -> tuple[float, float]:
    """Wilson's interval for the mean over all possible prompts. It stays inside [0, 1] and does not
    shrink to a point if all prompts have the same result.

    Wilson's formula needs a number of coin tosses: as many as would have the same standard error.
    If the k answers to each prompt agree, that is one toss per prompt; if they differ, more.
    Without a standard error (one prompt, or equal results) there is one toss per prompt.

    >>> [round(v, 2) for v in interval(0.5, 0.05, 100, 0.9)]
    [0.42, 0.58]
    >>> [round(v, 2) for v in interval(1.0, 0.0, 10, 0.9)]
    [0.79, 1.0]
    """
    tosses = mean * (1.0 - mean) / stderr**2 if stderr else float(prompts)
    # Student's t: the standard error is itself estimated from this many prompts.
    z = float(stats.t.ppf((1.0 + level) / 2.0, max(prompts - 1, 1)))
    if not stderr:
        z = float(stats.norm.ppf((1.0 + level) / 2.0))
    middle = (mean + z * z / (2.0 * tosses)) / (1.0 + z * z / tosses)
    half = (
        z
        * math.sqrt(mean * (1.0 - mean) / tosses + (z / (2.0 * tosses)) ** 2)
        / (1.0 + z * z / tosses)
    )
    # Rounding must not push the mean out of its own interval.
    return max(min(middle - half, mean), 0.0), min(max(middle + half, mean), 1.0)
