"""What a trainer is made from, what it is asked, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from scalerl.algorithm.diagnostics import Diagnostics
from scalerl.algorithm.filters import FilterTally
from scalerl.algorithm.options import Options
from scalerl.algorithm.rollout import Group
from scalerl.errors import PipelineError
from scalerl.models.head import Precision
from scalerl.trainer.optimisers import Optimiser


@dataclass(frozen=True, slots=True)
class RankSpec:
    """The place of one process among those that learn together, and where they meet."""

    rank: int
    of: int
    #: Of a `torch.distributed.TCPStore` that somebody keeps for them.
    host: str
    port: int
    #: Network interface that the ranks talk through; None: torch's choice.
    interface: str | None
    #: Seconds after which a collective that some rank does not join is given up.
    deadline: float


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """How to make a trainer, in plain data that can be sent to where it is to live."""

    #: Directory or Hugging Face id.
    model: str
    dtype: str
    head: Precision
    options: Options
    optimiser: Optimiser
    #: Of the sampler: log-probs are taken under the distribution it drew from.
    temperature: float
    #: Tokens of a micro-batch, padding included, at most.
    token_budget: int
    #: Of every product; and threads that share the micro-batches of a step.
    threads: int = 1
    step_threads: int = 1
    device: str = "cpu"
    #: Whether code that the model brings along may run.
    trust_remote_code: bool = False
    #: A checkpoint to go on from.
    checkpoint: str | None = None
    #: Whether activations are computed again in the backward pass, rather than kept.
    recompute: bool = False
    #: Whether a mixture's tokens go to the experts that the sampler took.
    replay: bool = False
    #: Of a trainer of many; None for one alone.
    ranks: RankSpec | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimiser step."""

    #: Optimiser steps behind the weights now.
    version: int
    loss: float
    #: Estimated KL to the starting model, weighted as the loss is and before its coefficient; 0
    #: without a KL term.
    kl: float
    grad_norm: float
    lr: float
    #: Tokens that went through the model, padding included; tokens in the loss; and tokens of the
    #: rollouts that the filters kept.
    forward_tokens: int
    loss_tokens: int
    kept_tokens: int
    micro_batches: int
    seconds: float
    diagnostics: Diagnostics
    filtered: FilterTally
    #: What the loss itself counts.
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: What is worth a warning.
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As the run record has it."""
        return {
            "step": self.version,
            "loss": self.loss,
            "kl": self.kl,
            "grad_norm": self.grad_norm,
            "lr": self.lr,
            "forward_tokens": self.forward_tokens,
            "loss_tokens": self.loss_tokens,
            "kept_tokens": self.kept_tokens,
            "micro_batches": self.micro_batches,
            "seconds": self.seconds,
            **self.diagnostics.to_dict(),
            "filtered": self.filtered.to_dict(),
            "metrics": dict(self.metrics),
        }


class NonFiniteGradient(RuntimeError):
    """The gradient of a batch is not finite: nothing was changed. The message names its prompts."""


class NonFiniteWeights(PipelineError):
    """A step has made the weights useless: nobody must be given them."""


class RankLost(PipelineError):
    """Another rank is gone or does not answer: this one cannot go on."""


class Trainer(Protocol):
    """Learns from one batch at a time. Where it has many ranks, every rank makes every call."""

    @property
    def version(self) -> int:
        """Optimiser steps behind the present weights."""
        ...

    def step(self, groups: Sequence[Group]) -> StepReport:
        """One optimiser step on a batch, its filters, advantages and weights included. Raises
        NonFiniteGradient, with nothing changed, rather than learn from one, and NonFiniteWeights
        where the step itself made the weights useless: the run is over."""
        ...

    def score(self, groups: Sequence[Group]) -> list[list[npt.NDArray[np.float32]]]:
        """Log-probs of every rollout's tokens under the present weights, group by group."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """The present weights by name and in order, in the model's dtype. Where there are many
        ranks each tensor is made when it is looked at: look at one after the other."""
        ...

    def save(self, path: Path) -> None: ...

    def load(self, path: Path) -> None: ...
