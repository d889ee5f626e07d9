"""Norm, SwiGLU and attention of the packed pass in C (learn.c): the numbers of torch_kernels.py, to
rounding. Each writes the whole gradient of a fused projection at once."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scalerl.models.cpu.library import library
from scalerl.models.cpu.packing import PackedRows
from scalerl.models.cpu.shape import LlamaShape

LONG = ctypes.c_int64


def _at(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _lib() -> ctypes.CDLL:
    found = library()
    assert found is not None, "only used where the library is"
    return found


class CNorm(torch.autograd.Function):
    """RMSNorm without a weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        n = x.shape[-1]
        y, inverse = torch.empty_like(x), torch.empty(x.numel() // n)
        given = (LONG(len(inverse)), LONG(n), ctypes.c_float(eps))
        _lib().norm_forward(*given, _at(x), _at(y), _at(inverse))
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        y, inverse = ctx.saved_tensors
        grad, d_x = grad.contiguous(), torch.empty_like(y)
        given = (LONG(len(inverse)), LONG(y.shape[-1]))
        _lib().norm_backward(*given, _at(y), _at(inverse), _at(grad), _at(d_x))
        return d_x, None


class CSwiGLU(torch.autograd.Function):
    """silu(gate) * up of the two halves."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        rows, n = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, n)
        _lib().swiglu_forward(LONG(rows), LONG(n), _at(gate_up), _at(out))
        ctx.save_for_backward(gate_up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        grad, found = grad.contiguous(), torch.empty_like(gate_up)
        given = (LONG(len(grad)), LONG(grad.shape[1]))
        _lib().swiglu_backward(*given, _at(gate_up), _at(grad), _at(found))
        return found


class _CShape(ctypes.Structure):
    _fields_: ClassVar[Any] = [(n, LONG) for n in ("tokens", "heads", "kv_heads", "size")]


class CAttention(torch.autograd.Function):
    """Rotary embedding, then attention: prompts attend to themselves, rows to their prompt
    and themselves. Returns N x (heads x size); the scale is in the weights."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, turn_N: Tensor, rows: PackedRows, shape: LlamaShape
    ) -> Tensor:
        lib = _lib()
        # Without this, ctypes would cut the result to a C int of 32 bits.
        lib.attention_room.restype = LONG
        qkv, turn_N = qkv.contiguous(), turn_N.contiguous()
        c_shape = _CShape(len(qkv), shape.heads, shape.kv_heads, shape.size)
        spans, kept_size = rows.spans
        most = (int(spans[:, 1].max()), int((spans[:, 1] + spans[:, 3]).max()))
        room = lib.attention_room(ctypes.byref(c_shape), LONG(most[1]), LONG(most[0]))
        turned = torch.empty(len(qkv), (shape.heads + shape.kv_heads) * shape.size)
        kept, out = torch.empty(kept_size), torch.empty(len(qkv), shape.heads * shape.size)
        work = torch.empty(room)
        lib.attention_forward(
            ctypes.byref(c_shape), _at(spans), LONG(len(spans)), _at(qkv), _at(turn_N),
            _at(turned), _at(kept), _at(out), _at(work),
        )  # fmt: skip
        ctx.save_for_backward(qkv, turn_N, turned, kept, spans, work)
        ctx.shape = c_shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        qkv, turn_N, turned, kept, spans, work = ctx.saved_tensors
        grad, found = grad.contiguous(), torch.zeros_like(qkv)
        _lib().attention_backward(
            ctypes.byref(ctx.shape), _at(spans), LONG(len(spans)), _at(qkv), _at(turn_N),
            _at(turned), _at(kept), _at(grad), _at(found), _at(work),
        )  # fmt: skip
        return found, None, None, None
