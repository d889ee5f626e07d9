"""Checkpoints of an adapter: PEFT's two files, and in `optimiser.safetensors` the optimiser's state
of A and B. They are small, so that one process writes all of them, whatever the number of ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from scalerl.errors import InputError
from scalerl.models import adapter_files
from scalerl.trainer.checkpoint import STATE_FILE
from scalerl.trainer.low_rank import LowRankMasters

#: Largest difference of a log-prob of the base model when a run is resumed: rounding on another
#: machine is far below it, another model far above.
MAX_BASE_GAP = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """What a checkpoint holds, gathered from all ranks."""

    masters: LowRankMasters
    tensors: dict[str, Tensor]
    #: The optimiser's state, named KIND/TENSOR.
    state: dict[str, Tensor]
    #: Directory or hub id of the base model.
    model: str
    version: int
    #: Log-probs of the probe under the base model, which identify it.
    base: tuple[float, ...]


def gather(
    masters: LowRankMasters,
    optimiser: torch.optim.Optimizer,
    *,
    model: str,
    version: int,
    base: tuple[float, ...],
) -> Saved:
    """What is to be saved; with several ranks a collective of all of them."""
    state: dict[str, Tensor] = {}
    found = optimiser.state_dict()["state"]
    for i, (name, shape) in enumerate(masters.shapes.items()):
        for kind, value in found.get(i, {}).items():
            tensor = torch.as_tensor(value)
            whole = masters.whole(name, tensor) if tensor.shape else tensor
            assert not whole.shape or tuple(whole.shape) == shape, (name, kind)
            state[f"{kind}/{name}"] = whole.detach().cpu().contiguous().clone()
    tensors = {name: t.cpu() for name, t in masters.weights().items()}
    return Saved(masters, tensors, state, model, version, base)


def save(path: Path, saved: Saved) -> None:
    """Write a checkpoint."""
    path.mkdir(parents=True, exist_ok=True)
    masters = saved.masters
    adapter_files.save(path, saved.tensors, masters.targets, masters.spec, saved.model)
    save_file(saved.state, path / STATE_FILE)
    about = {"version": saved.version, "base": saved.model, "base_logprobs": saved.base}
    (path / "trainer.json").write_text(json.dumps(about))


def load(
    path: Path,
    masters: LowRankMasters,
    optimiser: torch.optim.Optimizer,
    base: tuple[float, ...],
) -> int:
    """Restore what `save` wrote; returns the version."""
    try:
        about = json.loads((path / "trainer.json").read_text())
        stored = load_file(path / STATE_FILE)
        version = int(about["version"])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(f"{path} is no whole checkpoint: {error}") from None
    gap = max(abs(a - b) for a, b in zip(base, about["base_logprobs"], strict=True))
    if not gap <= MAX_BASE_GAP:
        raise InputError(
            f"{path} is an adapter of {about['base']}, but the model there is another one now: "
            f"its log-probs are {gap:.2g} off; give the model that the run started with"
        )
    masters.load(adapter_files.load(path, masters.targets, masters.spec.rank))
    state: dict[int, dict[str, Tensor]] = {}
    places = {name: i for i, name in enumerate(masters.by_name)}
    for key, value in stored.items():
        kind, _, name = key.partition("/")
        state.setdefault(places[name], {})[kind] = (
            masters.part(name, value) if value.shape else value
        )
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    return version
