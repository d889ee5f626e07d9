"""A rollout and its group: the data every part of the algorithm works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

#: Why a rollout ended. "stop": the model ended it; "length": a token budget cut it off;
#: "interrupted": the thinking budget forced the closing phrase, and an answer followed; "failed":
#: no usable text (engine or verifier error).
Finish = Literal["stop", "length", "interrupted", "failed"]


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One sampled answer. All arrays have one entry per generated token."""

    token_ids: npt.NDArray[np.int64]
    #: Log-prob under the distribution the token was sampled from, by the sampler that sampled it.
    logprobs: npt.NDArray[np.float32]
    #: Number of optimiser steps behind the weights that wrote the token.
    versions: npt.NDArray[np.int64]
    #: Written by the length control, not by the policy: out of the loss.
    forced: npt.NDArray[np.bool_]
    finish: Finish
    #: None where no verifier could score it.
    reward: float | None
    correct: bool | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logprobs), len(self.versions), len(self.forced)}
        if len(lengths) != 1:
            raise ValueError(f"a rollout's arrays must be of one length, not {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def truncated(self) -> bool:
        return self.finish == "length"

    @property
    def scored(self) -> bool:
        """Whether it has a finite reward."""
        return self.reward is not None and bool(np.isfinite(self.reward))


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The rollouts of one prompt."""

    prompt_id: str
    prompt_token_ids: npt.NDArray[np.int64]
    rollouts: tuple[Rollout, ...]

    @property
    def pass_rate(self) -> float | None:
        """Share of correct answers among the scored rollouts."""
        scored = [r.correct for r in self.rollouts if r.correct is not None]
        return sum(scored) / len(scored) if scored else None
