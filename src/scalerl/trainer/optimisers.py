"""Optimisers by the names that recipes use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalerl.algorithm.learning_rate import Decay, LearningRate
from scalerl.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimiser:
    """AdamW as the paper has it (section 3.12). It does not state betas and gradient clip: these
    are the usual ones."""

    #: One of OPTIMISERS.
    name: str = "adamw"
    lr: float = 5e-7
    warmup_steps: int = 100
    decay: Decay = "constant"
    decay_start: int = 0
    decay_steps: int = 0
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.01
    eps: float = 1e-15
    betas: tuple[float, float] = (0.9, 0.95)
    #: Largest norm of the gradient; 0 is off.
    grad_clip: float = 1.0

    @property
    def rate(self) -> LearningRate:
        return LearningRate(
            peak=self.lr,
            warmup_steps=self.warmup_steps,
            decay=self.decay,
            decay_start=self.decay_start,
            decay_steps=self.decay_steps,
            min_lr_ratio=self.min_lr_ratio,
        )


#: The parameters are FP32 (masters.py). The trainer sets the learning rate of every step and clips
#: the gradient itself; the optimiser's state must be in its `state_dict`, to go into checkpoints.
OPTIMISERS: Registry[Callable[[Sequence[Tensor], Optimiser], torch.optim.Optimizer]] = Registry(
    "optimiser"
)


def _bare(method: Any) -> Any:
    return getattr(method, "__wrapped__", method)


class QuickAdamW(torch.optim.AdamW):
    """AdamW, whose methods import torch's compiler only to tell it to keep out of them: two seconds
    in every trainer. Here they are as they are underneath."""

    add_param_group = _bare(torch.optim.Optimizer.add_param_group)
    state_dict = _bare(torch.optim.Optimizer.state_dict)
    load_state_dict = _bare(torch.optim.Optimizer.load_state_dict)
    step = torch.no_grad()(_bare(torch.optim.AdamW.step))


@OPTIMISERS.register("adamw")
def adamw(parameters: Sequence[Tensor], settings: Optimiser) -> torch.optim.Optimizer:
    return QuickAdamW(
        parameters,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
