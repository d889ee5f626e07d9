"""Weight channels by the names that recipes use; `@CHANNELS.register("mine")` adds one."""

from __future__ import annotations

from collections.abc import Callable

from scalerl.registry import Registry
from scalerl.weights.collective import CollectiveWeights
from scalerl.weights.interface import Channel, DirectWeights, Layout
from scalerl.weights.ray_objects import RayWeights
from scalerl.weights.shared_memory import CudaIpcWeights, SharedWeights

CHANNELS: Registry[Callable[[Layout], Channel]] = Registry("weights channel")
CHANNELS.register("shared-memory")(SharedWeights)
CHANNELS.register("direct")(DirectWeights)
CHANNELS.register("ray")(RayWeights)
CHANNELS.register("collective")(CollectiveWeights)
CHANNELS.register("cuda-ipc")(CudaIpcWeights)
