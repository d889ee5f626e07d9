"""Masters of a model with LoRA adapters: A and B in FP32, and nothing else.

The optimiser sees A and B only. With merged weights the passes see W = base + scale · B A, and the
gradient G of W gives, by the chain rule,

    dA = scale · Bᵀ G        dB = scale · G Aᵀ

Unmerged, autograd computes both (models/adapter.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from scalerl.models.adapter import (
    AdaptedWeight,
    AdapterProbe,
    AdapterSpec,
    Applied,
    apply_adapter,
    freeze,
    initial,
    rehearsal,
    shapes_of,
    targets_of,
)
from scalerl.models.head import accumulation_dtype
from scalerl.trainer.masters import Masters

#: Mean change of a log-prob by the rehearsal, in nats, at most: a larger one amplifies rounding,
#: and where an adapter outweighs its base, norms hide its scale.
MAX_MOVED = 3.0
#: Times that the rehearsal is halved for it, at most.
MAX_HALVINGS = 12


class LowRankMasters(Masters):
    """The masters A and B of a model's adapters, by name."""

    def __init__(
        self, model: nn.Module, spec: AdapterSpec, targets: Sequence[AdaptedWeight] | None = None
    ) -> None:
        self.spec = spec
        self.targets = targets_of(model, spec) if targets is None else targets
        #: Shapes of A and B, by name.
        self.shapes = shapes_of(self.targets, spec.rank)
        freeze(model, self.targets, spec)
        parameters = dict(model.named_parameters())
        self.trained = {name: p for name, p in parameters.items() if p.requires_grad}
        first = next(iter(parameters.values()))
        self.dtype, self.device = accumulation_dtype(first.dtype), first.device
        self.by_name = {
            name: self.part(name, tensor).to(self.device, self.dtype).requires_grad_()
            for name, tensor in initial(self.targets, spec).items()
        }
        #: Adapted parameters whose gradients are too coarse to be summed over micro-batches.
        self.copied = [n for n, p in self.trained.items() if p.dtype != self.dtype]
        self.applied = self._applied(model)
        self.round_into_model()

    def _applied(self, model: nn.Module) -> Applied:
        return apply_adapter(model, self.targets, self.spec)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """The part of a tensor of the adapter that this process has: all of it."""
        return whole

    def whole(self, name: str, part: Tensor) -> Tensor:
        """A tensor of the adapter, or of the optimiser's state of one, from all processes."""
        return part

    def weights(self) -> Mapping[str, Tensor]:
        """All of A and B, by name."""
        return {name: self.whole(name, t.detach()) for name, t in self.by_name.items()}

    def collect(self) -> None:
        if self.copied:
            self._project()

    def complete(self) -> None:
        self._project()

    @torch.no_grad()
    def _project(self) -> None:
        """Turn the gradients of the adapted weights into those of A and B."""
        if not self.trained:
            return
        for t in self.targets:
            weight = self.trained[t.weight]
            if weight.grad is None:
                continue
            gradient = self.rows(weight.grad).to(self.dtype)
            a, b = self.by_name[t.a], self.by_name[t.b]
            _add(a, self.spec.scale * (b.mT @ gradient))
            _add(b, self.spec.scale * (gradient @ a.mT))
            weight.grad = None

    def rows(self, tensor: Tensor) -> Tensor:
        """This process's rows of a weight, or of its gradient: all of them."""
        return tensor

    def round_into_model(self) -> None:
        self.applied.write(self.by_name)

    @contextmanager
    def base(self) -> Iterator[None]:
        """The model computes without its adapter."""
        self.applied.write_base()
        try:
            yield
        finally:
            self.round_into_model()

    @contextmanager
    def rehearsing(self, share: float) -> Iterator[None]:
        """The model computes with the adapter of the proof (`models.adapter.rehearsal`)."""
        parts = {
            name: self.part(name, tensor).to(self.device, self.dtype)
            for name, tensor in rehearsal(self.targets, self.spec, share).items()
        }
        self.applied.write(parts)
        try:
            yield
        finally:
            self.round_into_model()

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue with this adapter."""
        for name, master in self.by_name.items():
            master.copy_(self.part(name, tensors[name]))
        self.round_into_model()


def rehearsed(
    masters: LowRankMasters,
    score: Callable[[], tuple[float, ...]],
    base: tuple[float, ...],
) -> AdapterProbe:
    """The probe with the rehearsal, halved until it leaves log-probs in proportion: how far an
    adapter moves them depends on the depth and the weights of the model."""
    for halvings in range(MAX_HALVINGS):
        share = 0.5**halvings
        with masters.rehearsing(share):
            found = score()
        if sum(abs(a - b) for a, b in zip(found, base, strict=True)) <= MAX_MOVED * len(base):
            break
    return AdapterProbe(base, base, found, share)


def _add(master: Tensor, gradient: Tensor) -> None:
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
