"""Weights within one process: a copy that the engine reads."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from scalerl.weights.interface import Layout, WeightTarget


class DirectWeights:
    """Channel, sender and receiver at once."""

    across_processes = False

    def __init__(self, layout: Layout | None = None) -> None:
        self.version = -1
        self.weights: dict[str, Tensor] = {}

    def sender(self) -> DirectWeights:
        return self

    def receiver(self) -> DirectWeights:
        return self

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        # The trainer goes on changing its own.
        self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.version = version

    def newest(self) -> int:
        return self.version

    def into(self, engine: WeightTarget) -> int:
        if self.version >= 0:
            engine.load(self.weights, self.version)
        return self.version
