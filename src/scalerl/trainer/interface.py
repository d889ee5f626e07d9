"""What a trainer is asked and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from scalerl.algorithm.diagnostics import Diagnostics
from scalerl.algorithm.objective import Prepared

TokenIds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimiser step."""

    #: Optimiser steps behind the weights now.
    version: int
    loss: float
    grad_norm: float
    lr: float
    #: Tokens that went through the model, padding included, and tokens in the loss.
    forward_tokens: int
    loss_tokens: int
    micro_batches: int
    seconds: float
    diagnostics: Diagnostics

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.version,
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "lr": self.lr,
            "forward_tokens": self.forward_tokens,
            "loss_tokens": self.loss_tokens,
            "micro_batches": self.micro_batches,
            "seconds": self.seconds,
            **self.diagnostics.to_dict(),
        }


class NonFiniteGradient(RuntimeError):
    """The gradient of a batch is not finite: nothing was changed. The message says which rows."""


class Trainer(Protocol):
    """Learns from one batch at a time."""

    @property
    def version(self) -> int: ...

    def step(self, prompts: Sequence[TokenIds], prepared: Prepared) -> StepReport:
        """One optimiser step on a prepared batch; `prompts` are the prompts of its rows."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """The present weights, by name."""
        ...

    def save(self, path: Path) -> None: ...

    def load(self, path: Path) -> None: ...
