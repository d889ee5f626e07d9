"""The learning rate of each optimiser step: linear warm-up, a constant part, then decay.

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

Decay = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """The rate as a function of the steps already taken. It has no state, so a run that goes on
    from a checkpoint continues it exactly.

    >>> rate = LearningRate(peak=1.0, warmup_steps=2, decay="linear", decay_start=2, decay_steps=4)
    >>> [rate.after(steps) for steps in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    #: Rate between warm-up and decay.
    peak: float
    #: Steps over which the rate rises linearly; the first step has 1 / warmup_steps of the peak.
    warmup_steps: int = 0
    decay: Decay = "constant"
    #: Steps before the rate begins to fall.
    decay_start: int = 0
    #: Steps over which it falls; at least 1 where there is decay.
    decay_steps: int = 0
    #: Rate at the end of the decay, as a share of the peak.
    min_lr_ratio: float = 0.0

    def after(self, steps: int) -> float:
        """The rate of the step that follows `steps` steps."""
        share = min((steps + 1) / max(self.warmup_steps, 1), 1.0)
        return self.peak * share * self._left(steps)

    def _left(self, steps: int) -> float:
        """Share of the peak that the decay leaves."""
        if self.decay == "constant":
            return 1.0
        done = min(max((steps - self.decay_start) / self.decay_steps, 0.0), 1.0)
        left = 1.0 - done if self.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.min_lr_ratio + (1.0 - self.min_lr_ratio) * left
