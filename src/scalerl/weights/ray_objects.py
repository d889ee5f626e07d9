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

#: Bytes of a piece, at most (but for a single larger tensor).
PIECE_BYTES = 256 << 20
#: NumPy has no BF16: its bits travel as whole numbers.
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
    """The trainer's end."""

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
    """A generator's end."""

    def __init__(self, layout: Layout, registry: Any) -> None:
        self.layout, self.registry = layout, registry
        #: The newest that has arrived, and what it is made of.
        self._here: tuple[int, list[npt.NDArray[Any]]] = (-1, [])
        self._error: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._fetch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Fetch no more; for a process that leaves Ray and lives on."""
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
            except (ObjectLostError, OwnerDiedError):  # overtaken, or its trainer is gone
                known = -1
                time.sleep(0.1)
            except Exception as error:  # nobody would wait for this thread: `newest` says it
                self._error = error
                return


def _pieces(layout: Layout, weights: Mapping[str, Tensor]) -> Iterator[npt.NDArray[Any]]:
    """Flat arrays of consecutive tensors; each tensor is looked at once."""
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
            with warnings.catch_warnings():  # read-only: engines copy
                warnings.simplefilter("ignore", UserWarning)
                flat, at = torch.from_numpy(np.asarray(next(rest))).view(layout.dtype), 0
        yield name, flat[at : at + n].view(shape)
        at += n
