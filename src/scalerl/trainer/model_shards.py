"""Writing of a sharded model in Hugging Face layout, file by file: rank 0 holds the tensors of one
file at a time, and never the whole model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from scalerl.models.model_files import CONFIG, INDEX, WEIGHTS, read_weight_files
from scalerl.trainer.interface import TrainerSpec

#: Bytes of a file, at most; a single larger tensor is a file of its own.
FILE_BYTES = 2 << 30


def plan_files(sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """The names of the tensors in each file, in order.

    >>> plan_files({"a": 1 << 30, "b": 1 << 30, "c": 3 << 30}).values()
    dict_values([['a', 'b'], ['c']])
    """
    groups: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if groups[-1] and held + size > FILE_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    if len(groups) == 1:
        return {WEIGHTS: groups[0]}
    stem = WEIGHTS.removesuffix(".safetensors")
    count = len(groups)
    return {f"{stem}-{i:05d}-of-{count:05d}.safetensors": g for i, g in enumerate(groups, 1)}


def stored_alike(spec: TrainerSpec, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the model that training started with is stored under the names and shapes of its
    parameters. (Transformers stores the experts of a mixture one by one, and copies the code of a
    model that brings its own.)"""
    if spec.trust_remote_code:
        return False
    folder = _folder_of(spec.model)
    weights = None if folder is None else read_weight_files(folder)
    return weights is not None and all(weights.shapes.get(n) == s for n, s in shapes.items())


def _folder_of(model: str) -> Path | None:
    """The directory of a model, also of one from the hub."""
    if Path(model).is_dir():
        return Path(model)
    from transformers.utils import cached_file

    found = cached_file(model, CONFIG, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found).parent


def write_files(
    path: Path,
    weights: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    attempt: Callable[[Callable[[], None]], None] | None,
) -> None:
    """Write the weights, which are gathered as they are read; `attempt` runs what writes, and is
    None on ranks that only take part in gathering."""
    files = plan_files(sizes)
    for file, names in files.items():
        held: dict[str, Tensor] = {}
        for name in names:
            tensor = weights[name]
            if attempt is not None:
                held[name] = tensor.cpu().contiguous()
        if attempt is not None:
            target = path / file
            attempt(lambda held=held, to=target: save_file(held, to, metadata={"format": "pt"}))  # type: ignore[misc]
    if attempt is not None and len(files) > 1:
        index: dict[str, Any] = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": {name: file for file, names in files.items() for name in names},
        }
        attempt(lambda: _write_index(path, index))


def _write_index(path: Path, index: dict[str, Any]) -> None:
    (path / INDEX).write_text(json.dumps(index, indent=2))
