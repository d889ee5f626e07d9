"""A virtual world: how long things take in it, and which faults happen when.

Durations are log-normal: `mean` seconds, times exp(spread × N(0, 1)) / its own mean. All draws
follow from the world's seed, so that a world can be repeated.

>>> world = World(seed=1, decode=Duration(0.01, 0.5), faults=(Fault(2.0, "kill", "generator 0"),))
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Duration:
    """A distribution of seconds."""

    mean: float
    spread: float = 0.0

    def draw(self, rng: random.Random) -> float:
        if not self.spread:
            return self.mean
        return self.mean * math.exp(self.spread * rng.gauss(0.0, 1.0) - self.spread**2 / 2)


#: kill: the worker dies. freeze: it does nothing for `seconds`, then goes on. lose: its next
#: message to the loop is lost. lose-to: the loop's next message to it is lost. late: messages in
#: both directions take `seconds` longer from then on. forget: a generator loses its requests and
#: goes on reporting. scale: the number of generators is changed to `generators`.
FaultKind = Literal["kill", "freeze", "lose", "lose-to", "late", "forget", "scale"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that happens to a worker."""

    #: Time on the virtual clock, in seconds.
    at: float
    kind: FaultKind
    #: Name of the worker, such as "generator 0".
    worker: str = ""
    seconds: float = 0.0
    generators: int = 0


@dataclass(frozen=True, slots=True)
class ActFaults:
    """Shares of the calls of environments that go wrong. Which do follows from the world's seed,
    the episode and the turn, so that a second try ends the same way."""

    #: Never answers.
    hangs: float = 0.0
    #: Ends its worker.
    crashes: float = 0.0
    #: Raises an exception.
    fails: float = 0.0
    #: Replies otherwise in a replay.
    lies: float = 0.0
    #: Replies with 50,000 words.
    huge: float = 0.0

    def drawn(self, draw: float) -> str:
        """The fault of a call, by a number in [0, 1); empty for none.

        >>> ActFaults(hangs=0.1, lies=0.2).drawn(0.15), ActFaults(hangs=0.1).drawn(0.15)
        ('lies', '')
        """
        for name in ("hangs", "crashes", "fails", "lies", "huge"):
            draw -= getattr(self, name)
            if draw < 0:
                return name
        return ""


@dataclass(frozen=True, slots=True)
class World:
    """How long things take, and the faults. The defaults resemble the default run on a laptop."""

    seed: int = 0
    #: A decode step: one token for every running rollout.
    decode: Duration = Duration(0.01)
    #: An optimiser step.
    train: Duration = Duration(0.3)
    #: A call of the verifier.
    check: Duration = Duration(0.001)
    #: Any other work of the trainer: a checkpoint, publishing, log-probs.
    other: Duration = Duration(0.05)
    #: The delivery of a message.
    message: Duration = Duration(0.0005)
    #: The start of a worker.
    start: Duration = Duration(2.0)
    #: From the end of a worker until the loop notices it.
    notice: Duration = Duration(0.01)
    faults: tuple[Fault, ...] = ()
    #: Share of answers with a check that never ends.
    hangs: float = 0.0
    #: Share of answers with a check that ends its checker.
    crashes: float = 0.0
    #: A call of an environment: `reset`, `step` or `cut_off`.
    act: Duration = Duration(0.001)
    act_faults: ActFaults = ActFaults()
