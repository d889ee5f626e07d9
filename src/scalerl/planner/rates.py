"""Rates: how long a generator takes for a decode step and a trainer for a batch.

One form serves a roofline, a calibration from a record and a measurement:

    decode step   step + max(stream, row × rows) + context × tokens in the cache
    admission     admit_row × rows + admit_token × tokens that are read
    batch         fixed + the work of the slowest rank, token × tokens + square × Σ tokens²
    hand-over     publish seconds of the trainer, then load seconds of each generator
    loop          seconds between two steps, by rollouts of a batch
    shared cores  how much slower workers are beside others on one machine
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

#: Share of the loop's seconds that goes by groups, the rest by rollouts: lab runs with half the
#: rollouts in as many groups took two thirds.
LOOP_GROUPS = 1 / 3


@dataclass(frozen=True, slots=True)
class GeneratorRates:
    """Seconds of one generator, of one device or of several."""

    #: Seconds of a decode step whatever the rows: launches, sampling, Python.
    step: float
    #: Seconds in which the weights are read once from memory.
    stream: float
    #: Seconds of a row's products in a decode step.
    row: float
    #: Seconds in which the cached keys and values of one token are read.
    context: float
    #: Seconds to read one token of a prompt.
    admit_token: float
    #: Seconds to admit a row, besides its tokens.
    admit_row: float = 0.0
    #: Seconds to load new weights.
    load: float = 0.0
    #: Tokens that fit into its cache.
    cache_tokens: float = float("inf")
    #: Rollouts that it writes at once.
    slots: int = 512

    def decode(self, rows: int) -> float:
        """Seconds of a decode step without reading the cache."""
        return self.step + max(self.stream, self.row * rows)

    def scaled(self, factor: float) -> GeneratorRates:
        """The same generator, slower by this factor in everything but loading weights."""
        names = ("step", "stream", "row", "context", "admit_token", "admit_row")
        return replace(self, **{name: factor * getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class TrainerRates:
    """Seconds of a trainer of several ranks; each rank has its share of the batch."""

    #: Devices.
    ranks: int
    #: Seconds of a step whatever its tokens.
    fixed: float
    #: Seconds of one device per token.
    token: float
    #: Seconds of one device per pair of tokens of a rollout: attention.
    square: float = 0.0
    #: Seconds to publish new weights.
    publish: float = 0.0

    def scaled(self, factor: float) -> TrainerRates:
        """The same trainer, slower by this factor in everything but publishing."""
        names = ("fixed", "token", "square")
        return replace(self, **{name: factor * getattr(self, name) for name in names})

    def seconds(self, tokens: npt.NDArray[np.float64]) -> float:
        """Seconds of a step on rollouts of these lengths, prompts included: the ranks share them
        by work, the largest first, and wait for the slowest."""
        if not len(tokens):
            return self.fixed
        work = self.token * tokens + self.square * tokens**2
        return self.fixed + slowest(work, self.ranks)


@dataclass(frozen=True, slots=True)
class LoopRates:
    """Seconds of the process that runs the loop, a step of `groups` groups and `rollouts`
    rollouts."""

    #: Between two steps: the trainer waits though a batch is ready, while the loop records the
    #: step, packs the batch and sends it. Requests of new groups wait, too.
    turn: float = 0.0
    #: CPU besides, while trainer and generators work: reports, scores, requests.
    beside: float = 0.0
    groups: int = 1
    rollouts: int = 1

    def share(self, groups: int, rollouts: int) -> float:
        """These seconds for a batch of another size, over those that were measured."""
        return LOOP_GROUPS * groups / self.groups + (1 - LOOP_GROUPS) * rollouts / self.rollouts


@dataclass(frozen=True, slots=True)
class SharedCores:
    """Workers that share the cores of one machine slow each other down.

    >>> shared = SharedCores(cores=2, all_busy=1.2)
    >>> shared.slowdown([]), shared.slowdown([0.5]), shared.slowdown([1.0, 1.0])
    (1.0, 1.1, 1.8)
    """

    cores: int
    #: Time of a worker while every core has one, over its time alone: they share memory and caches.
    all_busy: float

    def slowdown(self, others: Sequence[float]) -> float:
        """Time of a worker over its time alone, if each other one is busy for this share of it."""
        alone, busy = sharing(self.cores, others)
        return round(alone + self.all_busy * busy, 12)


def sharing(cores: int, others: Sequence[float]) -> tuple[float, float]:
    """(a, b) of the slowdown a + b × `all_busy` beside others that are busy for these shares of
    the time, independently of each other.

    >>> sharing(2, [1.0])
    (0.0, 1.0)
    """
    counts = np.ones(1)
    for share in others:
        share = min(max(share, 0.0), 1.0)
        counts = np.convolve(counts, [1 - share, share])
    workers = 1 + np.arange(len(counts))
    # From one worker to one a core the slowdown grows evenly, then in proportion to the workers.
    full = np.minimum((workers - 1) / max(cores - 1, 1), 1.0)
    queue = np.maximum(workers / cores, 1.0)
    return float(counts @ (1 - full)), float(counts @ (full * queue))


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a placement: of workers that have a device, or a core, to themselves."""

    generator: GeneratorRates
    trainer: TrainerRates
    loop: LoopRates = LoopRates()
    #: The cores that the workers share; None where each has devices of its own.
    shared: SharedCores | None = None

    def scaled(self, factor: float) -> Rates:
        """Everything slower by this factor."""
        loop = replace(self.loop, turn=factor * self.loop.turn, beside=factor * self.loop.beside)
        return replace(
            self, generator=self.generator.scaled(factor), trainer=self.trainer.scaled(factor),
            loop=loop,
        )  # fmt: skip


def slowest(work: npt.NDArray[np.float64], ranks: int) -> float:
    """The work of the rank that gets most, when each piece goes to the rank that has least.

    >>> slowest(np.array([3.0, 3.0, 2.0, 2.0, 2.0]), 2)
    7.0
    """
    if ranks == 1:
        return float(work.sum())
    ordered = np.sort(work)[::-1]
    if len(ordered) <= ranks:
        return float(ordered[0])
    # In rounds of one piece a rank, the largest to the rank with least: as good as a heap here, and
    # a hundred times faster for tens of thousands of rollouts.
    loads = np.zeros(ranks)
    for begin in range(0, len(ordered), ranks):
        pieces = ordered[begin : begin + ranks]
        order = np.argsort(loads, kind="stable")[: len(pieces)]
        loads[order] += pieces
    return float(loads.max())
