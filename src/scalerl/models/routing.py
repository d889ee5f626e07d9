"""Routing replay for mixtures of experts: the sampler records the experts of each token
(`ExpertRecorder`), and the trainer uses the same ones (`ExpertReplay`).

Two passes that differ only by rounding may send a token to different experts where two router
logits are nearly equal, and its log-prob then differs a lot. With replay only the weights of the
chosen experts are computed again, by the trainer's own router.

Every router of Transformers returns (logits, weights, experts) for N tokens. Its weights are the
softmax of the logits over all experts, or normalised over the chosen ones. Which of the two is
found by comparison with the router's own output; a router of another kind is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scalerl.errors import InputError

#: Experts of each token, by layer: (tokens, layers with a router, experts of a token).
Experts = npt.NDArray[np.int16]
#: In place of an expert id: use the trainer's own choice.
OWN = -1
#: Largest difference between a router's weights and ours: above rounding in BF16 (4e-3), far below
#: the difference between the two kinds of weights.
NEAR = 1e-2


def routers_of(model: nn.Module) -> list[nn.Module]:
    """The routers of a mixture, layer by layer; empty for a dense model."""
    return [m for m in model.modules() if type(m).__name__.lower().endswith("router")]


def _routers(model: nn.Module) -> list[nn.Module]:
    found = routers_of(model)
    if not found:
        raise InputError(
            f"precision.routing=replay: no router was found in a {type(model).__name__}; set "
            "precision.routing=own"
        )
    return found


class ExpertRecorder:
    """Records the experts chosen in each forward pass of a model."""

    def __init__(self, model: nn.Module) -> None:
        routers = _routers(model)
        self._chosen: list[Tensor] = [torch.empty(0)] * len(routers)
        for layer, router in enumerate(routers):
            router.register_forward_hook(partial(self._record, layer))

    def _record(self, layer: int, router: nn.Module, given: Any, found: Any) -> None:
        self._chosen[layer] = _experts(router, found)

    def last(self) -> Experts:
        """The experts of the tokens of the last pass, in their order."""
        # Two bytes an expert, since every token of a rollout carries them to the trainer.
        return torch.stack(self._chosen, 1).to(torch.int16).cpu().numpy()


class ExpertReplay:
    """Routes tokens to given experts in each forward pass of a model."""

    def __init__(self, model: nn.Module) -> None:
        routers = _routers(model)
        self.layers = len(routers)
        self._given_NLK: Tensor | None = None
        self._normalised: dict[int, bool] = {}
        for layer, router in enumerate(routers):
            router.register_forward_hook(partial(self._choose, layer))

    def give(self, rows: Sequence[Experts | None], width: int, device: torch.device) -> None:
        """Set the experts of the next passes, for rows padded to `width` tokens. They hold until
        the next call, since a backward pass may compute the forward pass again."""
        there = [r for r in rows if r is not None]
        self._given_NLK = None
        if there:
            shape = (len(rows), width, *there[0].shape[1:])
            given = np.full(shape, OWN, dtype=np.int16)
            for i, row in enumerate(rows):
                if row is not None:
                    given[i, : len(row)] = row
            self._given_NLK = torch.from_numpy(given).to(device, torch.int64).flatten(0, 1)

    def _choose(self, layer: int, router: nn.Module, given: Any, found: Any) -> Any:
        own = _experts(router, found)
        logits, weights, *_ = found
        # Once per layer, on its first pass: the kind of a router does not change.
        if layer not in self._normalised:
            self._normalised[layer] = _is_normalised(router, logits, weights, own)
        if self._given_NLK is None:
            return found
        chosen = self._given_NLK[:, layer]
        if chosen.shape != own.shape:
            raise InputError(
                f"precision.routing=replay: {tuple(chosen.shape)} recorded experts for "
                f"{tuple(own.shape)} of a {type(router).__name__}"
            )
        experts = torch.where(chosen == OWN, own, chosen)
        fresh = _weights(logits, experts, self._normalised[layer])
        return logits, fresh.to(weights.dtype), experts.to(own.dtype)


def _weights(logits: Tensor, experts: Tensor, normalised: bool) -> Tensor:
    # In FP32, as the routers of Transformers compute it.
    found = torch.softmax(logits.float(), -1).gather(-1, experts.long())
    return found / found.sum(-1, keepdim=True) if normalised else found


@torch.no_grad()
def _is_normalised(router: nn.Module, logits: Tensor, weights: Tensor, experts: Tensor) -> bool:
    """Whether a router normalises the weights of the chosen experts, by which of the two kinds its
    own weights are nearer to. Where all experts are chosen both are equal, and the router's setting
    decides."""
    gaps = []
    for normalised in (True, False):
        ours = _weights(logits, experts, normalised).to(weights.dtype)
        gaps.append(float((ours - weights).abs().max()) if ours.shape == weights.shape else np.inf)
    if not min(gaps) <= NEAR:
        raise InputError(_unknown(router))
    if gaps[0] == gaps[1]:
        return bool(getattr(router, "norm_topk_prob", True))
    return gaps[0] < gaps[1]


def _experts(router: nn.Module, found: Any) -> Tensor:
    tensors = isinstance(found, tuple) and len(found) == 3 and isinstance(found[2], Tensor)
    if not tensors or found[2].dim() != 2 or found[2].is_floating_point():
        raise InputError(_unknown(router))
    experts: Tensor = found[2]
    return experts


def _unknown(router: nn.Module) -> str:
    return (
        f"precision.routing=replay does not know how a {type(router).__name__} weighs its experts: "
        "set precision.routing=own"
    )
