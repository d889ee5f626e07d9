"""Filters: which episodes of a batch a step learns from, and how many are left out and why.

unscored        an episode without a finite reward cannot be learnt from
truncated       cut off by its budget; left out if the recipe says so (paper section 3.9)
zero-variance   all returns of a prompt equal, so no advantage (section 3.6): ScaleRL drops the
                prompt and lets the batch shrink; `keep` leaves it in the denominators; `refill`
                (DAPO's dynamic sampling) drops it too, and the pipeline adds prompts until the
                batch is full

To add a filter, write a function `(candidates) -> mask of the episodes it keeps` and register it,
or name it by its import path, in `filter.further`. Such filters come before that of zero variance,
which is judged among the episodes that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from scalerl.algorithm.advantages import has_variance
from scalerl.algorithm.credit import CREDITS, Credit, Units, rewards_of
from scalerl.algorithm.episode import Episode, Group
from scalerl.recipe.sections_algorithm import FILTER_NAMES
from scalerl.registry import Registry

ZeroVariance = Literal["drop", "keep", "refill"]
Truncated = Literal["keep", "drop"]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The episodes of a batch, as a filter sees them."""

    episodes: Sequence[Episode]
    #: Prompt of each episode.
    prompt_E: Tensor
    #: Returns of the episodes (credit.py).
    units: Units
    #: Episodes that earlier filters have kept.
    usable_E: Tensor

    @staticmethod
    def from_groups(
        groups: Sequence[Group], credit: str | Credit, dtype: torch.dtype = torch.float32
    ) -> Candidates:
        """All scored episodes of the groups."""
        episodes = [e for group in groups for e in group.episodes]
        prompts = [p for p, group in enumerate(groups) for _ in group.episodes]
        rewards = rewards_of(episodes, prompts)
        units = CREDITS.resolve(credit)(rewards)
        rounded = replace(units, values_K=units.values_K.to(dtype))
        return Candidates(episodes, rewards.prompt_E, rounded, rewards.final_E.isfinite())

    def after(self, kept_E: Tensor) -> Candidates:
        """The candidates after a filter."""
        return replace(self, usable_E=self.usable_E & kept_E)


Filter = Callable[[Candidates], Tensor]

FILTERS: Registry[Filter] = Registry("filter", announce=FILTER_NAMES.add)


@FILTERS.register("truncated")
def not_truncated(candidates: Candidates) -> Tensor:
    """Episodes that no budget cut off."""
    return torch.tensor([not e.truncated for e in candidates.episodes], dtype=torch.bool)


@FILTERS.register("zero-variance")
def varying(candidates: Candidates) -> Tensor:
    """Episodes of prompts with returns that differ, among the usable episodes."""
    units, prompt_E = candidates.units, candidates.prompt_E
    usable_K = candidates.usable_E[units.episode_K]
    varies_K = has_variance(units.values_K[usable_K], units.cell_K[usable_K])
    found = torch.unique(prompt_E[units.episode_K[usable_K][varies_K]])
    return candidates.usable_E & torch.isin(prompt_E, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterTally:
    """How many prompts and episodes were dropped by each filter, and how many are left."""

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
    """The counts, and masks of the episodes."""

    #: Episodes that a step learns from.
    kept_E: Tensor
    #: The same, and those that are left out only because their prompt has no variance.
    eligible_E: Tensor

    def tally(self) -> FilterTally:
        """The counts alone: the masks are not sent to other processes."""
        return FilterTally(**self.to_dict())


def filter_episodes(
    candidates: Candidates,
    *,
    zero_variance: ZeroVariance,
    truncated: Truncated,
    further: Sequence[str | Filter],
) -> Filtered:
    """Apply the filters in the order above, with `further` ones after that of truncated
    episodes."""
    prompt_E, scored_E = candidates.prompt_E, candidates.usable_E
    whole_E = not_truncated(candidates)
    if truncated == "drop":
        candidates = candidates.after(whole_E)
    for choice in further:
        candidates = candidates.after(FILTERS.resolve(choice)(candidates))
    varies_E = varying(candidates)
    kept_E = candidates.usable_E if zero_variance == "keep" else varies_E
    prompts = len(torch.unique(prompt_E))
    return Filtered(
        kept_E=kept_E,
        eligible_E=candidates.usable_E,
        prompts=prompts,
        rollouts=len(prompt_E),
        unscored=int((~scored_E).sum()),
        truncated=int((~whole_E).sum()),
        zero_variance_prompts=prompts - len(torch.unique(prompt_E[varies_E])),
        effective_prompts=len(torch.unique(prompt_E[kept_E])),
        effective_rollouts=int(kept_E.sum()),
    )


def informative(
    group: Group, truncated: Truncated, credit: str | Credit, further: Sequence[str | Filter]
) -> bool:
    """Whether the returns of a group differ, among the episodes that the filters keep."""
    found = Candidates.from_groups([group], credit)
    kept = filter_episodes(found, zero_variance="drop", truncated=truncated, further=further)
    return kept.effective_rollouts > 0
