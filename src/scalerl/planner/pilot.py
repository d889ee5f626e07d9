"""The pilot: how long a run must be until its ceiling can be read.

From a curve that is believed beforehand (the paper's, an earlier run's), pilots of several lengths
are simulated with the noise of their validations and fitted as a real run would be. R_0 is not
given to the fit; the noise of two validations is independent, so real pilots need rather more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.planner.outlook import LearningCurve

#: Lengths of a pilot, in multiples of the steps to C_mid.
MULTIPLES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
#: Pilots of each length and design: a share is known to .1.
PILOTS = 16
#: Movement of the pass rate from one validation to the next that no sample explains. The paper's
#: runs scatter by about .004 about their curve with 16,000 answers, whose own error is .003.
WOBBLE = 0.003
#: Validations that a pilot has at least and at most.
FEWEST = 6
MOST = 400


@dataclass(frozen=True)
class ValidationDesign:
    """How often and on how much a pilot is validated."""

    every: int
    prompts: int
    answers: int

    def noise(self, pass_rate: float) -> float:
        """Standard deviation of one validation."""
        sampling = pass_rate * (1 - pass_rate) / (self.prompts * self.answers)
        return float(np.sqrt(sampling + WOBBLE**2))

    @property
    def text(self) -> str:
        return f"{self.prompts} x {self.answers} every {self.every} steps"


@dataclass(frozen=True)
class PilotRow:
    """Share of pilots of each length with an identified ceiling, for one design."""

    design: ValidationDesign
    #: Optimiser steps of each length.
    steps: tuple[int, ...]
    identified: tuple[float, ...]
    #: Seconds of all devices that validations take, per optimiser step.
    seconds_per_step: float | None = None

    def enough(self, share: float = 0.8) -> int | None:
        """The shortest length after which this share of pilots has an identified ceiling."""
        found = [s for s, p in zip(self.steps, self.identified, strict=True) if p >= share]
        return found[0] if found else None


@dataclass(frozen=True)
class PilotPlan:
    """Pilots of several designs."""

    rows: tuple[PilotRow, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "multiples_of_mid": list(MULTIPLES),
            "designs": [
                {
                    "every": row.design.every,
                    "prompts": row.design.prompts,
                    "answers": row.design.answers,
                    "steps": list(row.steps),
                    "identified": list(row.identified),
                    "enough_steps": row.enough(),
                }
                for row in self.rows
            ],
        }


def plan_pilot(curve: LearningCurve, designs: list[ValidationDesign], seed: int = 0) -> PilotPlan:
    """Simulate pilots of a curve with each design.

    >>> curve = LearningCurve("paper", (0.61, 1.92, 1695.0, 0.40), 1.0)
    >>> row = plan_pilot(curve, [ValidationDesign(100, 1000, 16)]).rows[0]
    >>> row.identified[0] < 0.3, row.identified[-1] > 0.7
    (True, True)
    """
    if not designs:
        raise InputError("give at least one design of validations")
    return PilotPlan(tuple(_row(curve, design, seed) for design in designs))


def _row(curve: LearningCurve, design: ValidationDesign, seed: int) -> PilotRow:
    lengths = [max(round(m * curve.mid_steps), FEWEST * design.every) for m in MULTIPLES]
    shares = []
    for steps in lengths:
        found = [_identified(curve, design, steps, (seed, i)) for i in range(PILOTS)]
        shares.append(float(np.mean(found)))
    return PilotRow(design, tuple(lengths), tuple(shares))


def _identified(
    curve: LearningCurve, design: ValidationDesign, steps: int, seed: tuple[int, int]
) -> bool:
    from scalerl.curves.fit import fit

    rng = np.random.default_rng(seed)
    a, b, mid, r0 = curve.parameters
    thin = max(steps // design.every // MOST, 1)
    at = np.arange(0, steps + 1, design.every * thin, dtype=np.float64)
    with np.errstate(divide="ignore"):
        true = r0 + (a - r0) / (1 + (mid / at) ** b)
    noise = design.noise(float(np.mean(true))) / np.sqrt(thin)
    score = np.clip(true + noise * rng.standard_normal(len(at)), 0.0, 1.0)
    # Without the number of answers, which would say that sampling is the only noise.
    return fit(at, score, x_kind="steps").identified
