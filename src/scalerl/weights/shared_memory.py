"""Weights through shared memory, between processes of one machine
(`placement.weights = "shared-memory"`): two buffers.

The trainer copies its weights once, into the buffer that is not the newest; a generator copies the
newest into its model, once. Each buffer has a counter that is odd while it is written (a sequence
lock): a reader that finds another count after its copy was overtaken, and reads again. The memory
has no name in the file system and is freed with the last process that holds it, also after a kill.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from scalerl.errors import InputError
from scalerl.weights.interface import Layout, WeightTarget

#: Position in the header of the number of the newest buffer.
_NEWEST = 0
#: Position of the first buffer's counter; the second buffer's follows.
_COUNTER = 1
#: Position of the first buffer's version; the second buffer's follows. The counter guards the
#: version too, so that new weights never go by an old number.
_VERSION = 3
#: Where Linux keeps shared memory. A process that writes beyond its size is killed by SIGBUS,
#: without a message.
SHARED = Path("/dev/shm")


class SharedWeights:
    """Channel, sender and receiver at once: each process that holds the memory may be either."""

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
        """Copy the weights into the older buffer and make it the newest. Only the trainer calls
        this: there must be one writer."""
        target = 1 - int(self.header[_NEWEST])
        # Odd while writing, also where an earlier writer was killed in the middle and left it odd.
        self.header[_COUNTER + target] += 1 + int(self.header[_COUNTER + target]) % 2
        for name, view in self.layout.views(self.buffers[target]):
            view.copy_(weights[name])
        self._synchronise()
        # The order matters to readers in other processes: the data, the version, the even counter,
        # and only then the pointer to the newest buffer.
        self.header[_VERSION + target] = version
        self.header[_COUNTER + target] += 1
        self.header[_NEWEST] = target

    def _synchronise(self) -> None:
        """Wait until the copies are done. Those of a CPU are done when `copy_` returns."""

    def newest(self) -> int:
        return int(self.header[_VERSION + int(self.header[_NEWEST])])

    def into(self, engine: WeightTarget) -> int:
        """Load the newest weights, again if the trainer overwrote them meanwhile."""
        while True:
            source = int(self.header[_NEWEST])
            counter = int(self.header[_COUNTER + source])
            version = int(self.header[_VERSION + source])
            if version < 0:
                return version
            engine.load(dict(self.layout.views(self.buffers[source])), version)
            self._synchronise()
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
