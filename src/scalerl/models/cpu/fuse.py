"""Fused weights of a Llama-shaped layer, for decoding and training.

- Query, key and value are one product, and gate and up projection another.
- The weights of the norms before them, and the attention's scale, are multiplied into the product:
  norms and scores then need no multiplication of their own.
- The rotary embedding is one complex product: the two halves of each head's channels, which rotate
  in pairs (0, s/2), (1, s/2 + 1) ..., are interleaved. Attention is a sum over channels and does
  not depend on their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from scalerl.models.cpu.shape import LlamaShape


@dataclass(frozen=True, slots=True, eq=False)
class FusedLayer:
    """One layer. Weights that fusing does not change are the model's own tensors."""

    qkv: Tensor
    qkv_bias: Tensor | None
    #: (heads + kv heads, size), where queries and keys are normed (Qwen3).
    qk_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    down: Tensor

    def tensors(self) -> list[Tensor]:
        every = (self.qkv, self.qkv_bias, self.qk_norm, self.out, self.out_bias, self.gate_up,
                 self.down)  # fmt: skip
        return [t for t in every if t is not None]

    def leaf(self) -> FusedLayer:
        """A copy detached from the model, in which gradients are summed."""
        whole = {n: getattr(self, n) for n in self.__dataclass_fields__}
        cut: dict[str, Any] = {n: None if t is None else leaf(t) for n, t in whole.items()}
        return FusedLayer(**cut)


def leaf(tensor: Tensor) -> Tensor:
    """The tensor detached from the model; it gets a gradient if the model's does."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def fuse(block: Any, shape: LlamaShape) -> FusedLayer:
    """The fused weights of a layer. Differentiable: gradients reach the model's parameters."""
    attention, mlp = block.self_attn, block.mlp
    before, after = block.input_layernorm.weight, block.post_attention_layernorm.weight
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    scale = shape.size**-0.5
    qk_norm = None
    if getattr(attention, "q_norm", None) is not None:
        # The norm divides out any factor of the projection, so the attention scale goes here.
        q_norm = interleaved(attention.q_norm.weight * scale, shape.size)
        k_norm = interleaved(attention.k_norm.weight, shape.size)
        qk_norm = torch.cat([q_norm.expand(shape.heads, -1), k_norm.expand(shape.kv_heads, -1)])
        scale = 1.0

    def joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([interleaved(q, shape.size) * scale, interleaved(k, shape.size), v])

    return FusedLayer(
        qkv=joined(q.weight, k.weight, v.weight) * before,
        qkv_bias=None if q.bias is None else joined(q.bias, k.bias, v.bias),
        qk_norm=qk_norm,
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * after,
        down=mlp.down_proj.weight,
    )


def interleaved(weight: Tensor, size: int) -> Tensor:
    """
    >>> interleaved(torch.arange(8), size=4).tolist()  # two heads of four channels
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    heads = weight.reshape(-1, 2, size // 2, *weight.shape[1:])
    return heads.transpose(1, 2).reshape(weight.shape)


@torch.no_grad()
def rotation(model: nn.Module, shape: LlamaShape, positions: Tensor) -> Tensor:
    """The rotary embedding as complex numbers (position, 1, size / 2), to multiply the interleaved
    pairs of each head."""
    lm: Any = model
    like = torch.zeros(1, dtype=torch.float32, device=positions.device)
    cos, sin = lm.model.rotary_emb(like, positions[None])
    half = shape.size // 2
    return torch.complex(cos[0, :, :half], sin[0, :, :half])[:, None]


def turned(qk: Tensor, turn_N: Tensor, shape: LlamaShape) -> Tensor:
    """Queries and keys N x (heads x size), rotated by their positions."""
    pairs = torch.view_as_complex(qk.view(len(qk), -1, shape.size // 2, 2))
    return torch.view_as_real(pairs * turn_N).flatten(1)
