"""Master weights, on which the optimiser steps: FP32, whatever dtype the model computes in.

BF16 has 8 significant bits: around 0.02 its numbers are 1.2e-4 apart. AdamW moves a weight by about
its learning rate; 0.02 - 5e-7 is rounded to 0.02, in this step and in every other, and nothing is
ever learnt. So a parameter that is not FP32 has a master copy that is: gradients are summed there,
the optimiser steps there, and the sum of many small steps reaches the model once it is large enough
to be rounded up.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalerl.models.head import accumulation_dtype


class Masters:
    """A master weight per trained parameter: the parameter itself where it is FP32 (or wider), else
    a copy."""

    def __init__(self, model: nn.Module) -> None:
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.by_name = {
            n: p
            if p.dtype == accumulation_dtype(p.dtype)
            else p.detach().to(accumulation_dtype(p.dtype)).requires_grad_()
            for n, p in self.trained.items()
        }
        #: Names of the parameters that have a copy.
        self.copied = [n for n, p in self.trained.items() if self.by_name[n] is not p]

    def collect(self) -> None:
        """Add the model's gradients to those of the masters after a backward pass. The sum is FP32,
        in which the gradients of small micro-batches do not vanish."""
        for name in self.copied:
            parameter, master = self.trained[name], self.by_name[name]
            if parameter.grad is not None:
                found = parameter.grad.to(master.dtype)
                master.grad = found if master.grad is None else master.grad.add_(found)
                parameter.grad = None

    def complete(self) -> None:
        """Finish the gradient of a batch, once all of its backward passes have been made."""

    @torch.no_grad()
    def round_into_model(self) -> None:
        """Round the masters to the model's dtype and copy them into the model, after a step."""
        for name in self.copied:
            self.trained[name].copy_(self.by_name[name])

    @torch.no_grad()
    def non_finite(self) -> str | None:
        """Name of the first parameter that is not finite, or has a norm that is not; None where all
        are finite."""
        # One norm per tensor and one transfer for all: an element-wise check would make a copy of
        # every weight.
        norms = [torch.linalg.vector_norm(tensor) for tensor in self.by_name.values()]
        wrong = (~torch.stack(norms).isfinite()).nonzero()
        return list(self.by_name)[int(wrong[0])] if len(wrong) else None

    def clear(self) -> None:
        """Drop all gradients, of the masters and of the model."""
        for tensor in (*self.trained.values(), *self.by_name.values()):
            tensor.grad = None

    def tensors(self) -> list[Tensor]:
        return list(self.by_name.values())
