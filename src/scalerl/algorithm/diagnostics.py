"""Diagnostics of a batch: is it still nearly on-policy, and do trainer and generator agree?

ratio        mean, max, min of rho = pi_train / pi_gen over tokens in the loss, and the share
             that the loss truncated or clipped
ess          effective sample size of the ratios as a share of the tokens: (sum w)^2 / (n sum w^2);
             1 on-policy, near 0 when a few tokens carry all the weight
logprob_gap  |log pi_train - log pi_gen|: mean and max, and the k3 estimate of KL(gen || train).
             At staleness 0 it measures the mismatch of the two sides' kernels and nothing else
entropy      mean over tokens, if the trainer computed it
staleness    trainer's version minus each token's: mean, max and histogram; and the log-prob gap of
             the tokens of each staleness
by_probability  tokens, and those that the loss truncated or clipped, by the probability with which
             the generator drew them, in ten bins of width 0.1
far          share of sum |d loss / d log pi_train| that comes from tokens with a ratio above 2 or
             below 1/2
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from scalerl.algorithm.batch import TokenBatch, TokenLoss, log_ratio

#: Bins of the probability of a token as drawn: [0, 0.1), [0.1, 0.2) ... [0.9, 1].
BINS = 10
#: A ratio above this, or below its inverse, is far from on-policy: such a token counts twice as
#: much, or half as much, as one that the current weights draw.
FAR = 2.0


@dataclass(frozen=True, slots=True)
class Gap:
    """The log-prob gap of some tokens: means per token, in nats."""

    #: Mean |log pi_train - log pi_gen|.
    mean: float
    #: The k3 estimate of KL(gen || train).
    kl: float


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Diagnostics of a batch or a part of it. The defaults are those of a perfect batch, which is
    also what a batch without tokens gets."""

    #: Usable tokens in the loss.
    tokens: int = 0
    ratio_mean: float = 1.0
    ratio_max: float = 1.0
    ratio_min: float = 1.0
    #: Share of tokens with a ratio that the loss truncated or clipped.
    ratio_truncated: float = 0.0
    ess: float = 1.0
    gap_mean: float = 0.0
    gap_max: float = 0.0
    #: The k3 estimate of KL(gen || train), in nats per token.
    kl_gen_train: float = 0.0
    #: Tokens left out because a log-prob was not finite.
    non_finite: int = 0
    #: Mean entropy in nats per token; None where it was not computed.
    entropy: float | None = None
    staleness_mean: float = 0.0
    staleness_max: int = 0
    #: Number of tokens by staleness.
    staleness_histogram: dict[int, int] = field(default_factory=dict)
    #: Log-prob gap of the usable tokens of each staleness.
    gap_by_staleness: dict[int, Gap] = field(default_factory=dict)
    #: Usable tokens in each bin of the probability as drawn (BINS).
    tokens_by_probability: tuple[int, ...] = ()
    #: Those of them that the loss truncated or clipped.
    truncated_by_probability: tuple[int, ...] = ()
    #: Share of the gradient's weight from tokens with a ratio beyond FAR; None without gradient.
    far_gradient: float | None = None


@torch.no_grad()
def diagnose(
    logprobs_N: Tensor,
    batch: TokenBatch,
    tokens: TokenLoss,
    version: int,
    entropy_N: Tensor | None = None,
    slope_N: Tensor | None = None,
) -> Diagnostics:
    """Diagnostics of a batch that the trainer has just scored at `version`; `slope_N` is
    `objective.token_slopes`."""
    log_rho_N, _, usable_N = log_ratio(logprobs_N, batch)
    # In float64, so that sums over millions of tokens keep their digits.
    gap = log_rho_N[usable_N].double()
    n = gap.numel()
    versions = batch.versions_N[batch.in_loss_N & (batch.versions_N >= 0)]
    staleness = (version - versions).double()
    ages, counts = torch.unique(staleness.long(), return_counts=True)
    found = Diagnostics(
        non_finite=int((batch.in_loss_N & ~usable_N).sum()),
        staleness_mean=float(staleness.mean()) if staleness.numel() else 0.0,
        staleness_max=int(staleness.max()) if staleness.numel() else 0,
        staleness_histogram=dict(zip(ages.tolist(), counts.tolist(), strict=True)),
    )
    if n == 0:
        return found
    rho = gap.exp()
    k3 = torch.expm1(gap) - gap
    truncated = tokens.truncated_N[usable_N]
    drawn = batch.logprobs_N[usable_N].double().exp()
    bins = (drawn * BINS).long().clamp(0, BINS - 1)
    entropy = None if entropy_N is None else float(entropy_N[usable_N].double().mean())
    return replace(
        found,
        tokens=n,
        ratio_mean=float(rho.mean()),
        ratio_max=float(rho.max()),
        ratio_min=float(rho.min()),
        ratio_truncated=float(truncated.double().mean()),
        ess=float(rho.sum() ** 2 / (n * (rho * rho).sum())),
        gap_mean=float(gap.abs().mean()),
        gap_max=float(gap.abs().max()),
        kl_gen_train=float(k3.mean()),
        entropy=entropy,
        gap_by_staleness=_by_staleness(version - batch.versions_N[usable_N], gap.abs(), k3),
        tokens_by_probability=tuple(torch.bincount(bins, minlength=BINS).tolist()),
        truncated_by_probability=tuple(torch.bincount(bins[truncated], minlength=BINS).tolist()),
        far_gradient=None if slope_N is None else _far_share(rho, slope_N[usable_N].double()),
    )


def _by_staleness(age: Tensor, gap: Tensor, k3: Tensor) -> dict[int, Gap]:
    ages, at, counts = torch.unique(age, return_inverse=True, return_counts=True)
    means = [torch.bincount(at, weights=values) / counts for values in (gap, k3)]
    rows = zip(ages.tolist(), *(mean.tolist() for mean in means), strict=True)
    return {int(a): Gap(mean, kl) for a, mean, kl in rows}


def _far_share(rho: Tensor, slope: Tensor) -> float | None:
    total = float(slope.sum())
    far = (rho > FAR) | (rho < 1 / FAR)
    return float(slope[far].sum()) / total if total > 0 else None
