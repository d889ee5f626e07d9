"""The interface of weight channels: the trainer publishes weights, and every generator loads the
newest between two decode steps.

Neither side waits for the other: a version that a generator did not load in time is skipped. The
weights that a generator loads are complete and have their true version number, whatever the timing.

`DirectWeights`, the channel within one process, is the shortest implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor, nn


class WeightTarget(Protocol):
    """What weights are loaded into: an engine."""

    def load(self, weights: Mapping[str, Tensor], version: int) -> None: ...


class Sender(Protocol):
    """The trainer's end of a channel."""

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Publish weights; the caller may change them as soon as this returns. Read each tensor
        once and in order: with a sharded trainer, reading one gathers it from all ranks."""
        ...


class NullSender:
    """The sender of every rank but the first: it publishes nothing."""

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        # Reads every tensor all the same: each is a collective that all ranks must join.
        for tensor in weights.values():
            del tensor


def close(end: Sender | Receiver) -> None:
    """Stop the background thread of a sender or receiver, if it has one."""
    getattr(end, "close", lambda: None)()


class Receiver(Protocol):
    """A generator's end of a channel."""

    def newest(self) -> int:
        """Version of the newest weights; -1 before the first."""
        ...

    def into(self, engine: WeightTarget) -> int:
        """Load the newest weights into an engine; their version, -1 if there are none yet."""
        ...


class Channel(Protocol):
    """Makes the two ends. It is sent to every worker, so it must be picklable."""

    #: Whether its two ends may be in different processes.
    across_processes: bool

    def sender(self) -> Sender:
        """The trainer's end; called in the trainer's process."""
        ...

    def receiver(self) -> Receiver:
        """A generator's end; called in the generator's process."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and shapes of the weights, in the order in which they fill one flat buffer."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @staticmethod
    def from_model(model: nn.Module) -> Layout:
        """The layout of a model, which may be on the meta device. A model of mixed dtypes is sent
        as FP32, which holds all of them exactly."""
        named = dict(model.named_parameters())
        dtypes = {p.dtype for p in named.values()}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
        return Layout(tuple(named), tuple(tuple(p.shape) for p in named.values()), dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return sum(torch.Size(s).numel() for s in self.shapes)

    def two_buffers(self, device: str = "cpu") -> list[Tensor]:
        """Two flat buffers: one is written while the other is read."""
        return [torch.zeros(self.size, dtype=self.dtype, device=device) for _ in "ab"]

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each tensor as a view into a flat buffer."""
        at = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            n = torch.Size(shape).numel()
            yield name, flat[at : at + n].view(shape)
            at += n


class SingleObjectChannel:
    """A channel that is its own sender and receiver."""

    def sender(self) -> Self:
        return self

    def receiver(self) -> Self:
        return self


class DirectWeights(SingleObjectChannel):
    """The channel within one process (`placement.weights = "direct"`). The weights are a copy."""

    across_processes = False

    def __init__(self, layout: Layout | None = None) -> None:
        self.version = -1
        self.weights: dict[str, Tensor] = {}

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        # Copied, because the trainer goes on changing its own.
        self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.version = version

    def newest(self) -> int:
        return self.version

    def into(self, engine: WeightTarget) -> int:
        if self.version >= 0:
            engine.load(self.weights, self.version)
        return self.version
