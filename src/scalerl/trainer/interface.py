"""The interface of trainers: what one is made from, its methods, and the report of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from scalerl.algorithm.diagnostics import Diagnostics
from scalerl.algorithm.episode import Episode, Group
from scalerl.algorithm.filters import FilterTally
from scalerl.algorithm.options import Options
from scalerl.errors import PipelineError
from scalerl.models.adapter import AdapterProbe, AdapterSpec
from scalerl.models.head import Precision
from scalerl.recipe.sections_runtime import OptimiserSection


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One rank of a trainer, and where the ranks meet."""

    rank: int
    world_size: int
    #: Host of the `torch.distributed.TCPStore` that the ranks meet in; the placement keeps it open.
    host: str
    #: Port of that store.
    port: int
    #: Network interface of the collectives; None: torch's choice.
    interface: str | None
    #: Seconds after which a collective that some rank has not joined fails.
    deadline: float


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """How to make a trainer: plain data that can be sent to another process."""

    #: Directory or Hugging Face id of the model.
    model: str
    #: dtype of the passes, by its name in torch.
    dtype: str
    #: Precision of the language-model head.
    head: Precision
    options: Options
    optimiser: OptimiserSection
    #: Temperature of the sampler: log-probs are those of the distribution that it sampled from.
    temperature: float
    #: Largest number of tokens in a micro-batch.
    token_budget: int
    #: Kind of device: "cpu" or "cuda".
    device: str
    #: Whether Python code that comes with the model may run.
    trust_remote_code: bool
    #: Torch intra-op threads.
    threads: int = 1
    #: Worker threads that process the micro-batches of a step in parallel.
    step_threads: int = 1
    #: Directory of a checkpoint to resume from.
    checkpoint: str | None = None
    #: Whether activations are recomputed in the backward pass instead of stored.
    recompute: bool = False
    #: Whether tokens go to the experts that the generator chose (mixtures of experts).
    replay: bool = False
    #: LoRA adapters to train, instead of all weights.
    adapter: AdapterSpec | None = None
    #: The rank of this process; None for a trainer of one process.
    ranks: RankSpec | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """The report of one optimiser step."""

    #: Version of the weights after the step: the optimiser steps behind them.
    version: int
    loss: float
    #: Estimated KL to the starting model, weighted as the loss is and before its coefficient; 0
    #: without a KL term.
    kl: float
    #: Norm of the gradient before clipping.
    grad_norm: float
    #: Learning rate of this step.
    lr: float
    #: Tokens that went through the model.
    forward_tokens: int
    #: Tokens in the loss.
    loss_tokens: int
    #: Tokens that the engine wrote, forced ones included, of the episodes that the filters kept.
    kept_tokens: int
    micro_batches: int
    #: Wall-clock time of the step.
    seconds: float
    diagnostics: Diagnostics
    filtered: FilterTally
    #: Tokens of the batch that the engine did not write: prompts, each once, and what came between
    #: turns.
    context_tokens: int = 0
    #: Rows of the batch in which an episode went on after its history was rewritten.
    forks: int = 0
    #: Further numbers that the loss reports, by name.
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: Warnings for the user.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class TokenStats:
    """What a step computed for the tokens that the engine wrote of one episode, in order."""

    #: Log-probs under the weights before the step.
    logprobs: npt.NDArray[np.float32]
    #: Entropies of the trainer's distribution.
    entropies: npt.NDArray[np.float32]


class NonFiniteGradient(RuntimeError):
    """The gradient of a batch is not finite: nothing was changed. The message names its prompts."""


class NonFiniteWeights(PipelineError):
    """A step has made the weights useless: they must not be published."""


class RankLost(PipelineError):
    """Another rank died or does not answer: this one cannot continue."""


class Trainer(Protocol):
    """Learns from one batch at a time. With several ranks, every rank makes every call."""

    @property
    def version(self) -> int:
        """Optimiser steps behind the current weights."""
        ...

    def step(self, groups: Sequence[Group]) -> StepReport:
        """Make one optimiser step on a batch, including its filters, advantages and weights. Raises
        NonFiniteGradient before anything is changed, and NonFiniteWeights where the step itself
        made the weights useless, which ends the run."""
        ...

    def score(self, groups: Sequence[Group]) -> list[list[npt.NDArray[np.float32]]]:
        """Log-probs under the current weights of the tokens that the engine wrote: per group and
        episode one array, with the episode's rows one after the other."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """The current weights by name and in order, in the model's dtype; with an adapter only A
        and B, in FP32. With several ranks each tensor is gathered when it is read: read each once,
        in order, on all ranks."""
        ...

    def probe(self, tokens: Sequence[int]) -> AdapterProbe:
        """Log-probs of these tokens, with which a generator proves that it has the adapter. Called
        only with an adapter."""
        ...

    def save(self, path: Path) -> None:
        """Write a checkpoint into an existing directory."""
        ...

    def load(self, path: Path) -> None:
        """Restore the state that `save` wrote."""
        ...


@runtime_checkable
class KeepsTokenStats(Protocol):
    """A trainer that tells what its last step computed for single tokens, for the record."""

    def token_stats(self, episodes: Sequence[Episode]) -> tuple[TokenStats | None, ...]:
        """The numbers of these episodes of the last step; None for those that the filters left
        out. May be asked once for each step."""
        ...
