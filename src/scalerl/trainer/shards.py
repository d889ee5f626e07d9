"""Checkpoints of a sharded trainer: each rank writes its rows of master weights and optimiser
state, and rank 0 also writes the model in Hugging Face layout. Any number of ranks can read them,
and so can the trainer of one process: rows are concatenated in the order of the ranks that wrote
them."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from scalerl.errors import InputError
from scalerl.models.meta_model import meta_model
from scalerl.trainer.checkpoint import MASTER, StateFiles, load_weights, shard_name
from scalerl.trainer.interface import TrainerSpec
from scalerl.trainer.model_shards import stored_alike, write_files
from scalerl.trainer.sharding import ShardedModel, shard_range


def save(
    path: Path,
    spec: TrainerSpec,
    sharded: ShardedModel,
    optimiser: torch.optim.Optimizer,
    version: int,
) -> None:
    """Write a checkpoint. Returns once all ranks have written; raises OSError on all ranks if one
    of them could not."""
    if sharded.rank == 0:
        path.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    problem = _try(lambda: _write_shard(path, sharded, optimiser), path, sharded.rank)

    def attempt(write: Callable[[], None]) -> None:
        nonlocal problem
        problem = problem or _try(write, path, 0)

    # All ranks must gather every tensor, also where writing the shard failed; only rank 0 keeps it.
    first = attempt if sharded.rank == 0 else None
    shapes = {name: tuple(p.shape) for name, p in sharded.parameters().items()}
    if stored_alike(spec, shapes):
        sizes = {name: math.prod(s) * sharded.compute.itemsize for name, s in shapes.items()}
        write_files(path, sharded.weights(), sizes, first)
        whole = None
    else:
        whole = {n: t.cpu().contiguous() for n, t in sharded.weights().items() if first is not None}
    if first is not None:
        first(lambda: _write_model(path, spec, whole, version))
    _raise_on_all(problem)


def write_on_rank0(path: Path, write: Callable[[], None]) -> None:
    """Let rank 0 write into a directory; raises OSError on all ranks if it could not."""
    rank = dist.get_rank()
    _raise_on_all(_try(write, path, 0) if rank == 0 else None)


def _raise_on_all(problem: str | None) -> None:
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    first = next((p for p in problems if p is not None), None)
    if first is not None:
        raise OSError(first)


def _try(write: Any, path: Path, rank: int) -> str | None:
    """The problem of writing, as one line; None without one. An error is returned and not raised,
    because the other ranks wait in a collective."""
    if not path.is_dir():
        return (
            f"rank {rank} of the trainer, on {socket.gethostname()}, does not see {path}: a run "
            "over several machines needs a directory that all of them share"
        )
    try:
        write()
    except (OSError, SafetensorError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _write_shard(path: Path, sharded: ShardedModel, optimiser: torch.optim.Optimizer) -> None:
    tensors: dict[str, Tensor] = {}
    state = optimiser.state_dict()["state"]
    for i, (name, parameter) in enumerate(sharded.parameters().items()):
        tensors[f"{MASTER}/{name}"] = parameter.to_local().detach()
        for key, value in state.get(i, {}).items():
            if isinstance(value, DTensor):
                tensors[f"{key}/{name}"] = value.to_local()
            elif sharded.rank == 0:
                tensors[f"{key}/{name}"] = torch.as_tensor(value)
    save_file(
        {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()},
        path / shard_name(sharded.rank, sharded.ranks),
    )


def _write_model(
    path: Path, spec: TrainerSpec, whole: dict[str, Tensor] | None, version: int
) -> None:
    """Write the model's config, and its weights unless they are written already."""
    shape = meta_model(spec.model, spec.dtype, trust_remote_code=spec.trust_remote_code)
    if whole is None:
        shape.config.architectures = [type(shape).__name__]
        shape.config.dtype = spec.dtype
        shape.config.save_pretrained(path)
        if shape.can_generate():
            shape.generation_config.save_pretrained(path)
    else:
        shape.save_pretrained(path, state_dict=whole)
    (path / "trainer.json").write_text(json.dumps({"version": version}))


def load(
    path: Path, spec: TrainerSpec, sharded: ShardedModel, optimiser: torch.optim.Optimizer
) -> int:
    """Restore what `save`, or the trainer of one process, wrote; returns the version."""
    files = StateFiles(path)
    whole: dict[str, Tensor] = {}
    # A trainer of one process stores no masters of an FP32 model: they are the weights.
    if sharded.rank == 0 and not files.has(MASTER):
        model = meta_model(spec.model, spec.dtype, trust_remote_code=spec.trust_remote_code)
        whole = load_weights(path, model)
    state: dict[int, dict[str, Any]] = {}
    with torch.no_grad():
        for i, (name, parameter) in enumerate(sharded.parameters().items()):
            mine = parameter.to_local()
            start, stop = shard_range(parameter.shape[0], sharded.rank, sharded.ranks)
            master = f"{MASTER}/{name}"
            if files.has(MASTER):
                if files.shape(master) != tuple(parameter.shape):
                    raise InputError(f"{path} is a checkpoint of another model")
                mine.copy_(files.rows(master, start, stop))
            else:
                full = torch.empty(parameter.shape, dtype=sharded.dtype, device=mine.device)
                if sharded.rank == 0:
                    full.copy_(whole.pop(name))
                dist.broadcast(full, 0)
                mine.copy_(full[start:stop])
            for kind in files.kinds(name):
                key = f"{kind}/{name}"
                if not files.shape(key):
                    state.setdefault(i, {})[kind] = files.rows(key, 0, 1)
                    continue
                value = torch.zeros_like(parameter)
                cast(DTensor, value).to_local().copy_(files.rows(key, start, stop))
                state.setdefault(i, {})[kind] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    return files.version
