"""Weights through Ray's object store (`placement.weights = "ray"`): published once, pulled by any
generator on any node.

The trainer puts each version into the object store in pieces, so that it never holds a second copy
of a large model. An actor holds the number of the newest version (version_registry.py). A generator
that joins a run asks that actor: no process group is formed. Each receiver has a thread that
fetches the newest version while the engine decodes; loading it is one copy out of shared memory.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scalerl.errors import PipelineError
from scalerl.weights.interface import Layout, WeightTarget
from scalerl.weights.version_registry import KEPT_VERSIONS

#: Largest size of a piece in bytes; a single larger tensor is a piece of its own.
PIECE_BYTES = 256 << 20
#: NumPy has no BF16: its bits are sent as integers. Flat NumPy arrays and not torch tensors, since
#: Ray reads them without a copy (of 135 M parameters: 3 ms instead of 4 s).
_AS = {torch.bfloat16: torch.int16}


class RayWeights:
    """The channel. `registry` is an actor handle of a VersionRegistry."""

    across_processes = True
    across_machines = True

    def __init__(self, layout: Layout, registry: Any = None) -> None:
        self.layout, self.registry = layout, registry

    def sender(self) -> RaySender:
        return RaySender(self.layout, self.registry)

    def receiver(self) -> RayReceiver:
        return RayReceiver(self.layout, self.registry)


class RaySender:
    """The trainer's end of the channel."""

    def __init__(self, layout: Layout, registry: Any) -> None:
        self.layout, self.registry = layout, registry

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        import ray
        from ray.exceptions import ObjectStoreFullError, OutOfDiskError

        try:
            pieces = [ray.put(piece) for piece in _pieces(self.layout, weights)]
        except (ObjectStoreFullError, OutOfDiskError):
            size = self.layout.size * self.layout.dtype.itemsize
            raise PipelineError(
                f"Ray's object store is full: it must hold {KEPT_VERSIONS + 1} sets of weights of "
                f"{size / 2**20:.0f} MB each; start Ray with a larger --object-store-memory"
            ) from None
        ray.get(self.registry.post.remote(version, pieces))


class RayReceiver:
    """A generator's end of the channel: a thread fetches new versions."""

    def __init__(self, layout: Layout, registry: Any) -> None:
        self.layout, self.registry = layout, registry
        #: Version and pieces of the newest weights that have arrived. One tuple, replaced as a
        #: whole: the thread writes it while the engine's thread reads.
        self._here: tuple[int, list[npt.NDArray[Any]]] = (-1, [])
        self._error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._fetch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop fetching. A thread that calls Ray after `ray.shutdown` would reconnect silently."""
        self._closed = True
        self._thread.join()

    def newest(self) -> int:
        if self._error is not None:
            raise PipelineError(f"weights do not arrive: {self._error}")
        return self._here[0]

    def into(self, engine: WeightTarget) -> int:
        version, pieces = self._here
        if self.newest() >= 0:
            engine.load(dict(_views(self.layout, pieces)), version)
        return version

    def _fetch(self) -> None:
        import ray
        from ray.exceptions import ObjectLostError, OwnerDiedError

        known = -1
        while not self._closed:
            try:
                known, refs = ray.get(self.registry.newer.remote(known))
                if refs:
                    self._here = (known, [ray.get(ref) for ref in refs])
            except (ObjectLostError, OwnerDiedError):
                # The version was dropped for newer ones meanwhile, or its trainer died.
                known = -1
                time.sleep(0.1)
            except Exception as error:
                # Kept for `newest`, which raises it: an error in a thread would be lost.
                self._error = error
                return


def _pieces(layout: Layout, weights: Mapping[str, Tensor]) -> Iterator[npt.NDArray[Any]]:
    """Flat arrays of consecutive tensors; each tensor is read once."""
    kind = _AS.get(layout.dtype, layout.dtype)
    held: list[Tensor] = []
    size = 0
    for tensor in weights.values():
        flat = tensor.detach().to("cpu", layout.dtype).flatten().view(kind)
        if held and size + flat.nbytes > PIECE_BYTES:
            yield torch.cat(held).numpy()
            held, size = [], 0
        held.append(flat)
        size += flat.nbytes
    if held:
        yield torch.cat(held).numpy()


def _views(layout: Layout, pieces: list[npt.NDArray[Any]]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor as a view into the piece that it is in."""
    rest = iter(pieces)
    flat, at = torch.empty(0, dtype=layout.dtype), 0
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        n = torch.Size(shape).numel()
        if n and at == len(flat):
            # Torch warns that Ray's arrays are read-only; engines copy out of them.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                flat, at = torch.from_numpy(np.asarray(next(rest))).view(layout.dtype), 0
        yield name, flat[at : at + n].view(shape)
        at += n
