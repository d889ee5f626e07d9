"""Norm, SwiGLU and attention (with its rotary embedding) of the packed pass, in torch, with
backward passes of their own. Each writes the whole gradient of a fused projection at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from scalerl.models.cpu.fuse import turned
from scalerl.models.cpu.packing import PackedRows
from scalerl.models.cpu.shape import LlamaShape


class TorchNorm(torch.autograd.Function):
    """RMSNorm without a weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        size = x.shape[-1]
        inverse = torch.linalg.vecdot(x, x).div_(size).add_(eps).rsqrt_()[..., None]
        y: Tensor = x * inverse
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        y, inverse = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, y).div_(-y.shape[-1])[..., None]
        d_x: Tensor = torch.addcmul(grad, y, along).mul_(inverse)
        return d_x, None


class TorchSwiGLU(torch.autograd.Function):
    """silu(gate) * up of the two halves."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=1)
        bent = F.silu(gate)
        ctx.save_for_backward(gate_up, bent)
        return bent * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        gate_up, bent = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=1)
        out = torch.empty_like(gate_up)
        d_gate, d_up = out.chunk(2, dim=1)
        torch.mul(grad, bent, out=d_up)
        torch.ops.aten.silu_backward(grad * up, gate, grad_input=d_gate)
        return out


class TorchAttention(torch.autograd.Function):
    """Rotary embedding, then attention: prompts attend to themselves, rows to their prompt
    and themselves. Returns N x (heads x size); the scale is in the weights."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, turn_N: Tensor, rows: PackedRows, shape: LlamaShape
    ) -> Tensor:
        size, k_end = shape.size, (shape.heads + shape.kv_heads) * shape.size
        qk_rows = turned(qkv[:, :k_end], turn_N, shape).view(-1, size)
        qkv_rows = qkv.view(-1, size)
        outs, saved = [], [turn_N]
        for block in rows.blocks:
            q = block.gathered(qk_rows, block.q_index, shape)
            k = block.gathered(qk_rows, block.k_index, shape)
            v = block.gathered(qkv_rows, block.v_index, shape)
            p = block.probabilities(q, k)
            outs.append(torch.bmm(p, v).view(-1, size).index_select(0, block.back_index))
            saved += [q, k, v, p]
        ctx.save_for_backward(*saved)
        ctx.rows, ctx.shape = rows, shape
        return torch.cat(outs).view(len(qkv), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        turn_N, *saved = ctx.saved_tensors
        rows, shape = ctx.rows, ctx.shape
        size, heads, kv = shape.size, shape.heads, shape.kv_heads
        whole = torch.zeros(len(grad), (heads + 2 * kv) * size)
        d_qk = torch.zeros(len(grad), heads + kv, size)
        at = 0
        for i, block in enumerate(rows.blocks):
            d_out = grad.view(-1, size).index_select(0, block.out_index).mul_(block.real)
            q, k, v, p = saved[4 * i : 4 * i + 4]
            d_q, d_k, d_v = _gradients(d_out.view(q.shape), q, k, v, p)
            tokens = slice(at, at + len(block.back_index) // heads)
            found = d_q.view(-1, size).index_select(0, block.back_index)
            d_qk[tokens, :heads] = found.view(-1, heads, size)
            # index_add, not a copy: several rows attend to one prompt, and padding (with weight 0)
            # to any token.
            d_qk.view(-1, size).index_add_(0, block.k_index, d_k.view(-1, size))
            whole.view(-1, size).index_add_(0, block.v_index, d_v.view(-1, size))
            at = tokens.stop
        whole[:, : (heads + kv) * size] = turned(d_qk.flatten(1), turn_N.conj(), shape)
        return whole, None, None, None


def _gradients(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    d_p = torch.bmm(d_out, v.transpose(1, 2))
    d_scores = torch.ops.aten._softmax_backward_data(d_p, p, -1, p.dtype)
    return (
        torch.bmm(d_scores, k),
        torch.bmm(d_scores.transpose(1, 2), q),
        torch.bmm(p.transpose(1, 2), d_out),
    )
