"""Checkpoints of a trainer: the model in Hugging Face layout, and in `optimiser.safetensors` the
optimiser's state and the master weights of a model that is not FP32. Every tensor is stored bit for
bit: a resumed run equals the run that was not stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from scalerl.errors import InputError
from scalerl.models.cpu.bare import BareLlama
from scalerl.trainer.masters import Masters

#: Tensors are named KIND/PARAMETER. This kind is the master weights; the other kinds are the
#: optimiser's own (exp_avg, step ...).
MASTER = "master"
#: File of a checkpoint that one process wrote.
STATE_FILE = "optimiser.safetensors"


def save(
    path: Path, model: Any, masters: Masters, optimiser: torch.optim.Optimizer, version: int
) -> None:
    """Write a checkpoint of a trainer of one process."""
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tensors: dict[str, Tensor] = {
        f"{MASTER}/{n}": masters.by_name[n].detach() for n in masters.copied
    }
    state = optimiser.state_dict()["state"]
    for i, name in enumerate(masters.by_name):
        for key, value in state.get(i, {}).items():
            # A copy: safetensors refuses tensors that share memory.
            tensors[f"{key}/{name}"] = torch.as_tensor(value).contiguous().clone()
    save_file(tensors, path / STATE_FILE)
    (path / "trainer.json").write_text(json.dumps({"version": version}))


class StateFiles:
    """Reads master weights and optimiser state: from one file of whole tensors, or from one file
    per rank, each with that rank's rows of every tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.version = int(json.loads((path / "trainer.json").read_text())["version"])
            names = sorted(path.glob(shard_name("*", "*"))) or [path / STATE_FILE]
            self._files = [cast(Any, safe_open)(name, "pt") for name in names]
            written = int(names[0].stem.rpartition("-")[2]) if len(names) > 1 else 1
            if len(names) != written:
                raise ValueError(f"{len(names)} of {written} shards are there")
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise InputError(f"{path} is no whole checkpoint: {error}") from None
        self._keys = [frozenset(file.keys()) for file in self._files]
        #: Kinds of state by parameter name.
        self._kinds: dict[str, list[str]] = {}
        for key in sorted(frozenset[str]().union(*self._keys)):
            kind, _, name = key.partition("/")
            self._kinds.setdefault(name, []).append(kind)

    def has(self, kind: str) -> bool:
        """Whether the checkpoint has any tensor of this kind."""
        return any(kind in kinds for kinds in self._kinds.values())

    def kinds(self, name: str) -> list[str]:
        """Kinds of the optimiser's state of a parameter."""
        return [kind for kind in self._kinds.get(name, []) if kind != MASTER]

    def items(self) -> Iterator[tuple[str, str]]:
        """(kind, parameter) of every tensor."""
        return ((kind, name) for name, kinds in self._kinds.items() for kind in kinds)

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of a whole tensor."""
        shapes = [f.get_slice(key).get_shape() for f in self._having(key)]
        if not shapes:
            raise InputError(f"{self.path} is a checkpoint of another model: it has no {key}")
        return (sum(s[0] for s in shapes), *shapes[0][1:]) if shapes[0] else ()

    def rows(self, key: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows start … stop of a tensor, or all of it; a scalar is returned as it is."""
        files = self._having(key)
        if not self.shape(key):
            return cast(Tensor, files[0].get_tensor(key))
        found, at = [], 0
        for file in files:
            piece = file.get_slice(key)
            size = piece.get_shape()[0]
            end = size if stop is None else min(max(stop - at, 0), size)
            begin = min(max(start - at, 0), end)
            found.append(piece[begin:end])
            at += size
        return torch.cat(found)

    def _having(self, key: str) -> list[Any]:
        return [f for f, keys in zip(self._files, self._keys, strict=True) if key in keys]


def shard_name(rank: int | str, ranks: int | str) -> str:
    """The name of a rank's file.

    >>> shard_name(0, 2)
    'optimiser-00000-of-00002.safetensors'
    """
    places = [f"{n:05d}" if isinstance(n, int) else n for n in (rank, ranks)]
    return f"optimiser-{places[0]}-of-{places[1]}.safetensors"


def load_weights(path: Path, model: Any) -> dict[str, Tensor]:
    """The weights of a checkpoint in Hugging Face layout, in FP32."""
    if isinstance(model, BareLlama):
        return model.weights_in(path)
    try:
        # Read by Transformers, since weights on disk may be split over files, and the experts of a
        # mixture stored one by one. With our config, so that no model of another size is built.
        saved, info = type(model).from_pretrained(
            path,
            config=model.config,
            dtype=torch.float32,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(f"{path} is no whole checkpoint: {error}") from None
    except RuntimeError:  # shapes that do not fit
        raise InputError(f"{path} is a checkpoint of another model") from None
    if info["missing_keys"]:
        raise InputError(f"{path} is a checkpoint of another model")
    return {name: p.detach() for name, p in saved.named_parameters()}


def load(path: Path, model: Any, masters: Masters, optimiser: torch.optim.Optimizer) -> int:
    """Restore what `save`, or a sharded trainer, wrote; returns the version."""
    files = StateFiles(path)
    found = load_weights(path, model)
    state: dict[int, dict[str, Tensor]] = {}
    places = {name: i for i, name in enumerate(masters.by_name)}
    for kind, name in files.items():
        value = files.rows(f"{kind}/{name}")
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
    return files.version
