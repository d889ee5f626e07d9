"""Rollouts and groups, the data that workers exchange: an engine generates rollouts, a checker
scores them, the trainer learns from groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

#: Why a rollout ended. "stop": the model ended it; "length": a token budget cut it off;
#: "interrupted": the thinking budget forced the closing phrase, and an answer followed; "aborted":
#: its request was aborted; "failed": no usable text (engine or verifier error).
FinishReason = Literal["stop", "length", "interrupted", "aborted", "failed"]


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One sampled answer. All arrays have one entry per generated token, except `experts`."""

    token_ids: npt.NDArray[np.int64]
    #: Log-prob under the distribution that the token was sampled from (after temperature, top-k
    #: and top-p), computed by the engine that sampled it; 0 for forced and for greedy tokens, which
    #: have probability 1.
    logprobs: npt.NDArray[np.float32]
    #: Version of the weights that sampled each token: the optimiser steps behind them.
    versions: npt.NDArray[np.int64]
    #: Tokens that the length control wrote, not the policy: out of the loss.
    forced: npt.NDArray[np.bool_]
    finish: FinishReason
    #: Reward; None before the answer is checked, and where no verifier could score it.
    reward: float | None = None
    correct: bool | None = None
    #: For a mixture of experts with recorded routing: the experts of each token of prompt and
    #: answer, (tokens, layers, experts per token), without the last token, which is never fed to
    #: the model.
    experts: npt.NDArray[np.int16] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logprobs), len(self.versions), len(self.forced)}
        if len(lengths) != 1:
            raise ValueError(f"a rollout's arrays must be of one length, not {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.token_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        # Hundreds of rollouts a step are pickled from generator to loop to trainer. As one block of
        # memory that takes a tenth of the time of pickling the arrays one by one.
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
        """Whether the rollout has a finite reward."""
        return self.reward is not None and bool(np.isfinite(self.reward))

    def with_reward(self, reward: float | None, correct: bool | None) -> Rollout:
        """The same rollout with its reward."""
        return replace(self, reward=reward, correct=correct)


#: Element types of a packed rollout: tokens, versions, log-probs, forced. The widest come first, so
#: that each array begins at an offset that its type is aligned to.
_KINDS = (np.int64, np.int64, np.float32, np.bool_)


def _unpacked(
    n: int,
    one: bytearray,
    finish: FinishReason,
    reward: float | None,
    correct: bool | None,
    experts: npt.NDArray[np.int16] | None,
) -> Rollout:
    """The rollout from its packed form; its arrays share one block of memory."""
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
        """Tokens generated for the group, forced ones included."""
        return sum(map(len, self.rollouts))

    @property
    def oldest(self) -> int | None:
        """The oldest version among the group's tokens; None without tokens."""
        return min((int(r.versions.min()) for r in self.rollouts if len(r)), default=None)
