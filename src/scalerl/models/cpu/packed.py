"""Training passes of Llama-shaped models on a CPU: the log-probs and gradients of the model's own
forward pass, to rounding, in less time (benchmarks/profile_step.py).

- The episodes of a group share their prompt: it is computed once for those in a micro-batch, and
  their tokens attend to it. Products and norms see no padding (models/rows.py).
- Norm, attention and SwiGLU have backward passes of their own (torch_kernels.py; in C, where a
  compiler is, c_kernels.py). Autograd does the rest.
- Weights are fused once per step (fuse.py); the gradient of the fused weights is summed over the
  micro-batches and passed on to the model's parameters once.
- It is summed in N_ACCUMULATORS sums, and these in their order: as many threads may work on a step,
  and no bit of it depends on how many do.

Attention keeps its probabilities for the backward pass, which grows with the square of the length:
beyond `LONGEST` tokens the model's own forward pass is to be used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalerl.models.cpu.c_kernels import CAttention, CNorm, CSwiGLU
from scalerl.models.cpu.fuse import FusedLayer, fuse, leaf, rotation
from scalerl.models.cpu.library import library
from scalerl.models.cpu.packing import PackedRows
from scalerl.models.cpu.shape import LlamaShape, agrees
from scalerl.models.cpu.torch_kernels import TorchAttention, TorchNorm, TorchSwiGLU
from scalerl.models.flat import EXAMPLE, row_by_row
from scalerl.models.rows import FlatRows

#: Tokens of the longest row, its prompt included. The attention probabilities kept for the
#: backward pass are 4 bytes x heads x layers x tokens x 512: still small beside a CPU's memory.
LONGEST = 512
#: Most tokens of a micro-batch: its activations should stay in a core's cache (2048 x 256 x 4 bytes
#: are 2 MiB), and Python's share be small. An estimate, not the best of a search.
BUDGET = 2048


class KernelSet(NamedTuple):
    """The functions that compute norm, SwiGLU and attention."""

    norm: Callable[[Tensor, float], Tensor]
    swiglu: Callable[[Tensor], Tensor]
    attend: Callable[[Tensor, Tensor, PackedRows, LlamaShape], Tensor]


TORCH_KERNELS = KernelSet(TorchNorm.apply, TorchSwiGLU.apply, TorchAttention.apply)
C_KERNELS = KernelSet(CNorm.apply, CSwiGLU.apply, CAttention.apply)

#: Independent gradient accumulators, added in a fixed order so that results do not depend on the
#: number of threads. Each costs one copy of the weights.
N_ACCUMULATORS = 2


@dataclass(frozen=True, slots=True, eq=False)
class PassWeights:
    """The weights of a pass: the model's own, or a detached copy that accumulates gradients."""

    layers: list[FusedLayer]
    embedding: Tensor
    norm: Tensor
    head: Tensor

    def tensors(self) -> list[Tensor]:
        fused = [t for layer in self.layers for t in layer.tensors()]
        return [self.embedding, self.norm, self.head, *fused]

    def accumulator(self) -> PassWeights:
        plain = [leaf(t) for t in (self.embedding, self.norm, self.head)]
        return PassWeights([layer.leaf() for layer in self.layers], *plain)


class PackedLlama:
    """The hidden states of a Llama-shaped model, for packed rows with shared prompts."""

    @staticmethod
    def from_model(model: nn.Module) -> PackedLlama | None:
        """The passes, or None for a model that must use its own forward pass."""
        shape = LlamaShape.from_model(model)
        lm: Any = model
        if (
            shape is None
            or next(model.parameters()).device.type != "cpu"
            or bool(getattr(lm.config, "attention_dropout", 0))
            or getattr(lm, "is_gradient_checkpointing", False)
            or lm.get_output_embeddings().bias is not None
        ):
            return None
        kernel_sets = [TORCH_KERNELS] if library() is None else [C_KERNELS, TORCH_KERNELS]
        found = (PackedLlama(model, shape, kernels) for kernels in kernel_sets)
        return next((made for made in found if made._agrees()), None)

    def __init__(self, model: nn.Module, shape: LlamaShape, kernels: KernelSet) -> None:
        self.model: Any = model
        self.shape = shape
        self.kernels = kernels
        self.rotation = rotation(model, shape, torch.arange(LONGEST))

    @contextmanager
    def accumulating(self) -> Iterator[tuple[PassWeights, ...]]:
        """One optimiser step: weights are fused once at the start, and the gradients summed in the
        accumulators reach the model's parameters at the end. Weights must not change meanwhile."""
        whole = self._weights()
        accumulators = tuple(whole.accumulator() for _ in range(N_ACCUMULATORS))
        yield accumulators
        own, *cuts = (w.tensors() for w in (whole, *accumulators))
        pairs = [(t, _summed(cut)) for t, *cut in zip(own, *cuts, strict=True)]
        # A sum with these gradients: `backward(gradients)` would import sympy, most of a second in
        # every trainer.
        products = [torch.dot(t.flatten(), g.flatten()) for t, g in pairs if g is not None]
        if products:
            torch.stack(products).sum().backward()  # type: ignore[no-untyped-call]

    def _weights(self) -> PassWeights:
        body = self.model.model
        layers = [fuse(block, self.shape) for block in body.layers]
        head = self.model.get_output_embeddings().weight
        return PassWeights(layers, body.embed_tokens.weight, body.norm.weight, head)

    def hidden(self, flat: FlatRows, weights: PassWeights | None = None) -> Tensor:
        """The hidden states F x D that the head takes."""
        shape, (norm, swiglu, attend) = self.shape, self.kernels
        rows = PackedRows(flat, shape)
        weights = weights or self._weights()
        x_FD = F.embedding(flat.ids_F, weights.embedding)
        turn_F = self.rotation[flat.position_F]
        for w in weights.layers:
            qkv = F.linear(norm(x_FD, shape.eps), w.qkv, w.qkv_bias)
            if w.qk_norm is not None:
                qkv = self._normed_heads(qkv, w.qk_norm)
            x_FD = torch.addmm(x_FD, attend(qkv, turn_F, rows, shape), w.out.t())
            if w.out_bias is not None:
                x_FD = x_FD + w.out_bias
            gate_up = F.linear(norm(x_FD, shape.eps), w.gate_up)
            x_FD = torch.addmm(x_FD, swiglu(gate_up), w.down.t())
        return norm(x_FD, shape.eps) * weights.norm

    def _normed_heads(self, qkv: Tensor, weight: Tensor) -> Tensor:
        """Qwen3 norms each head's queries and keys."""
        end = weight.numel()
        heads = qkv[:, :end].reshape(len(qkv), -1, self.shape.size)
        return torch.cat(
            [(self.kernels.norm(heads, self.shape.eps) * weight).flatten(1), qkv[:, end:]], dim=1
        )

    @torch.no_grad()
    def _agrees(self) -> bool:
        """Whether hidden states equal the model's own, row by row."""
        words = self.model.get_input_embeddings().weight.shape[0]
        rows = EXAMPLE.within(words)
        return agrees(self.hidden(rows), row_by_row(self.model, rows))


def _summed(leaves: Sequence[Tensor]) -> Tensor | None:
    """The sum of the accumulators' gradients, in their order; None where none has any."""
    found = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return functools.reduce(torch.add, found) if found else None
