"""Sampling tokens reproducibly: one random number per rollout and position, from its seed alone.

A rollout does not depend on the other rollouts of its batch, so that it can be repeated, and
continued after an interruption, by itself.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from scalerl.engine.noise import quantiles, with_noise
from scalerl.engine.random_bits import uniform
from scalerl.errors import PipelineError
from scalerl.models.cpu.library import library

__all__ = [
    "DrawSettings",
    "NonFiniteLogits",
    "draw",
    "draw_from_seeds",
    "sample",
    "uniform",
]


@dataclass(frozen=True, slots=True, eq=False)
class DrawSettings:
    """The sampling settings of a batch. Made when rows are added or removed, so that the flags are
    computed then and not at every token."""

    temperature_B: Tensor
    top_p_B: Tensor
    top_k_B: Tensor
    #: Whether any row is greedy.
    greedy: bool
    #: Whether any row has a temperature other than 1.
    heated: bool
    #: Whether any row uses top-p or top-k.
    truncated: bool
    #: Standard deviation of the noise on each row's logits; None where no row has any.
    noise_B: Tensor | None = None

    @staticmethod
    def from_tensors(
        temperature_B: Tensor, top_p_B: Tensor, top_k_B: Tensor, noise_B: Tensor | None = None
    ) -> DrawSettings:
        """The settings of a batch, with their flags."""
        return DrawSettings(
            temperature_B,
            top_p_B,
            top_k_B,
            greedy=bool((temperature_B <= 0).any()),
            heated=bool((temperature_B != 1).any()),
            truncated=bool(((top_p_B < 1) | (top_k_B > 0)).any()),
            noise_B=noise_B if noise_B is not None and bool((noise_B > 0).any()) else None,
        )


class NonFiniteLogits(PipelineError):
    """A logit is NaN or infinite, so that there is no distribution to sample from."""

    def __init__(self, more: str = "") -> None:
        super().__init__(f"the model's logits are not finite (NaN or inf){more}")


def sample(
    logits_BV: Tensor, temperature_B: Tensor, top_p_B: Tensor, top_k_B: Tensor, u_B: Tensor
) -> tuple[Tensor, Tensor]:
    """(tokens, log-probs of these tokens under the distribution sampled from). Temperature 0 is
    greedy."""
    return draw(logits_BV, DrawSettings.from_tensors(temperature_B, top_p_B, top_k_B), u_B)


def draw_from_seeds(
    logits_BV: Tensor, how: DrawSettings, seed_B: Tensor, position_B: Tensor
) -> tuple[Tensor, Tensor]:
    """`draw` with the random numbers (and the noise) of these seeds and positions; in C on a CPU
    without top-p and top-k."""
    lib = library()
    if lib is None or how.truncated or logits_BV.device.type != "cpu":
        if how.noise_B is not None:
            logits_BV = with_noise(logits_BV, how.noise_B, seed_B, position_B)
        return draw(logits_BV, how, uniform(seed_B, position_B))
    logits_BV = logits_BV.float().contiguous()
    rows, words = logits_BV.shape
    token_B, logprob_B = torch.empty(rows, dtype=torch.long), torch.empty(rows)
    # Room for one row of exponentials and one of noisy logits, each filled up to whole vectors.
    work = torch.empty(2 * (words + 64))
    given = (logits_BV, how.temperature_B, seed_B, position_B, token_B, logprob_B, work,
             how.noise_B, None if how.noise_B is None else quantiles())  # fmt: skip
    pointers = (ctypes.c_void_p(None if t is None else t.data_ptr()) for t in given)
    if lib.draw(ctypes.c_int64(rows), ctypes.c_int64(words), *pointers):
        raise NonFiniteLogits
    return token_B, logprob_B


def draw(logits_BV: Tensor, how: DrawSettings, u_B: Tensor) -> tuple[Tensor, Tensor]:
    """Sample a token per row by the uniform numbers u_B; returns (tokens, log-probs)."""
    greedy_B = how.temperature_B <= 0
    scaled_BV = logits_BV.float()
    if how.heated:
        scaled_BV = scaled_BV / torch.where(greedy_B, 1.0, how.temperature_B)[:, None]
    logprobs_BV = torch.log_softmax(scaled_BV, dim=-1)
    if how.truncated:
        logprobs_BV = _truncate(logprobs_BV, how.top_p_B, how.top_k_B)
    cumulative_BV = logprobs_BV.exp().cumsum(dim=-1, dtype=torch.float64)
    # The total may differ from 1 by rounding. The target is scaled to it and kept below it, so that
    # a first token with a cumulative sum above the target exists, with a probability above 0.
    total_B = cumulative_BV[:, -1]
    if not bool(total_B.isfinite().all()):
        raise NonFiniteLogits
    target_B = torch.minimum(u_B * total_B, total_B * (1 - 2.0**-52))
    token_B1 = torch.searchsorted(cumulative_BV, target_B[:, None], right=True)
    if how.greedy:
        token_B1 = torch.where(greedy_B[:, None], logits_BV.argmax(-1, keepdim=True), token_B1)
    logprob_B = logprobs_BV.gather(1, token_B1)[:, 0]
    if how.greedy:
        logprob_B = torch.where(greedy_B, 0.0, logprob_B)
    return token_B1[:, 0], logprob_B


def _truncate(logprobs_BV: Tensor, top_p_B: Tensor, top_k_B: Tensor) -> Tensor:
    """Keep the top k tokens, then the smallest set of those with probability top_p; renormalise."""
    ordered_BV, index_BV = logprobs_BV.sort(dim=-1, descending=True)
    rank_V = torch.arange(ordered_BV.shape[-1], device=ordered_BV.device)
    k_B1 = torch.where(top_k_B > 0, top_k_B, ordered_BV.shape[-1])[:, None]
    kept_BV = rank_V[None, :] < k_B1
    within_BV = torch.where(kept_BV, ordered_BV, -torch.inf).softmax(dim=-1)
    before_BV = within_BV.cumsum(dim=-1) - within_BV
    kept_BV &= before_BV < top_p_B[:, None]
    kept_BV[:, 0] = True  # also with top_p near 0
    ordered_BV = torch.where(kept_BV, ordered_BV, -torch.inf).log_softmax(dim=-1)
    return torch.empty_like(ordered_BV).scatter_(1, index_BV, ordered_BV)
