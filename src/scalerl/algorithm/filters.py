"""Filters: which rollouts of a batch a step learns from, and how many are left out and why.

unscored        a rollout without a finite reward cannot be learnt from
truncated       cut off by its budget; left out if the recipe says so (paper section 3.9)
zero variance   all rewards of a prompt equal, so no advantage (section 3.6): ScaleRL drops the
                prompt and lets the batch shrink; `keep` leaves it in the denominators; `refill`
                (DAPO's dynamic sampling) drops it too, and the pipeline adds prompts until the
                batch is full
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from scalerl.algorithm.advantages import centred
from scalerl.algorithm.rollout import Group

ZeroVariance = Literal["drop", "keep", "refill"]
Truncated = Literal["keep", "drop"]

#: Rewards that differ by less than this count as equal: a tolerance for rounding, far below any
#: difference that a task means.
SAME_REWARD = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterTally:
    """How many prompts and rollouts were dropped by each filter, and how many are left."""

    prompts: int
    rollouts: int
    unscored: int
    truncated: int
    zero_variance_prompts: int
    effective_prompts: int
    effective_rollouts: int

    def to_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(FilterTally)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filtered(FilterTally):
    """The counts, and a mask of the rows that are kept."""

    kept_B: Tensor

    def tally(self) -> FilterTally:
        """The counts alone: the mask is not sent to other processes."""
        return FilterTally(**self.to_dict())


def has_variance(rewards_B: Tensor, prompt_B: Tensor) -> Tensor:
    """For every row, whether the rewards of its prompt differ (0 < n_correct < G)."""
    if len(rewards_B) == 0:
        return torch.zeros(0, dtype=torch.bool, device=rewards_B.device)
    a_B, index_B, count_P = centred(rewards_B, prompt_B)
    spread_P = torch.zeros_like(count_P).index_add_(0, index_B, a_B * a_B)
    return (spread_P > SAME_REWARD**2)[index_B]


def filter_rows(
    rewards_B: Tensor,
    prompt_B: Tensor,
    truncated_B: Tensor,
    *,
    zero_variance: ZeroVariance,
    truncated: Truncated,
) -> Filtered:
    """Apply the filters in the order above. The reward of an unscored rollout is NaN."""
    scored_B = torch.isfinite(rewards_B)
    usable_B = scored_B & ~truncated_B if truncated == "drop" else scored_B
    varies_B = torch.zeros_like(usable_B)
    varies_B[usable_B] = has_variance(rewards_B[usable_B], prompt_B[usable_B])
    kept_B = usable_B if zero_variance == "keep" else varies_B
    prompts = len(torch.unique(prompt_B))
    informative = len(torch.unique(prompt_B[varies_B]))
    effective = len(torch.unique(prompt_B[kept_B]))
    return Filtered(
        kept_B=kept_B,
        prompts=prompts,
        rollouts=len(rewards_B),
        unscored=int((~scored_B).sum()),
        truncated=int(truncated_B.sum()),
        zero_variance_prompts=prompts - informative,
        effective_prompts=effective,
        effective_rollouts=int(kept_B.sum()),
    )


def informative(group: Group, truncated: Truncated) -> bool:
    """Whether the rewards of a group differ, among the rollouts that the filters keep."""
    usable = [r for r in group.rollouts if not (truncated == "drop" and r.truncated)]
    rewards = [r.reward for r in usable if r.scored and r.reward is not None]
    return bool(rewards) and max(rewards) - min(rewards) > SAME_REWARD
