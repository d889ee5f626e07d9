"""Weights through shared memory, between processes of one machine
(`placement.weights = "shared-memory"`): two buffers.

The trainer copies its weights once, into the buffer that is not the newest; a generator copies the
newest into its model, once. Each buffer has a counter that is odd while it is written (a sequence
lock): a reader that finds another count after its copy was overtaken, and reads again. The memory
has no name in the file system and is freed with the last process that holds it, also after a kill.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from scalerl.errors import InputError
from scalerl.weights.interface import Layout, SingleObjectChannel, WeightTarget

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
#: Bytes reserved for the pickled CUDA handles of two buffers, a few hundred each.
HANDLE_BYTES = 1 << 16


class SharedWeights(SingleObjectChannel):
    """Channel, sender and receiver at once: each process that holds the memory may be either."""

    across_processes = True

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        _check_room(2 * layout.size * layout.dtype.itemsize)
        self.buffers = [_shared(buffer) for buffer in layout.two_buffers()]
        self.header = _shared(torch.tensor([0, 0, 0, -1, -1]))

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
            try:
                engine.load(dict(self.layout.views(self.buffers[source])), version)
            except Exception:
                # Half of one set and half of the next may be refused: read again.
                if self._whole(source, counter):
                    raise
                continue
            self._synchronise()
            if self._whole(source, counter):
                return version

    def _whole(self, source: int, counter: int) -> bool:
        """Whether a buffer has not been written to since its counter was read."""
        return counter % 2 == 0 and int(self.header[_COUNTER + source]) == counter


class CudaIpcWeights(SharedWeights):
    """Weights between processes that share a GPU (`placement.weights = "cuda-ipc"`): the same two
    buffers, on the device. Not yet run on a GPU: begin with `scalerl doctor`.

    The trainer makes the buffers and writes their CUDA IPC handles into shared memory; a generator
    opens them. Both must see the same devices (CUDA_VISIBLE_DEVICES)."""

    def __init__(self, layout: Layout) -> None:
        if not torch.cuda.is_available():
            raise InputError(
                "placement.weights=cuda-ipc is for workers that share a GPU, and this machine has "
                "none: set placement.weights=auto"
            )
        # The header stays in shared memory; the buffers there are empty.
        super().__init__(Layout((), (), layout.dtype))
        self.layout = layout
        self._handles = torch.zeros(HANDLE_BYTES, dtype=torch.uint8)
        self._handles.share_memory_()  # type: ignore[no-untyped-call]
        self._open: list[Tensor] = []

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        if not self._open:
            self._open = self.layout.two_buffers("cuda")
            # Made here and not in __init__: CUDA memory must belong to the trainer's process.
            made = [reduce_tensor(buffer) for buffer in self._open]  # type: ignore[no-untyped-call]
            handles = pickle.dumps(made)
            text = len(handles).to_bytes(4, "little") + handles
            self._handles[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.buffers = self._open
        super().publish(version, weights)

    def _synchronise(self) -> None:
        torch.cuda.synchronize()

    def into(self, engine: WeightTarget) -> int:
        if not self._open and self.newest() >= 0:
            text = self._handles.numpy().tobytes()
            found = pickle.loads(text[4 : 4 + int.from_bytes(text[:4], "little")])
            self._open = self.buffers = [rebuild(*given) for rebuild, given in found]
        return super().into(engine)


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
