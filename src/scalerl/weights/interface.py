"""A weights channel: the trainer publishes, every generator takes the newest when it likes.

Nobody waits for anybody: a version that a generator never looked at is simply passed over. What a
generator does take is whole and goes by its true number, however the two overtake each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class WeightTarget(Protocol):
    """Whoever takes weights: an engine."""

    def load(self, weights: Mapping[str, Tensor], version: int) -> None: ...


class Sender(Protocol):
    """The trainer's end."""

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Hand over these weights; they may change as soon as this returns. Of many ranks, all
        make the tensor that is looked at together: look at each once, in the order they come."""
        ...


class NullSender:
    """The sender of a rank that is not the first: it takes part in putting tensors together."""

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        for tensor in weights.values():
            del tensor


def close(end: Sender | Receiver) -> None:
    """End what an end of a channel does beside, if it does anything."""
    getattr(end, "close", lambda: None)()


class Receiver(Protocol):
    """A generator's end."""

    def newest(self) -> int:
        """Version of the newest weights; -1 before any."""
        ...

    def into(self, engine: WeightTarget) -> int:
        """Load the newest weights into an engine; their version, -1 if there are none yet."""
        ...


class Channel(Protocol):
    """Makes both ends; given to every part, so it must survive the way to it."""

    #: Whether its two ends may be in different processes.
    across_processes: bool

    def sender(self) -> Sender: ...

    def receiver(self) -> Receiver: ...


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and places of the weights in one flat buffer."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @staticmethod
    def from_model(model: nn.Module) -> Layout:
        """Of a model, which may be on the meta device."""
        named = dict(model.named_parameters())
        dtypes = {p.dtype for p in named.values()}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
        return Layout(tuple(named), tuple(tuple(p.shape) for p in named.values()), dtype)

    @property
    def size(self) -> int:
        return sum(torch.Size(s).numel() for s in self.shapes)

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each tensor as a view into a flat buffer."""
        at = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            n = torch.Size(shape).numel()
            yield name, flat[at : at + n].view(shape)
            at += n
