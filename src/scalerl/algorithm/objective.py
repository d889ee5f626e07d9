"""From groups of episodes to the loss that is minimised (paper section 3.1), in two steps.

`prepare` does once per batch what needs the whole batch: filters, advantages, aggregation weights.
`objective` turns the trainer's log-probs of any part of the batch into a loss; the losses of the
parts sum to that of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scalerl.algorithm.advantages import advantages
from scalerl.algorithm.aggregation import aggregation_weights
from scalerl.algorithm.batch import TokenBatch, TokenLoss
from scalerl.algorithm.episode import Episode, Group
from scalerl.algorithm.filters import Candidates, Filtered, filter_episodes
from scalerl.algorithm.losses import LOSSES, kl_term
from scalerl.algorithm.options import Options
from scalerl.algorithm.packing import pack


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A batch ready for the trainer: the kept episodes, packed, and the counts of the filters."""

    batch: TokenBatch
    episodes: tuple[Episode, ...]
    filtered: Filtered


def prepare(
    groups: Sequence[Group], options: Options, dtype: torch.dtype = torch.float32
) -> Prepared:
    """Apply filters, then compute advantages, then aggregation weights, for the whole batch."""
    candidates = Candidates.from_groups(groups, options.credit, dtype)
    found = filter_episodes(
        candidates,
        zero_variance=options.zero_variance,
        truncated=options.truncated,
        further=options.filters,
    )
    kept = torch.nonzero(found.kept_E).flatten()
    episodes = tuple(candidates.episodes[i] for i in kept.tolist())
    batch = pack(episodes, candidates.prompt_E[kept].numpy(), dtype)
    batch = replace(batch, advantages_N=_advantages(candidates, found, batch, options))
    weights_N = aggregation_weights(
        options.aggregation,
        batch,
        count_forced=options.count_forced,
        constant_length=options.constant_length,
        dtype=dtype,
    )
    return Prepared(replace(batch, weights_N=weights_N), episodes, found)


def _advantages(
    candidates: Candidates, found: Filtered, batch: TokenBatch, options: Options
) -> Tensor:
    """The advantage of every token of the kept episodes."""
    units = candidates.units
    # Computed among all episodes that could be learnt from, kept or not: a prompt that is dropped
    # for lack of variance still belongs to the population "all".
    eligible_K = found.eligible_E[units.episode_K]
    a_K = torch.zeros_like(units.values_K)
    a_K[eligible_K] = advantages(
        units.values_K[eligible_K],
        units.cell_K[eligible_K],
        normalisation=options.normalisation,
        population=options.population,
        kept_K=found.kept_E[units.episode_K][eligible_K],
        ddof=options.ddof,
        epsilon=options.epsilon,
    )
    # Turns are counted over all episodes, the batch holds the kept ones.
    turns_E = torch.bincount(units.episode_T, minlength=len(found.kept_E))
    first_E = (turns_E.cumsum(0) - turns_E)[found.kept_E]
    of_turn_N = batch.turn_N >= 0
    at_N = batch.per_token(first_E)[of_turn_N] + batch.turn_N[of_turn_N]
    out_N = torch.zeros(len(batch.ids_N), dtype=a_K.dtype)
    out_N[of_turn_N] = a_K[units.unit_T[at_N]]
    return out_N


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """The loss of a part of a batch, with its token losses for the diagnostics."""

    loss: Tensor
    tokens: TokenLoss
    #: The KL term before its coefficient; 0 without one.
    kl: float


def objective(logprobs_N: Tensor, part: TokenBatch, options: Options) -> Objective:
    """The weighted sum of the part's token losses, plus the KL term. A part without tokens in the
    loss gives 0."""
    tokens = LOSSES.resolve(options.loss)(logprobs_N, part, **options.constants)
    weights_N = part.weights_N.to(tokens.loss_N.dtype)
    zero = torch.zeros((), dtype=logprobs_N.dtype, device=logprobs_N.device)
    # Adds 0, and keeps the graph to every parameter even where all tokens are masked: a sharded
    # backward pass issues collectives, which every rank must join.
    anchor = torch.where(torch.isfinite(logprobs_N), logprobs_N, zero).sum() * 0.0
    loss = (weights_N * tokens.loss_N).sum() + anchor
    kl = 0.0
    if options.kl_coefficient:
        penalty = (weights_N * kl_term(logprobs_N, part, options.kl_estimator)).sum()
        loss = loss + options.kl_coefficient * penalty
        kl = float(penalty.detach())
    return Objective(loss, tokens, kl)


def token_slopes(logprobs_N: Tensor, batch: TokenBatch, options: Options) -> Tensor:
    """|d loss / d log pi_train| of every token, without the KL term: weight · |advantage| · the
    factor that the loss gives it, such as CISPO's truncated ratio. 0 where the loss clips."""
    with torch.enable_grad():
        leaf_N = logprobs_N.detach().requires_grad_()
        found = LOSSES.resolve(options.loss)(leaf_N, batch, **options.constants)
        loss = (batch.weights_N.to(found.loss_N.dtype) * found.loss_N).sum()
        if not loss.requires_grad:  # no token is in the loss
            return torch.zeros_like(logprobs_N)
        (slope_N,) = torch.autograd.grad(loss, leaf_N)
    return slope_N.abs()
