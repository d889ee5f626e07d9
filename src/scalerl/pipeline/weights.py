"""Weights on their way from the trainer to the generators: two buffers in shared memory.

The trainer copies its weights once, into the buffer that is not the newest; a generator copies the
newest into its model, once. A counter per buffer, odd while it is being written, tells a reader
that it was overtaken, and it reads again. The memory belongs to the processes that hold it and is
gone with them: nothing is left behind by a kill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: Positions in the header: number of the newest buffer, then a counter and a version per buffer. A
#: version is part of what the counter guards: new weights never go by an old number.
_NEWEST, _COUNTER, _VERSION = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and places of the weights in one flat buffer."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @staticmethod
    def of(model: nn.Module) -> Layout:
        """Of a model, which may be on the meta device."""
        named = dict(model.named_parameters())
        dtypes = {p.dtype for p in named.values()}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
        return Layout(tuple(named), tuple(tuple(p.shape) for p in named.values()), dtype)

    @property
    def size(self) -> int:
        return sum(torch.Size(s).numel() for s in self.shapes)

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        at = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            n = torch.Size(shape).numel()
            yield name, flat[at : at + n].view(shape)
            at += n


class SharedWeights:
    """Made by the main process, handed to the others when they start."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.buffers = [_shared(torch.zeros(layout.size, dtype=layout.dtype)) for _ in "ab"]
        self.header = _shared(torch.tensor([0, 0, 0, -1, -1]))

    @property
    def version(self) -> int:
        """Version of the newest weights; -1 before any."""
        return int(self.header[_VERSION + int(self.header[_NEWEST])])

    def publish(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Trainer only."""
        target = 1 - int(self.header[_NEWEST])
        # Odd while writing, also when an earlier writer was killed in the middle.
        self.header[_COUNTER + target] += 1 + int(self.header[_COUNTER + target]) % 2
        for name, view in self.layout.views(self.buffers[target]):
            view.copy_(weights[name])
        self.header[_VERSION + target] = version
        self.header[_COUNTER + target] += 1
        self.header[_NEWEST] = target

    def read(self) -> tuple[dict[str, Tensor], int]:
        """The newest weights as views, and their version; call `intact` after copying them."""
        source = int(self.header[_NEWEST])
        version = int(self.header[_VERSION + source])
        return dict(self.layout.views(self.buffers[source])), version

    def ticket(self) -> tuple[int, int]:
        """What `intact` compares with: take it before reading."""
        source = int(self.header[_NEWEST])
        return source, int(self.header[_COUNTER + source])

    def intact(self, ticket: tuple[int, int]) -> bool:
        """Whether nothing was written to the buffer since the ticket was taken."""
        source, counter = ticket
        return counter % 2 == 0 and int(self.header[_COUNTER + source]) == counter


def _shared(tensor: Tensor) -> Tensor:
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor
