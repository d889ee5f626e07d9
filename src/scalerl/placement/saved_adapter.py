"""Evaluation of an adapter: the base model's engine, and the adapter of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from scalerl.engine.adapter_proof import ProvenAdapter
from scalerl.engine.interface import EngineSpec
from scalerl.errors import InputError, PipelineError
from scalerl.models.adapter import targets_of
from scalerl.models.adapter_files import is_adapter, load
from scalerl.models.load import meta_model_fast
from scalerl.weights.interface import SingleObjectChannel, WeightTarget


def spec_for(spec: EngineSpec, weights: str) -> EngineSpec:
    """The spec of a run's engine, for these weights: a model, or a checkpoint with an adapter."""
    if not is_adapter(Path(weights)):
        return replace(spec, model=weights, adapter=None)
    if spec.adapter is None:
        raise InputError(
            f"{weights} holds an adapter, but the recipe has none: set adapter.rank as it was "
            "trained"
        )
    return spec


class SavedAdapter(SingleObjectChannel):
    """The channel of an evaluation: the adapter of a checkpoint, version 0, and no other."""

    across_processes = across_machines = True

    def __init__(self, path: str, spec: EngineSpec) -> None:
        self.path, self.spec = path, spec

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        raise PipelineError("an evaluation has no trainer that publishes weights")

    def newest(self) -> int:
        return 0

    def into(self, engine: WeightTarget) -> int:
        spec, adapter = self.spec, self.spec.adapter
        assert adapter is not None, "made for checkpoints with an adapter only"
        shape = meta_model_fast(spec.model, spec.dtype, trust_remote_code=spec.trust_remote_code)
        tensors = load(Path(self.path), targets_of(shape, adapter), adapter.rank)
        # There is no trainer to compare with, and so no proof.
        target = engine.engine if isinstance(engine, ProvenAdapter) else engine
        target.load(tensors, 0)
        return 0
