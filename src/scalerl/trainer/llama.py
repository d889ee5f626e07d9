"""Training of Llama-shaped models on a CPU: the same log-probs and gradients as the model's own
forward pass, to rounding, in less time (benchmarks/profile_step.py).

- The rollouts of a group share their prompt: it is computed once for those in a micro-batch, and
  their tokens attend to it. The last token of a rollout predicts nothing and is not computed.
- Tokens are packed: products and norms see no padding; only attention, whose share is small at
  these lengths, works on padded rows.
- Norm, rotary embedding with attention, and SwiGLU each have a backward pass of their own, which
  writes the whole gradient of a fused projection at once. Autograd does the rest.
- Weights are fused (query-key-value, gate-up) once per step; the gradient of the fused weights is
  summed over the micro-batches and passed on to the model's parameters once.

Attention keeps its probabilities for the backward pass, which grows with the square of the length:
beyond `LONGEST` tokens the model's own forward pass is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from scalerl.algorithm.llama import MASKED, Shape, interleaved
from scalerl.algorithm.logits import final_hidden

TokenIds = npt.NDArray[np.int64]

#: Prompt plus completion. The kept probabilities of a micro-batch of this length are 4 bytes x
#: heads x layers x tokens x 512: still small beside what a CPU has.
LONGEST = 512
#: Tokens of a micro-batch, at most: its activations should stay in a core's cache (2048 x 256 x 4
#: bytes are 2 MiB), and Python's share be small. A guess from that, not the best of a search.
BUDGET = 2048


def groups_of(
    prompts: Sequence[TokenIds], completions: Sequence[TokenIds], budget: int
) -> list[list[int]]:
    """Rows in micro-batches of about `budget` tokens, those with one prompt side by side."""
    by_prompt: dict[bytes, list[int]] = {}
    for i, prompt in enumerate(prompts):
        by_prompt.setdefault(prompt.tobytes(), []).append(i)
    out: list[list[int]] = []
    tokens = 0
    for rows in by_prompt.values():
        shared = len(prompts[rows[0]])
        for at, i in enumerate(rows):
            more = len(completions[i]) + (shared if at == 0 else 0)
            if out and tokens + more <= budget:
                out[-1].append(i)
                tokens += more
            else:
                out.append([i])
                tokens = shared + len(completions[i])
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows of attention: which tokens' heads are its queries, keys and values. Everything is
    indexed by head, in rows of `size` numbers: one gather makes what the products need."""

    #: (row, kv head, query of it, column) -> head among a token's queries and keys; and the same
    #: -> head among its outputs.
    q_index: Tensor
    out_index: Tensor
    #: (row, kv head, key) -> head among queries and keys, and among queries, keys and values.
    k_index: Tensor
    v_index: Tensor
    #: (token, head) -> where its output is.
    back_index: Tensor
    #: 0 for padding, in the order of q_index.
    real: Tensor
    mask: Tensor
    #: Rows, columns, keys.
    shape: tuple[int, int, int]

    @staticmethod
    def of(
        query_RT: npt.NDArray[Any],
        real_RT: npt.NDArray[np.bool_],
        key_RS: npt.NDArray[Any],
        mask: Tensor,
        shape: Shape,
    ) -> Block:
        """Of tokens that ask, tokens that are looked at, and what is added to their scores."""
        R, T = query_RT.shape
        S = key_RS.shape[1]
        kv, group = shape.kv_heads, shape.heads // shape.kv_heads
        head = np.arange(shape.heads).reshape(1, kv, group, 1)
        key_head = shape.heads + np.arange(kv)[:, None]
        token, key = query_RT[:, None, None, :], key_RS[:, None, :]
        flat = np.arange(R * shape.heads * T).reshape(R, kv, group, T)
        back = flat.transpose(0, 3, 1, 2).reshape(R, T, shape.heads)[real_RT]
        to = torch.from_numpy
        return Block(
            q_index=to((token * (shape.heads + kv) + head).ravel()),
            out_index=to((token * shape.heads + head).ravel()),
            k_index=to((key * (shape.heads + kv) + key_head).ravel()),
            v_index=to((key * (shape.heads + 2 * kv) + key_head + kv).ravel()),
            back_index=to(back.ravel()),
            real=to(real_RT).float()[:, None].expand(R, shape.heads, T).reshape(-1, 1),
            mask=mask,
            shape=(R, T, S),
        )

    def queries(self, heads: Tensor, index: Tensor, shape: Shape) -> Tensor:
        return heads.index_select(0, index).view(self.shape[0] * shape.kv_heads, -1, shape.size)

    def probabilities(self, q: Tensor, k: Tensor) -> Tensor:
        R, T, S = self.shape
        scores = torch.bmm(q, k.transpose(1, 2))
        scores.view(R, -1, T, S).add_(self.mask)
        return scores.softmax(dim=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the tokens of a micro-batch are. Tokens N: G prompts padded to P, then those of the R
    completions (without the last of each), one after the other. For attention, completions are
    padded to T columns and have S = P + T keys: their prompt's and their own."""

    ids_N: Tensor
    position_N: Tensor
    blocks: tuple[Block, ...]
    #: Of every completion token, in order: which hidden state predicts it, the token, row, column.
    source_M: Tensor
    target_M: Tensor
    place_M: tuple[Tensor, Tensor]

    @staticmethod
    def of(prompts: Sequence[TokenIds], completions: Sequence[TokenIds], shape: Shape) -> Layout:
        """Of rows with these prompts and completions."""
        index = {p: i for i, p in enumerate(dict.fromkeys(p.tobytes() for p in prompts))}
        which = np.array([index[p.tobytes()] for p in prompts])
        shared = [np.frombuffer(p, dtype=prompts[0].dtype) for p in index]
        sizes = np.array([len(p) for p in shared])
        lengths = np.array([len(c) for c in completions])
        inner = np.maximum(lengths - 1, 0)
        G, P, R, T = len(shared), int(sizes.max()), len(prompts), int(inner.max())
        prompt_ids = np.zeros((G, P), dtype=np.int64)
        for i, p in enumerate(shared):
            prompt_ids[i, : len(p)] = p
        targets = np.concatenate(completions)
        (row_M, column_M), (row_C, column_C) = _places(lengths), _places(inner)
        first = G * P + np.cumsum(inner) - inner
        before = sizes[which]
        source = np.where(
            column_M == 0, which[row_M] * P + before[row_M] - 1, first[row_M] + column_M - 1
        )
        prompt_GP = np.arange(G * P).reshape(G, P)
        own_RT = np.zeros((R, T), dtype=np.int64)
        own_RT[row_C, column_C] = np.arange(G * P, G * P + len(row_C))
        causal = torch.ones(max(P, T), max(P, T), dtype=torch.bool).triu(1).float().mul_(MASKED)
        blocks = [Block.of(prompt_GP, np.ones((G, P), bool), prompt_GP, causal[:P, :P], shape)]
        if T:
            to_prompt = np.where(np.arange(P) >= before[:, None], np.float32(MASKED), 0)
            mask = np.empty((R, 1, T, P + T), dtype=np.float32)
            mask[..., :P], mask[..., P:] = to_prompt[:, None, None], causal[:T, :T].numpy()
            real_RT = np.arange(T) < inner[:, None]
            keys = np.concatenate([prompt_GP[which], own_RT], axis=1)
            blocks.append(Block.of(own_RT, real_RT, keys, torch.from_numpy(mask), shape))
        position = [np.tile(np.arange(P), G), before[row_C] + column_C]
        to = torch.from_numpy
        return Layout(
            ids_N=to(np.concatenate([prompt_ids.ravel(), targets[column_M < inner[row_M]]])),
            position_N=to(np.concatenate(position)),
            blocks=tuple(blocks),
            source_M=to(source),
            target_M=to(targets),
            place_M=(to(row_M), to(column_M)),
        )


def _places(lengths: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """(row, column) of every token of rows of these lengths."""
    row = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths
    return row, np.arange(len(row)) - starts[row]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Fused weights of one layer, or their gradients."""

    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    down: Tensor

    def tensors(self) -> list[Tensor]:
        every = (self.qkv, self.qkv_bias, self.qk_norm, self.out, self.out_bias, self.gate_up,
                 self.down)  # fmt: skip
        return [t for t in every if t is not None]

    def leaf(self) -> Layer:
        """Cut off from what it was made of."""
        cut: dict[str, Any] = {n: getattr(self, n) for n in self.__dataclass_fields__}
        leaves: dict[str, Any] = {
            n: None if t is None else t.detach().requires_grad_() for n, t in cut.items()
        }
        return Layer(**leaves)


class LlamaBody:
    """The hidden states of a Llama-shaped model, for packed rows with shared prompts."""

    @staticmethod
    def of(model: nn.Module) -> LlamaBody | None:
        """None for a model that must go through its own forward pass."""
        shape = Shape.of(model)
        lm: Any = model
        if (
            shape is None
            or next(model.parameters()).device.type != "cpu"
            or bool(getattr(lm.config, "attention_dropout", 0))
            or getattr(lm, "is_gradient_checkpointing", False)
            or not all(p.requires_grad for p in model.parameters())
        ):
            return None
        found = LlamaBody(model, shape)
        return found if found._agrees() else None

    def __init__(self, model: nn.Module, shape: Shape) -> None:
        self.model: Any = model
        self.shape = shape
        #: During a step only.
        self.layers: list[Layer] = []
        half = shape.size // 2
        lm: Any = model
        with torch.no_grad():
            cos, sin = lm.model.rotary_emb(torch.zeros(1), torch.arange(LONGEST)[None])
        self.rotation = torch.complex(cos[0, :, :half], sin[0, :, :half])[:, None]

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """For one step: weights are fused once, at the beginning, and the gradients summed since
        are given to the model's parameters at the end. Weights must not change meanwhile."""
        whole = self._fused()
        self.layers = [layer.leaf() for layer in whole]
        try:
            yield
            pairs = [
                (fused, leaf.grad)
                for ours, cut in zip(whole, self.layers, strict=True)
                for fused, leaf in zip(ours.tensors(), cut.tensors(), strict=True)
                if leaf.grad is not None
            ]
            if pairs:
                torch.autograd.backward([f for f, _ in pairs], [g for _, g in pairs])
        finally:
            self.layers = []

    def _fused(self) -> list[Layer]:
        return [self._layer(block) for block in self.model.model.layers]

    def hidden(self, layout: Layout) -> Tensor:
        """The hidden states N x D that the head is given."""
        shape = self.shape
        x_ND = F.embedding(layout.ids_N, self.model.model.embed_tokens.weight)
        turn_N = self.rotation[layout.position_N]
        for w in self.layers or self._fused():
            qkv = F.linear(_norm(x_ND, shape.eps), w.qkv, w.qkv_bias)
            if w.qk_norm is not None:
                qkv = self._normed_heads(qkv, w.qk_norm)
            x_ND = torch.addmm(x_ND, _attend(qkv, turn_N, layout, shape), w.out.t())
            if w.out_bias is not None:
                x_ND = x_ND + w.out_bias
            gate_up = F.linear(_norm(x_ND, shape.eps), w.gate_up)
            x_ND = torch.addmm(x_ND, _swiglu(gate_up), w.down.t())
        weight: Tensor = self.model.model.norm.weight
        return _norm(x_ND, shape.eps) * weight

    def _normed_heads(self, qkv: Tensor, weight: Tensor) -> Tensor:
        """Qwen3 norms each head's queries and keys."""
        end = weight.numel()
        heads = qkv[:, :end].reshape(len(qkv), -1, self.shape.size)
        return torch.cat([(_norm(heads, self.shape.eps) * weight).flatten(1), qkv[:, end:]], dim=1)

    def _layer(self, block: Any) -> Layer:
        attention, mlp, shape = block.self_attn, block.mlp, self.shape
        before, after = block.input_layernorm.weight, block.post_attention_layernorm.weight
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
        normed = getattr(attention, "q_norm", None) is not None
        scale = 1.0 if normed else shape.size**-0.5

        def turned(weight: Tensor) -> Tensor:
            return interleaved(weight, shape.size)

        qk_norm = None
        if normed:
            qk_norm = torch.cat(
                [
                    turned(attention.q_norm.weight * shape.size**-0.5).expand(shape.heads, -1),
                    turned(attention.k_norm.weight).expand(shape.kv_heads, -1),
                ]
            )
        return Layer(
            qkv=torch.cat([turned(q.weight) * scale, turned(k.weight), v.weight]) * before,
            qkv_bias=None
            if q.bias is None
            else torch.cat([turned(q.bias) * scale, turned(k.bias), v.bias]),
            qk_norm=qk_norm,
            out=attention.o_proj.weight,
            out_bias=attention.o_proj.bias,
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * after,
            down=mlp.down_proj.weight,
        )

    @torch.no_grad()
    def _agrees(self) -> bool:
        """Whether the hidden states are the model's own, for rows with and without company."""
        words = self.model.get_input_embeddings().weight.shape[0]
        ids = (np.arange(1, 12) * 7) % words
        prompts, completions = [ids[:3], ids[:3], ids[:1]], [ids[3:7], ids[7:9], ids[5:9]]
        layout = Layout.of(prompts, completions, self.shape)
        ours = self.hidden(layout)[layout.source_M]
        theirs = []
        for p, c in zip(prompts, completions, strict=True):
            row = torch.from_numpy(np.concatenate([p, c]))[None]
            theirs.append(final_hidden(self.model, row)[0, len(p) - 1 : -1])
        expected = torch.cat(theirs)
        return bool((ours - expected).abs().max() <= 1e-4 * expected.abs().max().clamp(min=1.0))


def _norm(x: Tensor, eps: float) -> Tensor:
    """RMSNorm without a weight."""
    return cast(Tensor, _Norm.apply(x, eps))  # type: ignore[no-untyped-call]


class _Norm(torch.autograd.Function):
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


def _swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of the two halves."""
    return cast(Tensor, _SwiGLU.apply(gate_up))  # type: ignore[no-untyped-call]


class _SwiGLU(torch.autograd.Function):
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


def _attend(qkv: Tensor, turn_N: Tensor, layout: Layout, shape: Shape) -> Tensor:
    """Rotary embedding, then attention: prompts look at themselves, completions at their prompt and
    themselves. N x (heads x size); the scale is in the weights."""
    return cast(Tensor, _Attention.apply(qkv, turn_N, layout, shape))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, turn_N: Tensor, layout: Layout, shape: Shape) -> Tensor:
        size, k_end = shape.size, (shape.heads + shape.kv_heads) * shape.size
        qk_rows = _turned(qkv[:, :k_end], turn_N, shape).view(-1, size)
        qkv_rows = qkv.view(-1, size)
        outs, saved = [], [turn_N]
        for block in layout.blocks:
            q = block.queries(qk_rows, block.q_index, shape)
            k = block.queries(qk_rows, block.k_index, shape)
            v = block.queries(qkv_rows, block.v_index, shape)
            p = block.probabilities(q, k)
            outs.append(torch.bmm(p, v).view(-1, size).index_select(0, block.back_index))
            saved += [q, k, v, p]
        ctx.save_for_backward(*saved)
        ctx.layout, ctx.shape = layout, shape
        return torch.cat(outs).view(len(qkv), -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        turn_N, *saved = ctx.saved_tensors
        layout, shape = ctx.layout, ctx.shape
        size, heads, kv = shape.size, shape.heads, shape.kv_heads
        whole = torch.zeros(len(grad), (heads + 2 * kv) * size)
        d_qk = torch.zeros(len(grad), heads + kv, size)
        at = 0
        for i, block in enumerate(layout.blocks):
            d_out = grad.view(-1, size).index_select(0, block.out_index).mul_(block.real)
            q, k, v, p = saved[4 * i : 4 * i + 4]
            d_q, d_k, d_v = _gradients(d_out.view(q.shape), q, k, v, p)
            tokens = slice(at, at + len(block.back_index) // heads)
            found = d_q.view(-1, size).index_select(0, block.back_index)
            d_qk[tokens, :heads] = found.view(-1, heads, size)
            # Several rows look at one prompt, and padding (of no weight) at any token.
            d_qk.view(-1, size).index_add_(0, block.k_index, d_k.view(-1, size))
            whole.view(-1, size).index_add_(0, block.v_index, d_v.view(-1, size))
            at = tokens.stop
        whole[:, : (heads + kv) * size] = _turned(d_qk.flatten(1), turn_N.conj(), shape)
        return whole, None, None, None


def _turned(x: Tensor, turn_N: Tensor, shape: Shape) -> Tensor:
    """The rotary embedding of queries and keys whose pairs lie side by side."""
    pairs = torch.view_as_complex(x.view(len(x), -1, shape.size // 2, 2))
    return torch.view_as_real(pairs * turn_N).flatten(1)


def _gradients(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of queries, keys and values."""
    d_p = torch.bmm(d_out, v.transpose(1, 2))
    d_scores = torch.ops.aten._softmax_backward_data(d_p, p, -1, p.dtype)
    return (
        torch.bmm(d_scores, k),
        torch.bmm(d_scores.transpose(1, 2), q),
        torch.bmm(p.transpose(1, 2), d_out),
    )
