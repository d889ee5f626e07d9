"""The interface of engines: requests, results, and the five methods of `Engine`.

A new engine is one file with these methods, and one registry line (docs/how-to/add-an-engine.md).
A generator worker (in `placement`) calls them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from scalerl.algorithm.episode import Turn
from scalerl.algorithm.length import LengthControl
from scalerl.models.adapter import AdapterSpec
from scalerl.renamed import renamed_names

#: The two lanes of requests. While the lane "validate" has requests, the lane "train" is paused and
#: keeps its key-value cache.
Lane = Literal["train", "validate"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled; as it stands, from the model's own distribution."""

    #: Softmax temperature; 0 takes the likeliest token.
    temperature: float = 1.0
    #: Nucleus mass to sample from; 1 is off.
    top_p: float = 1.0
    #: Number of likeliest tokens to sample from; 0 is off.
    top_k: int = 0
    #: Standard deviation of Gaussian noise on the logits, in nats; log-probs are those of the noisy
    #: distribution (`engine/noise.py`; the local engine only).
    noise: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Tokens, and the turns to generate behind them: one for each episode of a group, or, from the
    second turn of an episode on, one for that episode. The turns of a request stay in one engine.
    """

    id: str
    #: All tokens that the model has seen so far: the prompt, earlier turns, observations.
    prompt_token_ids: tuple[int, ...]
    #: Decides when a turn ends, and which tokens are forced.
    control: LengthControl
    #: Seed of each turn by the number of its episode within the group. Every random choice of a
    #: turn follows from its seed, whatever else is in the batch.
    seeds: Mapping[int, int]
    sampling: Sampling = Sampling()
    #: Whether each turn is reported as soon as it is finished, because an environment waits for it;
    #: otherwise all turns of the request are reported together.
    one_by_one: bool = False
    #: In a later turn of an episode: id of the request of the turn before. The tokens above are
    #: complete without it; an engine that has kept the key-value cache of that turn reads only the
    #: tokens that are new.
    continues: str | None = None

    def only(self, rows: Iterable[int]) -> Request:
        """The same request with only these of its turns."""
        return replace(self, seeds={row: self.seeds[row] for row in rows})


@dataclass(frozen=True, slots=True, eq=False)
class TurnResult:
    """A turn with the request that it belongs to."""

    #: Id of the request.
    request: str
    #: Number of the rollout within its group.
    row: int
    turn: Turn


@dataclass(frozen=True, slots=True, eq=False)
class EngineStep:
    """The results of one step of an engine."""

    #: The lane that the step worked on.
    lane: Lane
    #: Rollouts that were finished.
    written: tuple[TurnResult, ...] = ()
    #: Tokens that were generated, of finished and unfinished rollouts.
    tokens: int = 0
    #: Tokens that were read before later turns of episodes: all tokens so far, or only the new ones
    #: where the cache of the turn before was kept.
    read_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """The state of an engine."""

    #: Version of the weights.
    version: int
    #: Rollouts that wait for a slot, in both lanes.
    waiting: int
    #: Rollouts that are being generated, in both lanes.
    running: int
    #: The lane that the next step works on.
    lane: Lane

    @property
    def busy(self) -> bool:
        """Whether there is anything to generate."""
        return bool(self.waiting or self.running)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How to make an engine: plain data that can be sent to another process."""

    #: Directory or Hugging Face id of the model.
    model: str
    #: dtype of the weights, by its name in torch.
    dtype: str
    #: Precision of the language-model head.
    head: Literal["model", "fp32", "bf16-emulated", "fp16-emulated"]
    #: Rollouts that are generated at once in the training lane.
    slots: int
    #: Rollouts that are generated at once in the validation lane.
    validation_slots: int
    #: Longest prompt plus answer, in tokens.
    columns: int
    #: Kind of device: "cpu" or "cuda".
    device: str
    #: Whether Python code that comes with the model may run.
    trust_remote_code: bool
    #: Threads of the training lane.
    threads: int = 1
    #: Threads of the validation lane: the trainer waits meanwhile, so its core is free.
    validation_threads: int = 1
    #: Whether rollouts record the experts of their tokens (mixtures of experts).
    record_routing: bool = False
    #: Whether the key-value cache of a turn is kept for the next turn of its episode, while there
    #: is room. Which turns are kept depends on timing, and the last bits of log-probs on it.
    park_turns: bool = True
    #: Devices that share the model (tensor parallel).
    devices: int = 1
    #: LoRA adapters that `load` is given, instead of all weights.
    adapter: AdapterSpec | None = None
    #: Sets of weights that are loaded from one verification of all weights to the next.
    verify_every: int = 1
    #: Parts of the hidden dimension that an emulated head is summed over (the local engine only).
    head_parts: int = 1


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that can prove which weights it generates with. Runs with adapters need one."""

    def load(self, weights: Mapping[str, Tensor], version: int) -> None: ...

    def health(self) -> Health: ...

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probs of the tokens after the first, at temperature 1, by the passes that generate.
        Rollouts are left as they are."""
        ...


class Engine(Protocol):
    """Generates rollouts, many at a time, with weights that may change between two tokens."""

    def submit(self, requests: Iterable[Request], lane: Lane = "train") -> None:
        """Queue requests; their rollouts start as slots become free."""
        ...

    def step(self) -> EngineStep:
        """Generate one more token for every running rollout of the active lane."""
        ...

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Use new weights from the next token on. Cached keys and values stay as they are."""
        ...

    def abort(self, ids: Sequence[str]) -> list[TurnResult]:
        """Drop requests; returns what was generated for them so far."""
        ...

    def health(self) -> Health:
        """The current state."""
        ...


__getattr__ = renamed_names(__name__, {"RolloutResult": "TurnResult", "Written": "TurnResult"})
