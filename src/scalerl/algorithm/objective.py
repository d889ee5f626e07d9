"""From groups of rollouts to the loss that is minimised (paper section 3.1), in two steps.

`prepare` does once per batch what needs the whole batch: filters, advantages, aggregation weights.
`objective` turns the trainer's log-probs of any part of the batch into a loss; the losses of the
parts sum to that of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scalerl.algorithm.advantages import advantages
from scalerl.algorithm.aggregation import aggregation_weights
from scalerl.algorithm.batch import LossBatch, TokenLoss
from scalerl.algorithm.filters import Filtered, filter_rows
from scalerl.algorithm.losses import LOSSES, kl_term
from scalerl.algorithm.options import Options
from scalerl.algorithm.rollout import Group, Rollout


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A batch ready for the trainer: the kept rollouts, row for row, and the counts of the
    filters."""

    batch: LossBatch
    rollouts: tuple[Rollout, ...]
    filtered: Filtered


def prepare(
    groups: Sequence[Group], options: Options, dtype: torch.dtype = torch.float32
) -> Prepared:
    """Apply filters, then compute advantages, then aggregation weights, for the whole batch."""
    rollouts = [r for group in groups for r in group.rollouts]
    prompt_B = torch.tensor([p for p, g in enumerate(groups) for _ in g.rollouts], dtype=torch.long)
    rewards = [float(r.reward) if r.scored and r.reward is not None else np.nan for r in rollouts]
    rewards_B = torch.tensor(rewards, dtype=dtype)
    truncated_B = torch.tensor([r.truncated for r in rollouts], dtype=torch.bool)
    found = filter_rows(
        rewards_B,
        prompt_B,
        truncated_B,
        zero_variance=options.zero_variance,
        truncated=options.truncated,
    )
    # Advantages are computed among all rollouts that could be learnt from, kept or not: a prompt
    # that is dropped for lack of variance still belongs to the population "all".
    eligible_B = torch.isfinite(rewards_B)
    if options.truncated == "drop":
        eligible_B &= ~truncated_B
    a_B = torch.zeros_like(rewards_B)
    a_B[eligible_B] = advantages(
        rewards_B[eligible_B],
        prompt_B[eligible_B],
        normalisation=options.normalisation,
        population=options.population,
        kept_B=found.kept_B[eligible_B],
        ddof=options.ddof,
        epsilon=options.epsilon,
    )
    index = torch.nonzero(found.kept_B).flatten()
    kept = tuple(rollouts[i] for i in index.tolist())
    return Prepared(_collate(kept, a_B[index], prompt_B[index], options, dtype), kept, found)


def _collate(
    rollouts: tuple[Rollout, ...],
    advantages_B: Tensor,
    prompt_B: Tensor,
    options: Options,
    dtype: torch.dtype,
) -> LossBatch:
    width = max((len(r) for r in rollouts), default=0)
    shape = (len(rollouts), width)
    # float64 holds float32 log-probs exactly; `dtype` rounds them once, at the end.
    logprobs = np.zeros(shape, dtype=np.float64)
    versions = np.full(shape, -1, dtype=np.int64)  # -1 is padding
    mask, length = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for i, r in enumerate(rollouts):
        n = len(r)
        logprobs[i, :n], versions[i, :n] = r.logprobs, r.versions
        mask[i, :n] = ~r.forced  # the policy did not sample forced tokens
        length[i, :n] = True
    mask_BT = torch.from_numpy(mask)
    counted = torch.from_numpy(length) if options.count_forced else None
    weights_BT = aggregation_weights(
        options.aggregation,
        mask_BT,
        prompt_B,
        counted_BT=counted,
        constant_length=options.constant_length,
        dtype=dtype,
    )
    generator_BT = torch.from_numpy(logprobs).to(dtype)
    return LossBatch(
        generator_BT, advantages_B, mask_BT, weights_BT, prompt_B, torch.from_numpy(versions)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """The loss of a part of a batch, with its token losses for the diagnostics."""

    loss: Tensor
    tokens: TokenLoss
    #: The KL term before its coefficient; 0 without one.
    kl: float


def objective(logprobs_BT: Tensor, part: LossBatch, options: Options) -> Objective:
    """The weighted sum of the part's token losses, plus the KL term. A part without tokens in the
    loss gives 0."""
    tokens = LOSSES.resolve(options.loss)(logprobs_BT, part, **options.constants)
    weights_BT = part.weights_BT.to(tokens.loss_BT.dtype)
    zero = torch.zeros((), dtype=logprobs_BT.dtype, device=logprobs_BT.device)
    # Adds 0, and keeps the graph to every parameter even where all tokens are masked: a sharded
    # backward pass issues collectives, which every rank must join.
    anchor = torch.where(torch.isfinite(logprobs_BT), logprobs_BT, zero).sum() * 0.0
    loss = (weights_BT * tokens.loss_BT).sum() + anchor
    kl = 0.0
    if options.kl_coefficient:
        penalty = (weights_BT * kl_term(logprobs_BT, part, options.kl_estimator)).sum()
        loss = loss + options.kl_coefficient * penalty
        kl = float(penalty.detach())
    return Objective(loss, tokens, kl)
