"""Engines by the names that recipes use; `@ENGINES.register("mine")` adds one."""

from __future__ import annotations

from collections.abc import Callable

from scalerl.engine.interface import Engine, EngineSpec
from scalerl.engine.simulated import SimulatedEngine
from scalerl.registry import Registry

ENGINES: Registry[Callable[[EngineSpec], Engine]] = Registry("engine")
ENGINES.register("simulated")(SimulatedEngine.from_spec)


@ENGINES.register("local")
def local_engine(spec: EngineSpec) -> Engine:
    """The local engine: torch in this process, on a CPU or one GPU."""
    from scalerl.engine.local import LocalEngine  # Transformers takes seconds to import

    return LocalEngine.from_spec(spec)


@ENGINES.register("vllm")
def vllm_engine(spec: EngineSpec) -> Engine:
    """vLLM in this process; with several devices, in one process for each."""
    if spec.devices > 1:
        from scalerl.engine.tensor_parallel import TensorParallelEngine

        return TensorParallelEngine(spec)
    from scalerl.engine.vllm import VllmEngine

    return VllmEngine(spec)
