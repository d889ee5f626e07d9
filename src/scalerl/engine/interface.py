"""What an engine is asked and what it gives back: the same for the local engine and for others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from scalerl.algorithm.length import LengthControl
from scalerl.algorithm.rollout import Finish


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    #: 0: no limit.
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One rollout to be written."""

    id: str
    prompt_token_ids: tuple[int, ...]
    control: LengthControl
    sampling: Sampling = Sampling()
    #: Every random choice of the rollout follows from it, whoever shares the batch.
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """What was written for a request: whole, or up to an abort."""

    id: str
    token_ids: npt.NDArray[np.int64]
    #: Of the distribution the token was really drawn from (after temperature, top-k, top-p); 0 for
    #: forced tokens and for greedy ones, which are certain.
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int64]
    forced: npt.NDArray[np.bool_]
    #: None: aborted.
    finish: Finish | None


@dataclass(frozen=True, slots=True)
class Health:
    """What an engine is doing."""

    version: int
    waiting: int
    running: int
    written_tokens: int


class Engine(Protocol):
    """Writes rollouts, many at a time, with weights that may change between two tokens."""

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests; they join as soon as there is room."""
        ...

    def step(self) -> list[Written]:
        """One more token for every running request; returns those that are finished."""
        ...

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """New weights, from the next token on. What was already read or written stays as it is."""
        ...

    def abort(self, ids: Sequence[str]) -> list[Written]:
        """Drop requests; returns what was written of them."""
        ...

    def health(self) -> Health: ...
