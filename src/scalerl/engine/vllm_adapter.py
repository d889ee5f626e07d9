"""LoRA adapters in vLLM: merged into its weights, or beside them by vLLM's own layers. Import vLLM
through `vllm.import_vllm` before `UnmergedInVllm` is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scalerl.engine.interface import EngineSpec
from scalerl.engine.vllm_model import load_weights
from scalerl.errors import InputError
from scalerl.models.adapter import AdaptedWeight, check_names, merged, shapes_of, targets_of
from scalerl.models.adapter_files import to_peft
from scalerl.models.load import load_model, meta_model_fast

#: Ranks that vLLM has kernels for; others are padded to the next.
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
#: The number of the adapter in vLLM: there is one at a time, and it is replaced in place.
ADAPTER_ID = 1


class MergedWeights(Mapping[str, Tensor]):
    """All weights of a model with an adapter. Each is merged when it is read, so that no second
    copy of the model is made."""

    def __init__(
        self,
        base: Mapping[str, Tensor],
        targets: Mapping[str, AdaptedWeight],
        tensors: Mapping[str, Tensor],
        scale: float,
    ) -> None:
        self.base, self.targets, self.tensors, self.scale = base, targets, tensors, scale

    def __getitem__(self, name: str) -> Tensor:
        base, target = self.base[name], self.targets.get(name)
        if target is None:
            return base
        a, b = self.tensors[target.a], self.tensors[target.b]
        return merged(base, a, b, self.scale).to(base.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)


class MergedInVllm:
    """Adapters that are merged into vLLM's weights, from a copy of the base in host memory."""

    #: What requests have to name.
    request = None

    def __init__(self, spec: EngineSpec, runner: Any, *, tied: bool) -> None:
        assert spec.adapter is not None
        self.spec, self.runner, self.tied = spec, runner, tied
        self.scale = spec.adapter.scale
        model = load_model(spec.model, spec.dtype, "cpu", trust_remote_code=spec.trust_remote_code)
        targets = targets_of(model, spec.adapter)
        self.base = {name: p.detach() for name, p in model.named_parameters()}
        self.targets = {t.weight: t for t in targets}
        self.shapes = shapes_of(targets, spec.adapter.rank)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        check_names(tensors, self.shapes)
        weights = MergedWeights(self.base, self.targets, tensors, self.scale)
        load_weights(self.runner, weights, tied=self.tied, device=self.spec.device)


class UnmergedInVllm:
    """Adapters that vLLM's own LoRA layers compute, replaced between two tokens."""

    def __init__(self, spec: EngineSpec, runner: Any) -> None:
        from vllm.lora.peft_helper import PEFTHelper
        from vllm.lora.request import LoRARequest

        assert spec.adapter is not None
        self.spec, self.adapter, self.runner = spec, spec.adapter, runner
        self.targets = targets_of(_shape_of(spec), self.adapter)
        self.shapes = shapes_of(self.targets, self.adapter.rank)
        # The path is never read: `load` registers the adapter before any request names it.
        self.request = LoRARequest("adapter", ADAPTER_ID, "memory")
        # alpha = rank, since B is scaled here: vLLM would scale it in place, and once more each
        # time that it is given the same tensors.
        self.about = PEFTHelper.from_dict(
            {
                "r": self.adapter.rank,
                "lora_alpha": self.adapter.rank,
                "target_modules": _leaves(self.targets),
            }
        )

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        from vllm.lora.lora_model import LoRAModel

        check_names(tensors, self.shapes)
        scaled = {
            name: tensor * self.adapter.scale if name.endswith("lora_B.weight") else tensor.clone()
            for name, tensor in tensors.items()
        }
        manager = self.runner.lora_manager._adapter_manager
        mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
        made = LoRAModel.from_lora_tensors(
            ADAPTER_ID,
            to_peft(scaled, self.targets),
            self.about,
            device="cpu",
            dtype=self.runner.lora_config.lora_dtype,
            weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
        )
        manager.remove_adapter(ADAPTER_ID)
        manager.add_adapter(made)
        manager.activate_adapter(ADAPTER_ID)


def engine_options(spec: EngineSpec) -> dict[str, Any]:
    """The arguments of vLLM's engine that adapters need."""
    adapter = spec.adapter
    if adapter is None or adapter.merged:
        return {}
    if adapter.head or adapter.experts:
        key = "head" if adapter.head else "experts"
        raise InputError(
            f"adapter.{key} is not adapted by vLLM's own layers: set adapter.mode=merged, or leave "
            f"adapter.{key} out"
        )
    if adapter.rank > RANKS[-1]:
        raise InputError(
            f"adapter.rank = {adapter.rank}: vLLM takes up to {RANKS[-1]}; set adapter.mode=merged"
        )
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": next(r for r in RANKS if r >= adapter.rank),
        # As text, vLLM refuses float32.
        "lora_dtype": getattr(torch, spec.dtype),
        # Without them vLLM adds a layer to the head too.
        "lora_target_modules": _leaves(targets_of(_shape_of(spec), adapter)),
    }


def _shape_of(spec: EngineSpec) -> Any:
    """The model without its weights."""
    return meta_model_fast(spec.model, spec.dtype, trust_remote_code=spec.trust_remote_code)


def _leaves(targets: Sequence[AdaptedWeight]) -> list[str]:
    """The last parts of the names of adapted layers."""
    return sorted({t.home.rpartition(".")[2] for t in targets})


def vllm_adapter(
    spec: EngineSpec, runner: Any, *, tied: bool
) -> MergedInVllm | UnmergedInVllm | None:
    """The adapter of an engine; None where all weights are loaded."""
    if spec.adapter is None:
        return None
    if spec.adapter.merged:
        return MergedInVllm(spec, runner, tied=tied)
    return UnmergedInVllm(spec, runner)
