"""Log-probabilities and entropies of given tokens, without the tokens × vocabulary matrix.

For hidden states h_n, targets y_n and temperatures T_n, with logits z_n = head(h_n):

    logprob_n = z_n[y_n] / T_n − log Σ_v exp(z_n[v] / T_n)
    entropy_n = − Σ_v p_n[v] log p_n[v],      p_n = softmax(z_n / T_n)

Both describe the distribution that tokens are sampled from at that temperature: a trainer that uses
the generator's temperature gets the generator's log-probs.

The logits exist one block of C_n tokens × C_v words at a time: the forward pass keeps a running
maximum and running sums per token (online log-sum-exp), the backward pass computes each block again
and turns it into gradients at once. The first blocks, up to `keep` bytes of them, are kept for the
backward pass instead. Beyond inputs and results, with D the width of the model, 4 bytes a number:

    forward   keep + 4 · (3·C_n·C_v + C_v·D + C_n·D + 8·N)
    backward  keep + 4 · (3·C_n·C_v + 2·C_v·D + 2·C_n·D + N·D + 8·N)

Nothing grows with N·V. The price is one more product for what is not kept, 4 instead of 3 of N·V·D
multiply-adds, won back on memory traffic unless D is large: blocks stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scalerl.errors import InputError
from scalerl.models.head import EMULATED, Head, accumulation_dtype, project, rounded

#: Tokens × words of a block on a CPU: 4 MiB stay in the cache. The fastest of those measured by
#: benchmarks/logprobs.py.
CPU_CHUNK = (512, 2048)
#: Tokens × words of a block on a GPU: 128 MiB, enough work to keep it busy (not measured).
GPU_CHUNK = (4096, 8192)

#: Bytes of blocks kept for the backward pass: all of a small batch, 3 % of 8k tokens × 150k words.
KEEP = 128 * 2**20

#: exp(-1e4) is 0 in FP32 and FP64. Keeps 0 · (−inf) out of the entropy where a logit is −inf.
FLOOR = -1e4


def plain_logprobs(
    logits_NV: Tensor, target_N: Tensor, temperature: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies from logits that exist already, as when sampling."""
    logits = logits_NV.to(accumulation_dtype(logits_NV.dtype))
    inverse = _inverse_temperature(temperature, logits)
    if inverse is not None:
        logits = logits * inverse[:, None]
    logp_NV = torch.log_softmax(logits, dim=-1)
    known_NV = logp_NV.detach()
    entropy_N = -torch.linalg.vecdot(known_NV.exp(), known_NV.clamp(min=FLOOR))
    return logp_NV.gather(1, target_N[:, None])[:, 0], entropy_N


@overload
def chunked_logprobs(
    hidden_ND: Tensor, head: Head, target_N: Tensor, temperature: float | Tensor = ...,
    *, with_entropy: Literal[True] = ..., chunk: tuple[int, int] | None = ..., keep: int = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def chunked_logprobs(
    hidden_ND: Tensor, head: Head, target_N: Tensor, temperature: float | Tensor = ...,
    *, with_entropy: bool, chunk: tuple[int, int] | None = ..., keep: int = ...,
) -> tuple[Tensor, Tensor | None]: ...  # fmt: skip
def chunked_logprobs(
    hidden_ND: Tensor,
    head: Head,
    target_N: Tensor,
    temperature: float | Tensor = 1.0,
    *,
    with_entropy: bool = True,
    chunk: tuple[int, int] | None = None,
    keep: int = KEEP,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs (differentiable) and entropies (detached: a diagnostic) of target_N, in FP32.

    `temperature` is one number or one per token; `chunk` is tokens × words of a block,
    `keep` the bytes that may be kept for the backward pass. Gradients reach hidden_ND and the
    head's weight and bias, summed in FP32 and returned in each one's dtype. A token with a log-prob
    that receives no gradient (masked, zero advantage) costs nothing in the backward pass and adds
    nothing to any gradient, even where its log-prob is NaN or infinite. A token with NaN or
    infinite logits has a log-prob of NaN and disturbs no other.
    """
    weight = head.weight
    chunk = chunk or (CPU_CHUNK if hidden_ND.device.type == "cpu" else GPU_CHUNK)
    _check(hidden_ND, weight, target_N, chunk)
    inverse_N = _inverse_temperature(temperature, hidden_ND)
    # With a softcap the backward pass needs the logits themselves.
    keep = keep if torch.is_grad_enabled() and head.softcap is None else 0
    options = (head, with_entropy, chunk, keep)
    with torch.autocast(hidden_ND.device.type, enabled=False):
        logprobs_N, entropy_N = cast(
            tuple[Tensor, Tensor],
            _ChunkedLogProbs.apply(hidden_ND, weight, head.bias, target_N, inverse_N, options),  # type: ignore[no-untyped-call]
        )
    return logprobs_N, entropy_N if with_entropy else None


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        inverse_N: Tensor | None,
        options: tuple[Head, bool, tuple[int, int], int],
    ) -> tuple[Tensor, Tensor]:
        head, with_entropy, (chunk_tokens, chunk_vocab), keep = options
        N, dtype = len(hidden_ND), accumulation_dtype(weight_VD.dtype)
        # One allocation for all kept blocks: allocated one by one between blocks that are freed,
        # they fragmented the heap by as much as they took.
        room = min(keep // dtype.itemsize, N * len(weight_VD)) if any(ctx.needs_input_grad) else 0
        store, used = torch.empty(room, dtype=dtype, device=hidden_ND.device), 0
        kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        # Running maximum m, Σ exp(z − m), Σ exp(z − m)·(z − m) and the target's logit.
        top, total, moment, chosen = (
            torch.full((N,), value, dtype=dtype, device=hidden_ND.device)
            for value in (torch.finfo(dtype).min, 0.0, 0.0, 0.0)
        )
        for words in _chunks(len(weight_VD), chunk_vocab):
            weight, bias = _operands(weight_VD, bias_V, words, head)
            for rows in _chunks(N, chunk_tokens):
                z = _logits(hidden_ND[rows], weight, bias, head)
                if inverse_N is not None:
                    z *= inverse_N[rows, None]
                at, inside = _within(target_N[rows], words)
                chosen[rows] = torch.where(inside, z.gather(1, at[:, None])[:, 0], chosen[rows])
                new_top = torch.maximum(top[rows], z.amax(1))
                drop = (top[rows] - new_top).clamp_(min=FLOOR)
                z.sub_(new_top[:, None])
                fits = used + z.numel() <= room
                slot = store[used : used + z.numel()].view(z.shape) if fits else None
                if with_entropy:
                    z.clamp_(min=FLOOR)
                    weights = torch.exp(z, out=slot)
                    moved = moment[rows] + total[rows] * drop
                    moment[rows] = moved * drop.exp() + torch.linalg.vecdot(weights, z)
                else:
                    weights = torch.exp(z, out=z if slot is None else slot)
                total[rows] = total[rows] * drop.exp() + weights.sum(1)
                top[rows] = new_top
                if fits:
                    used += z.numel()
                    kept[words.start, rows.start] = weights, new_top
        log_total = total.log()
        normaliser = top + log_total
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, target_N, inverse_N, normaliser)
        ctx.options, ctx.kept = options, kept
        entropy_N = log_total - moment / total
        ctx.mark_non_differentiable(entropy_N)
        return chosen - normaliser, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad_N.device.type, enabled=False):
            return (*_gradients(ctx, grad_N), None, None, None)


def _gradients(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of hidden states, weight and bias: block by block, words outermost, so that the
    gradient of a word is summed in FP32 and written once."""
    hidden_ND, weight_VD, bias_V, target_N, inverse_N, normaliser = ctx.saved_tensors
    head, _, (chunk_tokens, chunk_vocab), _ = ctx.options
    to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
    new = {"dtype": normaliser.dtype, "device": normaliser.device}
    slope_N = grad_N * head.scale if inverse_N is None else grad_N * inverse_N * head.scale
    found = [(rows.start, _active(grad_N, rows)) for rows in _chunks(len(grad_N), chunk_tokens)]
    active = [(start, rows) for start, rows in found if isinstance(rows, slice) or len(rows)]

    d_hidden = torch.zeros(hidden_ND.shape if to_hidden else (0,), **new)
    grad_weight_VD = torch.empty_like(weight_VD) if to_weight else None
    grad_bias_V = torch.empty_like(bias_V) if to_bias else None
    for words in _chunks(len(weight_VD), chunk_vocab):
        weight, bias = _operands(weight_VD, bias_V, words, head)
        wide_weight = weight.to(**new)
        d_weight = torch.zeros(weight.shape if to_weight else (0,), **new)
        d_bias = torch.zeros(len(weight), **new)
        for start, rows in active:
            hidden, slope = hidden_ND[rows], slope_N[rows, None]
            # d logprob / d z = (one-hot of the target − p), times what lies behind z.
            bend = None
            if (words.start, start) in ctx.kept:
                weights, top = ctx.kept[words.start, start]
                if isinstance(rows, Tensor):
                    weights, top = weights[rows - start], top[rows - start]
                d_z = weights * (-slope * (top - normaliser[rows]).exp()[:, None])
            else:
                z = _logits(hidden, weight, bias, head)
                if head.softcap is not None:
                    bend = 1 - (z / head.softcap) ** 2
                if inverse_N is not None:
                    z *= inverse_N[rows, None]
                d_z = z.sub_(normaliser[rows, None]).exp_().mul_(-slope)
            at, inside = _within(target_N[rows], words)
            d_z.scatter_add_(1, at[:, None], slope * inside[:, None])
            if bend is not None:
                d_z *= bend
            if to_hidden:
                d_hidden[rows] += d_z @ wide_weight
            if to_weight:
                d_weight.addmm_(d_z.t(), _used(hidden, head, normaliser.dtype))
            if to_bias:
                d_bias += d_z.sum(0)
        if grad_weight_VD is not None:
            grad_weight_VD[words] = d_weight
        if grad_bias_V is not None:
            grad_bias_V[words] = d_bias
    grad_hidden_ND = d_hidden.to(hidden_ND.dtype) if to_hidden else None
    return grad_hidden_ND, grad_weight_VD, grad_bias_V


def _active(grad_N: Tensor, rows: slice) -> slice | Tensor:
    """Which of these rows have a gradient: the slice itself if all have, else their indices."""
    found = grad_N[rows].nonzero()[:, 0]
    return rows if len(found) == rows.stop - rows.start else found + rows.start


def _chunks(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _used(x: Tensor, head: Head, dtype: torch.dtype) -> Tensor:
    """An operand of the head as it enters the product, in `dtype`."""
    return rounded(x, dtype, head.precision) if head.precision in EMULATED else x.to(dtype)


def _operands(
    weight_VD: Tensor, bias_V: Tensor | None, words: slice, head: Head
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of some words, converted once for all tokens."""
    weight, bias = weight_VD[words], None if bias_V is None else bias_V[words]
    if head.precision == "model":
        return weight, bias
    dtype = accumulation_dtype(weight.dtype)
    return _used(weight, head, dtype), None if bias is None else _used(bias, head, dtype)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, head: Head) -> Tensor:
    """One block of `head.logits`, in memory of its own."""
    z = project(hidden, weight, bias, head.precision)
    z = z.to(accumulation_dtype(z.dtype))
    if head.scale != 1.0:
        z *= head.scale
    if head.softcap is not None:
        z.div_(head.softcap).tanh_().mul_(head.softcap)
    return z


def _within(target: Tensor, words: slice) -> tuple[Tensor, Tensor]:
    """Position of each target among the words of a block (clamped), and whether it is there."""
    at = target - words.start
    inside = (at >= 0) & (at < words.stop - words.start)
    return at.clamp_(0, words.stop - words.start - 1), inside


def _inverse_temperature(temperature: float | Tensor, like: Tensor) -> Tensor | None:
    """1 / T per token; None where T is 1 throughout."""
    if isinstance(temperature, Tensor):
        if temperature.shape != like.shape[:1]:
            raise InputError(
                f"temperatures of shape {tuple(temperature.shape)} for {len(like)} tokens: "
                "give one number, or one per token"
            )
        fits = bool((temperature > 0).all()) and bool(temperature.isfinite().all())
        inverse = temperature.detach().to(like.device, accumulation_dtype(like.dtype)).reciprocal()
    else:
        if temperature == 1.0:
            return None
        fits = 0 < temperature < float("inf")
        inverse = torch.full(
            like.shape[:1], 1 / temperature if fits else 0.0,
            dtype=accumulation_dtype(like.dtype), device=like.device,
        )  # fmt: skip
    if not fits:
        raise InputError(
            "a temperature is not above 0 and finite: greedy tokens have no log-prob under a "
            "sampling distribution; give the temperature they were sampled at"
        )
    return inverse


def _check(hidden: Tensor, weight: Tensor, target: Tensor, chunk: tuple[int, int]) -> None:
    if hidden.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise InputError(
            f"hidden states of shape {tuple(hidden.shape)} do not fit a head of width "
            f"{weight.shape[1]}: give tokens × width"
        )
    if target.shape != hidden.shape[:1] or target.dtype != torch.int64:
        raise InputError(
            f"targets of shape {tuple(target.shape)} and type {target.dtype} for {len(hidden)} "
            "tokens: give one int64 token id per hidden state"
        )
    if min(chunk) < 1:
        raise InputError(f"chunk {chunk}: give tokens × words of a block, both at least 1")
    if len(target) and not 0 <= int(target.min()) <= int(target.max()) < len(weight):
        raise InputError(
            f"target ids from {int(target.min())} to {int(target.max())} for a vocabulary of "
            f"{len(weight)}: drop padding such as -100 before asking for log-probs"
        )
