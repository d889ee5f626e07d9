"""Lengths of answers: a mean, a spread, how alike those of one prompt are, and a limit.

A raw length is log-normal, with a share `alike` of the variance of its logarithm between prompts
(the answers to one prompt are alike: .6 to .8 in public measurements). A thought that reaches its
budget is interrupted and an answer follows; without interruption the length is cut at the limit.

>>> lengths = AnswerLengths(mean=6000, spread=0.6, alike=0.6, limit=14336)
>>> drawn = lengths.draw(np.random.default_rng(0), prompts=2000, answers=8)
>>> bool(abs(drawn.mean() / 6000 - 1) < 0.05), int(drawn.max()) <= 14336
(True, True)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError

Array = npt.NDArray[np.float64]
#: Standard normal numbers that stand for the distribution when its raw mean is solved for.
GRID = 4001


@dataclass(frozen=True)
class AnswerLengths:
    """The distribution of the lengths of answers, in tokens."""

    #: Mean length as it is written, after interruption or truncation.
    mean: float
    #: Coefficient of variation of the raw lengths: standard deviation over mean.
    spread: float
    #: Share of the variance that is between prompts, 0 to 1.
    alike: float
    #: Most tokens of an answer.
    limit: int
    #: Smallest and largest thinking budget; None without interruption.
    budgets: tuple[int, int] | None = None
    #: Mean length of groups that are trained on, over the mean of all.
    kept_ratio: float = 1.0
    #: Share of the rollouts of such a group that are trained on: those that were cut off are not.
    trained: float = 1.0
    #: Growth of the mean per optimiser step, as a share of the mean at the first step.
    growth: float = 0.0
    #: Most tokens of an answer where pass rates were measured, if limits were wider there.
    measured_limit: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.mean <= self.limit:
            raise InputError(
                f"a mean length of {self.mean:g} tokens with a limit of {self.limit} (length): "
                "give a mean above 0 and not above the limit"
            )
        if not 0 <= self.alike <= 1:
            raise InputError(f"alike = {self.alike:g}: give a share from 0 to 1")
        if self.spread < 0 or self.spread > 3:
            raise InputError(f"a spread of {self.spread:g}: give 0 to 3 (0.6 is usual)")

    @cached_property
    def _raw_mean(self) -> float:
        """Mean of the raw lengths, so that the mean of what is written is `mean`."""
        return _solve(self.mean, self.spread, self.limit, self.budgets)

    def draw(
        self, rng: np.random.Generator, prompts: int, answers: int, step: int = 0
    ) -> npt.NDArray[np.int64]:
        """Lengths of `answers` answers to each prompt, (prompts, answers)."""
        raw = self._draw_raw(rng, prompts, answers, step)
        return _whole(_written(raw, self._draw_budgets(rng, raw), self.limit, self.budgets))

    def draw_scaled(
        self, rng: np.random.Generator, answers: int, factor: float, step: int = 0
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Lengths of the answers to one prompt, which are longer than the mean by `factor` where
        they were measured; and which of them the limits of now cut and those of then did not."""
        then = self.measured_limit
        if then is None:
            lengths = self.draw(rng, 1, answers, step)[0]
            if factor != 1.0:
                lengths = np.minimum(_whole(lengths * factor), self.limit)
            return lengths, np.zeros(answers, np.bool_)
        measured = factor * np.minimum(self._draw_raw(rng, 1, answers, step)[0], then)
        written = _written(measured, self._draw_budgets(rng, measured), self.limit, self.budgets)
        return _whole(written), (written < measured) & (measured < then)

    def _draw_raw(
        self, rng: np.random.Generator, prompts: int, answers: int, step: int
    ) -> npt.NDArray[np.float64]:
        z = np.sqrt(self.alike) * rng.standard_normal((prompts, 1))
        z = z + np.sqrt(1 - self.alike) * rng.standard_normal((prompts, answers))
        return _raw(z, self._raw_mean * (1 + self.growth * step), self.spread)

    def _draw_budgets(self, rng: np.random.Generator, raw: Array) -> Array:
        """Where in the range of budgets that of each answer is, 0 to 1."""
        return rng.random(raw.shape) if self.budgets else np.zeros(raw.shape)

    def quantile(self, share: float) -> float:
        """Quantile of the lengths as they are written."""
        from statistics import NormalDist

        z = np.array(NormalDist().inv_cdf(share))
        middle = np.array(0.5)
        raw = _raw(z, self._raw_mean, self.spread)
        return float(_written(raw, middle, self.limit, self.budgets))

    @property
    def in_progress(self) -> float:
        """Mean tokens of a rollout that is being written, at a random moment: long ones are there
        longer."""
        return self.mean * (1 + self.spread**2) / 2

    def cut(self, limit: int, budgets: tuple[int, int] | None) -> AnswerLengths:
        """The same answers under other limits; longer limits than before change nothing.

        An answer that the new limits cut, and the old ones did not, is taken to be wrong: it ends
        before its result. One that was cut already is as often right as it was."""
        from scalerl.planner.normal import grid

        if limit >= self.limit:
            return self
        raw = _raw(grid(GRID), self._raw_mean, self.spread)
        u = np.linspace(0, 1, 7)[:, None]
        mean = float(_written(np.minimum(raw, self.limit), u, limit, budgets).mean())
        then = self.measured_limit or self.limit
        return replace(self, mean=mean, limit=limit, budgets=budgets, measured_limit=then)

    def scaled(self, factor: float) -> AnswerLengths:
        """The same shape with another mean; the limit stays."""
        return replace(self, mean=min(self.mean * factor, 0.98 * self.limit))


def _whole(lengths: Array) -> npt.NDArray[np.int64]:
    return np.maximum(np.rint(lengths), 1).astype(np.int64)


def _raw(z: Array, mean: float, spread: float) -> Array:
    sigma = np.sqrt(np.log1p(spread**2))
    return np.asarray(mean * np.exp(sigma * z - sigma**2 / 2))


def _written(raw: Array, u: Array, limit: int, budgets: tuple[int, int] | None) -> Array:
    """Tokens that are written of an answer of this raw length; `u` draws its budget."""
    if budgets is None:
        return np.minimum(raw, limit)
    low, high = budgets
    budget = low + u * (high - low)
    # An interrupted thought is followed by an answer, of half the tokens that it may have at most.
    answer = (limit - high) / 2
    return np.minimum(np.where(raw > budget, budget + answer, raw), limit)


@lru_cache(maxsize=256)
def _solve(mean: float, spread: float, limit: int, budgets: tuple[int, int] | None) -> float:
    from scalerl.planner.normal import grid

    z = grid(GRID)
    u = np.linspace(0, 1, 7)[:, None]

    def written(raw_mean: float) -> float:
        return float(_written(_raw(z, raw_mean, spread), u, limit, budgets).mean())

    low, high = mean / 8, mean
    while written(high) < mean:
        high *= 2
        if high > 1e4 * mean:
            raise InputError(
                f"a mean length of {mean:g} tokens is not possible with this limit ({limit} tokens "
                f"at most) and a spread of {spread:g}: lower --mean-length or raise [length]"
            )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if written(middle) < mean else (low, middle)
    return (low + high) / 2
