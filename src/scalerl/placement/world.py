"""A virtual world: how long things take there, and what goes wrong when.

Durations are log-normal: `mean` seconds, times exp(spread × N(0, 1)) / its own mean. All draws
follow from the world's seed, so that a world can be lived through again.

>>> world = World(seed=1, decode=Duration(0.01, 0.5), faults=(Fault(2.0, "kill", "generator 0"),))
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds, drawn anew each time."""

    mean: float
    spread: float = 0.0

    def draw(self, rng: random.Random) -> float:
        if not self.spread:
            return self.mean
        return self.mean * math.exp(self.spread * rng.gauss(0.0, 1.0) - self.spread**2 / 2)


#: kill: it is gone. freeze: it does nothing for `seconds`, and then goes on. lose: its next message
#: to the loop never arrives. lose-to: the loop's next message to it never arrives. late: messages
#: in both directions take `seconds` longer from now on. forget: a generator loses what it was asked
#: and goes on reporting. scale: the run is asked for so many `generators`.
FaultKind = Literal["kill", "freeze", "lose", "lose-to", "late", "forget", "scale"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to whom at a moment."""

    at: float
    kind: FaultKind
    worker: str = ""
    seconds: float = 0.0
    generators: int = 0


@dataclass(frozen=True, slots=True)
class World:
    """How long things take. The defaults are about those of the default run on a laptop."""

    seed: int = 0
    #: One token for every running rollout; a whole optimiser step; one call of a verifier.
    decode: Duration = Duration(0.01)
    train: Duration = Duration(0.3)
    check: Duration = Duration(0.001)
    #: Writing a checkpoint, publishing, scoring.
    other: Duration = Duration(0.05)
    message: Duration = Duration(0.0005)
    start: Duration = Duration(2.0)
    #: Until an end is noticed.
    notice: Duration = Duration(0.01)
    faults: tuple[Fault, ...] = ()
    #: Shares of answers whose check never ends, and whose check ends its checker.
    hangs: float = 0.0
    crashes: float = 0.0
