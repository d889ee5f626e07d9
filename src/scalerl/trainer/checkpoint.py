"""A trainer's state on disk: the model in Hugging Face layout, and beside it, in
`optimiser.safetensors`, the optimiser's state and the master weights of a model that is not FP32.
Every tensor is kept bit for bit: a run that goes on from here is the run that was not stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scalerl.errors import InputError
from scalerl.trainer.masters import Masters

#: Tensors are called KIND/PARAMETER; other kinds are the optimiser's own (exp_avg, step ...).
MASTER = "master"


def save(
    path: Path, model: Any, masters: Masters, optimiser: torch.optim.Optimizer, version: int
) -> None:
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tensors: dict[str, Tensor] = {
        f"{MASTER}/{n}": masters.by_name[n].detach() for n in masters.copied
    }
    state = optimiser.state_dict()["state"]
    for i, name in enumerate(masters.by_name):
        for key, value in state.get(i, {}).items():
            tensors[f"{key}/{name}"] = torch.as_tensor(value).contiguous().clone()
    save_file(tensors, path / "optimiser.safetensors")
    (path / "trainer.json").write_text(json.dumps({"version": version}))


def load(path: Path, model: Any, masters: Masters, optimiser: torch.optim.Optimizer) -> int:
    """Everything `save` wrote, into what is given; the version."""
    try:
        version = int(json.loads((path / "trainer.json").read_text())["version"])
        tensors = load_file(path / "optimiser.safetensors")
        # By Transformers: on disk weights may be in several files, and experts one by one. Ours
        # is the config, so that nothing of another size is ever made.
        saved, info = type(model).from_pretrained(
            path,
            config=model.config,
            dtype=torch.float32,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is no whole checkpoint: {error}") from None
    except RuntimeError:  # shapes that do not fit
        raise InputError(f"{path} is a checkpoint of another model") from None
    if info["missing_keys"]:
        raise InputError(f"{path} is a checkpoint of another model")
    found = dict(saved.named_parameters())
    state: dict[int, dict[str, Tensor]] = {}
    places = {name: i for i, name in enumerate(masters.by_name)}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if kind == MASTER:
            found[name] = value
        else:
            state.setdefault(places[name], {})[kind] = value
    with torch.no_grad():
        for name, ours in model.named_parameters():
            ours.copy_(found[name])
        for name, master in masters.by_name.items():
            master.copy_(found[name])
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    return version
