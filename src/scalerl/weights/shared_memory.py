"""Weights through shared memory, between processes of one machine: two buffers.

The trainer copies its weights once, into the buffer that is not the newest; a generator copies the
newest into its model, once. A counter per buffer, odd while it is being written, tells a reader
that it was overtaken, and it reads again. The memory belongs to the processes that hold it and is
gone with them: nothing is left behind by a kill.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from scalerl.errors import InputError
from scalerl.weights.interface import Layout, WeightTarget

#: Positions in the header: number of the newest buffer, then a counter and a version per buffer. A
#: version is part of what the counter guards: new weights never go by an old number.
_NEWEST, _COUNTER, _VERSION = 0, 1, 3
#: Where Linux keeps shared memory. Writing more than it holds ends the process without a word.
SHARED = Path("/dev/shm")


class SharedWeights:
    """Channel, sender and receiver at once: whoever holds the memory may be either."""

    across_processes = True

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        _check_room(2 * layout.size * layout.dtype.itemsize)
        self.buffers = [_shared(torch.zeros(layout.size, dtype=layout.dtype)) for _ in "ab"]
        self.header = _shared(torch.tensor([0, 0, 0, -1, -1]))

    def sender(self) -> SharedWeights:
        return self

    def receiver(self) -> SharedWeights:
        return self

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Trainer only."""
        target = 1 - int(self.header[_NEWEST])
        # Odd while writing, also when an earlier writer was killed in the middle.
        self.header[_COUNTER + target] += 1 + int(self.header[_COUNTER + target]) % 2
        for name, view in self.layout.views(self.buffers[target]):
            view.copy_(weights[name])
        self._settle()
        self.header[_VERSION + target] = version
        self.header[_COUNTER + target] += 1
        self.header[_NEWEST] = target

    def _settle(self) -> None:
        """Until the copies are made; those of a CPU are."""

    def newest(self) -> int:
        return int(self.header[_VERSION + int(self.header[_NEWEST])])

    def into(self, engine: WeightTarget) -> int:
        """Copies until a copy was not overtaken by the trainer."""
        while True:
            source = int(self.header[_NEWEST])
            counter = int(self.header[_COUNTER + source])
            version = int(self.header[_VERSION + source])
            if version < 0:
                return version
            engine.load(dict(self.layout.views(self.buffers[source])), version)
            self._settle()
            if counter % 2 == 0 and int(self.header[_COUNTER + source]) == counter:
                return version


def _check_room(needed: int) -> None:
    if not SHARED.is_dir():  # another system, with limits of its own
        return
    found = os.statvfs(SHARED)
    free, whole = found.f_bavail * found.f_frsize, -(-needed // 2**20)
    if needed > free:
        raise InputError(
            f"two sets of weights need {whole} MB of shared memory, but {SHARED} has "
            f"{free // 2**20} MB free: in a container raise it (docker run "
            f"--shm-size={whole + 64}m), elsewhere remount it (mount -o remount,size=), or "
            "take a smaller model.dtype"
        )


def _shared(tensor: Tensor) -> Tensor:
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor
