"""Adapters on disk, in the layout of PEFT: `adapter_config.json` and `adapter_model.safetensors`,
which `peft` and vLLM load."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from scalerl.errors import InputError
from scalerl.models.adapter import (
    AdaptedWeight,
    AdapterSpec,
    check_names,
    merged,
    shapes_of,
    targets_of,
)

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
#: What PEFT puts before the names of modules.
PREFIX = "base_model.model."


def save(
    path: Path,
    tensors: Mapping[str, Tensor],
    targets: Sequence[AdaptedWeight],
    spec: AdapterSpec,
    model: str,
) -> None:
    """Write an adapter of the model in this directory, or of this hub id."""
    out = {name: tensor.contiguous() for name, tensor in to_peft(tensors, targets).items()}
    save_file(out, path / WEIGHTS_FILE, metadata={"format": "pt"})
    (path / CONFIG_FILE).write_text(json.dumps(_config(targets, spec, model), indent=2) + "\n")


def _config(targets: Sequence[AdaptedWeight], spec: AdapterSpec, model: str) -> dict[str, Any]:
    experts = sorted({".".join(t.weight.split(".")[-2:]) for t in targets if len(t.shape) == 3})
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted({t.home.split(".")[-1] for t in targets if len(t.shape) == 2}),
        "target_parameters": experts or None,
    }


def to_peft(tensors: Mapping[str, Tensor], targets: Sequence[AdaptedWeight]) -> dict[str, Tensor]:
    """The tensors by PEFT's names. It stores the experts of a layer in two matrices, and nests the
    wrappers of several parameters of one module."""
    found: dict[str, Tensor] = {}
    for t in targets:
        a, b = tensors[t.a], tensors[t.b]
        home = PREFIX + t.home
        if len(t.shape) == 3:
            if t.transposed:  # PEFT's A is always next to the input
                a, b = b.mT, a.mT
            home = PREFIX + _nested_home(t, targets)
            a, b = a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)
        found[f"{home}.lora_A.weight"], found[f"{home}.lora_B.weight"] = a, b
    return found


def from_peft(
    stored: Mapping[str, Tensor], targets: Sequence[AdaptedWeight], rank: int
) -> dict[str, Tensor]:
    """The tensors by our names; the inverse of `to_peft`."""
    found: dict[str, Tensor] = {}
    for t in targets:
        nested = len(t.shape) == 3
        home = PREFIX + (_nested_home(t, targets) if nested else t.home)
        a, b = stored.get(f"{home}.lora_A.weight"), stored.get(f"{home}.lora_B.weight")
        if a is None or b is None:
            continue  # `check_names` names what is missing
        if nested:
            experts = t.shape[0]
            a = a.reshape(experts, -1, a.shape[-1])
            b = b.reshape(b.shape[0], -1, experts).permute(2, 0, 1)
            if t.transposed:
                a, b = b.mT, a.mT
        found[t.a], found[t.b] = a.contiguous(), b.contiguous()
    check_names(found, shapes_of(targets, rank))
    return found


def _nested_home(target: AdaptedWeight, targets: Sequence[AdaptedWeight]) -> str:
    module = target.weight.rpartition(".")[0]
    here = [t.weight for t in targets if t.weight.rpartition(".")[0] == module]
    # The first parameter is wrapped first, and the wrapper of the next one contains it.
    depth = len(here) - 1 - here.index(target.weight)
    return module + ".base_layer" * depth


def is_adapter(path: Path) -> bool:
    """Whether a directory holds an adapter."""
    return (path / CONFIG_FILE).is_file()


def load(path: Path, targets: Sequence[AdaptedWeight], rank: int) -> dict[str, Tensor]:
    """The tensors of an adapter, by our names; InputError where they do not fit."""
    try:
        stored = load_file(path / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is no whole checkpoint: {error}") from None
    return from_peft(stored, targets, rank)


@torch.no_grad()
def merge_into(model: Any, path: Path, spec: AdapterSpec) -> None:
    """Replace the adapted weights of a model by the merged ones."""
    targets = targets_of(model, spec)
    tensors, own = load(path, targets, spec.rank), dict(model.named_parameters())
    for t in targets:
        weight = own[t.weight]
        weight.copy_(merged(weight, tensors[t.a], tensors[t.b], spec.scale))
