"""The learning rate of each optimiser step: linear warm-up, a constant phase, then decay.

      lr  |      ____________
          |     /            \\            linear, or half a cosine
          |    /              \\
    floor |   /                \\________
          +--|--|-----------|---|------- optimiser steps
             0  warmup      decay_start  decay_start + decay_steps
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scalerl.recipe.sections_runtime import OptimiserSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """The fall of the rate after its constant phase."""

    shape: Literal["linear", "cosine"]
    #: Steps before the rate begins to fall.
    start: int
    #: Steps over which it falls.
    steps: int
    #: Rate at the end, as a share of the peak.
    min_lr_ratio: float

    def left(self, steps: int) -> float:
        """The share of the peak that is left after `steps` steps."""
        done = min(max((steps - self.start) / self.steps, 0.0), 1.0)
        left = 1.0 - done if self.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.min_lr_ratio + (1.0 - self.min_lr_ratio) * left


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """The learning rate as a function of the steps already taken. It has no state, so a run that is
    resumed from a checkpoint continues it exactly.

    >>> settings = OptimiserSection(
    ...     lr=1.0, warmup_steps=2, decay="linear", decay_start=2, decay_steps=4)
    >>> rate = LearningRate.from_recipe(settings)
    >>> [rate.after(steps) for steps in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    #: Rate between warm-up and decay.
    peak: float
    #: Steps over which the rate rises linearly; the first step has 1 / warmup_steps of the peak.
    warmup_steps: int
    #: None: the rate stays constant.
    decay: Decay | None

    @staticmethod
    def from_recipe(settings: OptimiserSection) -> LearningRate:
        """The schedule of a recipe with its decay fixed (`Recipe.with_decay_fixed`)."""
        decay, shape = None, settings.decay
        if shape != "constant":
            start, steps = settings.decay_start, settings.decay_steps
            assert start is not None and steps is not None, "with_decay_fixed sets them"
            decay = Decay(shape=shape, start=start, steps=steps, min_lr_ratio=settings.min_lr_ratio)
        return LearningRate(peak=settings.lr, warmup_steps=settings.warmup_steps, decay=decay)

    def after(self, steps: int) -> float:
        """The rate of the next step after `steps` steps."""
        # steps + 1: the first step is made at 1 / warmup_steps of the peak, and not at 0.
        share = min((steps + 1) / max(self.warmup_steps, 1), 1.0)
        return self.peak * share * (1.0 if self.decay is None else self.decay.left(steps))
