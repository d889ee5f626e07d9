"""The weights that the optimiser steps on: FP32, whatever the model computes in.

BF16 has 8 significant bits: around 0.02 its numbers are 1.2e-4 apart. AdamW moves a weight by about
its learning rate; 0.02 - 5e-7 is rounded to 0.02, in this step and in every other, and nothing is
ever learnt. So a parameter that is not FP32 has a master copy that is: gradients are summed there,
the optimiser steps there, and the sum of many small steps reaches the model once it is large enough
to be rounded up.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalerl.models.head import wide


class Masters:
    """One per trained parameter: the parameter itself where it is FP32 (or wider), else a copy."""

    def __init__(self, model: nn.Module) -> None:
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.by_name = {
            n: p if p.dtype == wide(p.dtype) else p.detach().to(wide(p.dtype)).requires_grad_()
            for n, p in self.trained.items()
        }
        #: Names of the parameters that have a copy.
        self.copied = [n for n, p in self.trained.items() if self.by_name[n] is not p]

    def collect(self) -> None:
        """After a backward pass: add the model's gradients to the masters', in FP32, so that those
        of small micro-batches do not vanish in the sum."""
        for name in self.copied:
            parameter, master = self.trained[name], self.by_name[name]
            if parameter.grad is not None:
                found = parameter.grad.to(master.dtype)
                master.grad = found if master.grad is None else master.grad.add_(found)
                parameter.grad = None

    @torch.no_grad()
    def round_into_model(self) -> None:
        """After an optimiser step: the model's weights are the nearest to the masters."""
        for name in self.copied:
            self.trained[name].copy_(self.by_name[name])

    @torch.no_grad()
    def non_finite(self) -> str | None:
        """The first that is not finite, or so large that its norm is not; None where all are."""
        norms = [torch.linalg.vector_norm(tensor) for tensor in self.by_name.values()]
        wrong = (~torch.stack(norms).isfinite()).nonzero()
        return list(self.by_name)[int(wrong[0])] if len(wrong) else None

    def clear(self) -> None:
        """No gradients, neither here nor in the model."""
        for tensor in (*self.trained.values(), *self.by_name.values()):
            tensor.grad = None

    def tensors(self) -> list[Tensor]:
        return list(self.by_name.values())
