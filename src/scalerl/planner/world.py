"""What is planned: the rates, the lengths, the pass rates and the environments of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scalerl.planner.lengths import AnswerLengths
from scalerl.planner.rates import Rates

if TYPE_CHECKING:
    from scalerl.recipe import Recipe


@dataclass(frozen=True)
class PassRates:
    """Pass rates of prompts, Beta-distributed: they decide which groups have variance."""

    #: Mean pass rate.
    mean: float = 0.5
    #: Spread: 0 if all prompts have the same rate, 1 if each is all right or all wrong.
    between: float = 0.5

    def draw(self, rng: np.random.Generator, prompts: int) -> npt.NDArray[np.float64]:
        """Pass rates of some prompts."""
        if self.between <= 1e-6:
            return np.full(prompts, self.mean)
        strength = 1 / self.between - 1
        if strength < 1e-3:
            return (rng.random(prompts) < self.mean).astype(np.float64)
        return rng.beta(self.mean * strength, (1 - self.mean) * strength, prompts)

    def kept(self, generations: int) -> float:
        """Share of groups with both right and wrong answers."""
        from math import lgamma

        if self.between <= 1e-6:
            return 1 - self.mean**generations - (1 - self.mean) ** generations
        s = max(1 / self.between - 1, 1e-6)
        a, b = self.mean * s, (1 - self.mean) * s

        def all_of(x: float, y: float) -> float:
            return float(
                np.exp(lgamma(x + generations) + lgamma(x + y) - lgamma(x)
                       - lgamma(x + y + generations))
            )  # fmt: skip

        return 1 - all_of(a, b) - all_of(b, a)

    @staticmethod
    def from_kept(kept: float, generations: int, mean: float = 0.5) -> PassRates:
        """Pass rates with which this share of groups has variance.

        >>> round(PassRates.from_kept(0.7, 16).kept(16), 3)
        0.7
        """
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            enough = PassRates(mean, middle).kept(generations) > kept
            low, high = (middle, high) if enough else (low, middle)
        return PassRates(mean, (low + high) / 2)


@dataclass(frozen=True)
class EnvironmentModel:
    """Episodes of several turns, with a reply of an environment after each but the last."""

    #: Turns of an episode.
    turns: int = 1
    #: Mean seconds of a reply.
    seconds: float = 0.0
    #: Coefficient of variation of these seconds.
    spread: float = 1.0
    #: Tokens of a reply.
    tokens: int = 0

    def limits(self, recipe: Recipe) -> tuple[int, tuple[int, int] | None]:
        """The most tokens that an episode may sample, and its thinking budgets: [length] limits
        each turn, and budgets of single turns are not modelled."""
        if self.turns == 1:
            return recipe.length.longest, recipe.length.thinking_budgets
        turns = max(self.turns, recipe.environment.turns)
        most = turns * recipe.length.longest
        return min(most, recipe.environment.episode_tokens or most), None


@dataclass(frozen=True)
class RunPart:
    """A part of a run: while a model learns, other groups are kept and answers change."""

    pass_rates: PassRates
    lengths: AnswerLengths


@dataclass(frozen=True)
class PlannedWorld:
    """Everything that a simulation takes besides the recipe."""

    rates: Rates
    lengths: AnswerLengths
    #: Tokens of a prompt.
    prompt_tokens: int = 256
    pass_rates: PassRates = PassRates()
    environment: EnvironmentModel = EnvironmentModel()
    #: Mean seconds of the check of one answer.
    check_seconds: float = 0.0
    #: Devices of one generator.
    devices_per_generator: int = 1
    seed: int = 0
    #: Parts of a run that are simulated each for itself, with pass rates and lengths of their own:
    #: the slower side may be another one in each, so that their mean would be too fast.
    parts: tuple[RunPart, ...] = ()
    #: Optimiser steps of each part where the parts of one run follow each other; 0: each part is
    #: simulated for itself.
    part_steps: int = 0

    def part_at(self, version: int) -> RunPart:
        """Pass rates and lengths of answers that are begun at a version."""
        if not self.part_steps:
            return RunPart(self.pass_rates, self.lengths)
        return self.parts[min(version // self.part_steps, len(self.parts) - 1)]

    def of_part(self, part: RunPart) -> PlannedWorld:
        """The world of one part."""
        return replace(self, pass_rates=part.pass_rates, lengths=part.lengths, parts=())
