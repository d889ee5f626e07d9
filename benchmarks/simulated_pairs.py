"""Pairs of simulated runs whose true ceilings are known, for benchmarks/verdicts.py.

Half of the pairs are judged as runs, and half as recipes whose seeds move the ceiling. Ceilings
differ by a random amount or not at all, budgets are equal or not, and some runs decline.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "curves"))
from simulate import curve, random_law

from scalerl import Run
from scalerl.curves.arms import SEED_SD

#: Share of the pairs whose ceilings do not differ.
EQUAL = 0.25
#: sd of the difference of the ceilings of the others.
DIFFERENCE_SD = 0.12
#: sd of the ln of the ratio of the two runs' B, and of their C_mid.
B_SD = 0.15
MID_SD = 0.3
#: Budgets in C_mid, uniform in ln C between these.
BUDGETS = (2.0, 16.0)
#: sd of one evaluation, uniform between these.
NOISE = (0.004, 0.012)
#: Share of the runs that decline before their end.
DECLINING = 0.1


@dataclass(frozen=True, slots=True)
class SimulatedPair:
    """Two runs up to the end of their budgets."""

    runs: tuple[Run, Run]
    #: True A_b - A_a: of the runs, or of the recipes where `seed_sd` is above 0; where a run
    #: declines, also the difference with its level at the end in place of its ceiling.
    gaps: tuple[float, ...]
    #: Given to the verdict; 0: the verdict is about the runs.
    seed_sd: float
    #: Whether each declines.
    declines: tuple[bool, bool]


def simulated_pair(number: int) -> SimulatedPair:
    """The pair of this number; it is the same on every call."""
    rng = np.random.default_rng((number, 105))
    seed_sd = SEED_SD if number % 2 else 0.0
    law = random_law(rng)
    low = law.R_0 + 0.05
    shift = 0.0 if rng.random() < EQUAL else DIFFERENCE_SD * rng.standard_normal()
    ceilings = np.clip([law.A, law.A + shift], low, 0.99)
    budget = law.C_mid * np.exp(rng.uniform(*np.log(BUDGETS)))
    shorter = rng.uniform(0.5, 1.0) if rng.random() < 0.5 else 1.0
    points = int(rng.integers(15, 81))
    noise_sd = rng.uniform(*NOISE)
    runs, declines, heading, truth = [], [], [], []
    for name, a, end in zip("ab", ceilings, (budget, shorter * budget), strict=True):
        own = dataclasses.replace(
            law,
            A=float(np.clip(a + seed_sd * rng.standard_normal(), low, 1.0)),
            B=law.B * float(np.exp(B_SD * rng.standard_normal())),
            C_mid=law.C_mid * float(np.exp(MID_SD * rng.standard_normal())),
        )
        # Evaluated as often per unit of compute as the other run.
        c, y = curve(own, end, rng, n=max(round(points * end / budget), 8), sd=noise_sd)
        falls = bool(rng.random() < DECLINING)
        onset, lost = rng.uniform(0.3, 0.9), rng.uniform(0.2, 0.8)
        if falls:
            # A linear fall from the onset on, at the end of which this part of the gain is lost.
            part = lost * np.clip((c / end - onset) / (1.0 - onset), 0.0, 1.0)
            y = np.clip(y - part * np.maximum(y - own.R_0, 0.0), 0.0, 1.0)
        runs.append(Run(f"{number}{name}", c, y, x_kind="steps"))
        declines.append(falls)
        gain = float(own.value(np.array([end]))[0]) - own.R_0
        truth.append(float(a if seed_sd else own.A))
        heading.append(own.R_0 + (1.0 - lost) * gain if falls else truth[-1])
    gaps = (truth[1] - truth[0], *([heading[1] - heading[0]] if any(declines) else []))
    return SimulatedPair((runs[0], runs[1]), gaps, seed_sd, (declines[0], declines[1]))
