"""Weights between processes that share a GPU (`placement.weights = "cuda-ipc"`): the two buffers of
shared_memory.py, on the device. Not yet run on a GPU: begin with `scalerl doctor`.

The trainer makes the buffers and writes their CUDA IPC handles into shared memory; a generator
opens them. Both must see the same devices (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from scalerl.errors import InputError
from scalerl.weights.interface import Layout, WeightTarget
from scalerl.weights.shared_memory import SharedWeights

#: Bytes reserved for the pickled handles of two buffers, a few hundred each.
HANDLE_BYTES = 1 << 16


class CudaIpcWeights(SharedWeights):
    """Channel, sender and receiver at once."""

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
            size, dtype = self.layout.size, self.layout.dtype
            self._open = [torch.zeros(size, dtype=dtype, device="cuda") for _ in "ab"]
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
