"""A rollout and its group: the data every part works on, from the draw of a prompt to its
gradient. An engine writes rollouts, a checker rewards them, the trainer learns from groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

#: Why a rollout ended. "stop": the model ended it; "length": a token budget cut it off;
#: "interrupted": the thinking budget forced the closing phrase, and an answer followed; "aborted":
#: somebody dropped it; "failed": no usable text (engine or verifier error).
FinishReason = Literal["stop", "length", "interrupted", "aborted", "failed"]


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One sampled answer. All arrays have one entry per generated token."""

    token_ids: npt.NDArray[np.int64]
    #: Log-prob under the distribution the token was really drawn from (after temperature, top-k,
    #: top-p), by the sampler that drew it; 0 for forced tokens and for greedy ones: certain.
    logprobs: npt.NDArray[np.float32]
    #: Number of optimiser steps behind the weights that wrote the token.
    versions: npt.NDArray[np.int64]
    #: Written by the length control, not by the policy: out of the loss.
    forced: npt.NDArray[np.bool_]
    finish: FinishReason
    #: None before it is checked, and where no verifier could score it.
    reward: float | None = None
    correct: bool | None = None
    #: Of a mixture, where it is asked for: the experts that the sampler sent each token of prompt
    #: and answer to, but the last, which nothing follows: (tokens, layers, experts of a token).
    experts: npt.NDArray[np.int16] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logprobs), len(self.versions), len(self.forced)}
        if len(lengths) != 1:
            raise ValueError(f"a rollout's arrays must be of one length, not {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.token_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        # Rollouts travel from generator to loop to trainer, hundreds a step: as one piece of memory
        # they take a tenth of the time that their arrays would take one by one.
        one = bytearray().join(
            np.asarray(each, kind).tobytes()
            for each, kind in zip(
                (self.token_ids, self.versions, self.logprobs, self.forced), _KINDS, strict=True
            )
        )
        return _unpacked, (
            len(self), one, self.finish, self.reward, self.correct, self.experts,
        )  # fmt: skip

    @property
    def truncated(self) -> bool:
        return self.finish == "length"

    @property
    def scored(self) -> bool:
        """Whether it has a finite reward."""
        return self.reward is not None and bool(np.isfinite(self.reward))

    def with_reward(self, reward: float | None, correct: bool | None) -> Rollout:
        """The same rollout with its reward."""
        return Rollout(
            self.token_ids, self.logprobs, self.versions, self.forced, self.finish, reward, correct,
            self.experts,
        )  # fmt: skip


#: Of a packed rollout: tokens, versions, log-probs, forced; the widest first, so that each begins
#: where its type may.
_KINDS = (np.int64, np.int64, np.float32, np.bool_)


def _unpacked(
    n: int,
    one: bytearray,
    finish: FinishReason,
    reward: float | None,
    correct: bool | None,
    experts: npt.NDArray[np.int16] | None,
) -> Rollout:
    """A rollout that was packed; its arrays share one piece of memory."""
    tokens, versions = np.frombuffer(one, np.int64, 2 * n).reshape(2, n)
    logprobs = np.frombuffer(one, np.float32, n, 16 * n)
    forced = np.frombuffer(one, np.bool_, n, 20 * n)
    return Rollout(tokens, logprobs, versions, forced, finish, reward, correct, experts)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The rollouts of one prompt."""

    prompt_id: str
    prompt_token_ids: npt.NDArray[np.int64]
    rollouts: tuple[Rollout, ...]

    @property
    def tokens(self) -> int:
        """Tokens written for it."""
        return sum(map(len, self.rollouts))

    @property
    def oldest(self) -> int | None:
        """The oldest version among its tokens; None without any."""
        return min((int(r.versions.min()) for r in self.rollouts if len(r)), default=None)
