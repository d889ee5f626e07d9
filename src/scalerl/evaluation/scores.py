"""What the answers to some prompts say of a model: mean@k with its interval, and pass@k.

Answers to one prompt are alike, so prompts are what is counted: the interval is about the mean over
all prompts that the task might have asked, and more answers to the same few do not make it narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

#: Of the interval.
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
    #: Of that mean, at `level`.
    interval: tuple[float, float] | None
    #: k' -> chance that at least one of k' answers is right, averaged over prompts.
    pass_at: dict[int, float]
    level: float = LEVEL
    stderr: float | None = None
    #: Optimiser steps behind the weights; None for a model that is no checkpoint of a run.
    step: int | None = None
    #: Shares of the answers.
    truncated: float = 0.0
    #: Answers that could not be scored, and the commonest reason where there is no mean.
    unscored: int = 0
    failed: str | None = None
    #: Directory of its record, and file of its answers.
    path: str = ""
    answers: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "task": self.task,
            "n_prompts": self.n_prompts,
            "k": self.k,
            "mean": self.mean,
            "interval": None if self.interval is None else list(self.interval),
            "pass_at": {str(k): rate for k, rate in self.pass_at.items()},
            "level": self.level,
            "stderr": self.stderr,
            "step": self.step,
            "truncated": self.truncated,
            "unscored": self.unscored,
            "failed": self.failed,
            "path": self.path,
            "answers": self.answers,
        }


def pass_at(n: int, right: int, k: int) -> float:
    """The chance that at least one of k answers is right, from n answers of which some are: the
    share of the subsets of k that hold a right one, 1 - C(n - right, k) / C(n, k). Its mean is the
    true chance, which that of 1 - (1 - right/n)^k is not.

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
    """pass@1, 2, 4, …, k, averaged over prompts, each (right, scored). Prompts of which fewer
    answers were scored than asked for say nothing of the largest sizes, and are left out there."""
    found = {}
    for size in sizes(k):
        rates = [pass_at(n, right, size) for right, n in outcomes if n >= size]
        if rates:
            found[size] = float(np.mean(rates))
    return found


def interval(mean: float, stderr: float | None, prompts: int, level: float) -> tuple[float, float]:
    """Where the mean over all possible prompts lies: Wilson's interval, which stays inside [0, 1]
    and does not shrink to a point where every prompt was answered alike.

    It takes as many coin tosses as would have the same standard error: independent prompts of 0.5
    each, and k answers that all agree, give one toss a prompt; answers that differ give more. No
    standard error (one prompt, or all alike) counts one toss a prompt.

    >>> [round(v, 2) for v in interval(0.5, 0.05, 100, 0.9)]
    [0.42, 0.58]
    >>> [round(v, 2) for v in interval(1.0, 0.0, 10, 0.9)]
    [0.79, 1.0]
    """
    tosses = mean * (1.0 - mean) / stderr**2 if stderr else float(prompts)
    # The standard error is itself an estimate, from so many prompts.
    z = float(stats.t.ppf((1.0 + level) / 2.0, max(prompts - 1, 1)))
    if not stderr:
        z = float(stats.norm.ppf((1.0 + level) / 2.0))
    middle = (mean + z * z / (2.0 * tosses)) / (1.0 + z * z / tosses)
    half = (
        z
        * math.sqrt(mean * (1.0 - mean) / tosses + (z / (2.0 * tosses)) ** 2)
        / (1.0 + z * z / tosses)
    )
    # The mean is inside also where rounding says otherwise.
    return max(min(middle - half, mean), 0.0), min(max(middle + half, mean), 1.0)
