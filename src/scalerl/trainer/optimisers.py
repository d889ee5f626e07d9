"""Optimisers by the names that recipes use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.registry import Registry

#: Functions of (parameters, settings). The parameters are FP32 (masters.py). The trainer sets the
#: learning rate of every step and clips the gradient itself; checkpoints hold what is in the
#: optimiser's `state_dict`.
OPTIMISERS: Registry[Callable[[Sequence[Tensor], OptimiserSection], torch.optim.Optimizer]] = (
    Registry("optimiser")
)


def _undecorated(method: Any) -> Any:
    return getattr(method, "__wrapped__", method)


class QuickAdamW(torch.optim.AdamW):
    """AdamW without the decorators that exclude its methods from torch.compile: they import torch's
    compiler, which takes two seconds in every trainer."""

    add_param_group = _undecorated(torch.optim.Optimizer.add_param_group)
    state_dict = _undecorated(torch.optim.Optimizer.state_dict)
    load_state_dict = _undecorated(torch.optim.Optimizer.load_state_dict)
    # The decorator of `step` also turns gradients off.
    step = torch.no_grad()(_undecorated(torch.optim.AdamW.step))


@OPTIMISERS.register("adamw")
def adamw(parameters: Sequence[Tensor], settings: OptimiserSection) -> torch.optim.Optimizer:
    """AdamW with the recipe's constants."""
    return QuickAdamW(
        parameters,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
