"""Memory of a trainer rank and of a generator, by counting.

    trainer rank   (weights + FP32 masters + FP32 gradients + two moments) / ranks
                   + two blocks gathered at once + the head + activations of a micro-batch
    generator      weights / devices + what arrives in a hand-over + workspace + key-value cache

Checked against the peak that `benchmarks/scale_out.py` has measured (tests/planner).
"""

from __future__ import annotations

from dataclasses import dataclass

from scalerl.planner.accelerators import Accelerator
from scalerl.planner.model_shape import ITEM_BYTES, ModelShape

#: Bytes that AdamW keeps for a parameter: two moments in FP32.
ADAM_BYTES = 8
#: Bytes of a gradient, and of the FP32 master of a parameter that is not FP32 itself.
FP32_BYTES = 4
#: Numbers that the backward pass of a block keeps for a token, in multiples of the hidden size:
#: inputs and outputs of both norms, queries, attention, its projection, the residual.
KEPT_HIDDEN = 8
#: ... and in multiples of the intermediate size: gate, up, their product, the activation.
KEPT_INTERMEDIATE = 4
#: Blocks of an FSDP trainer that are gathered at once: one that computes, and the next.
GATHERED_BLOCKS = 2
#: Bytes of a chunk of logits in FP32 with its gradient, at most (models/logprobs.py).
LOGITS_BYTES = 2 * 4096 * 8192 * 4
#: Share of a generator's memory that is used, and bytes of its workspace: as vLLM by default.
USED_SHARE = 0.9
WORKSPACE_BYTES = 2e9


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Bytes of one rank of a trainer."""

    states: float
    gathered: float
    activations: float

    @property
    def total(self) -> float:
        return self.states + self.gathered + self.activations


@dataclass(frozen=True, slots=True)
class GeneratorMemory:
    """Bytes of one device of a generator."""

    weights: float
    #: Weights that arrive while the old ones are used: the largest tensor.
    hand_over: float
    workspace: float
    #: Bytes left for the cache; negative if the weights do not fit.
    cache: float
    #: Tokens that fit into the cache of all devices of the generator.
    cache_tokens: float

    @property
    def needed(self) -> float:
        """Bytes without the cache."""
        return self.weights + self.hand_over + self.workspace


def trainer_memory(
    shape: ModelShape, dtype: str, ranks: int, tokens: int, *, recompute: bool
) -> TrainerMemory:
    """Memory of a rank that passes micro-batches of this many tokens."""
    item = ITEM_BYTES[dtype]
    masters = FP32_BYTES if item < FP32_BYTES else 0
    states = shape.parameters * (item + masters + FP32_BYTES + ADAM_BYTES) / ranks
    block = (shape.parameters - shape.embedding * (1 if shape.tied else 2)) / shape.layers
    gathered = 0.0
    if ranks > 1:
        # Weights and, in the backward pass, gradients of the blocks at work; the head in FP32.
        gathered = GATHERED_BLOCKS * block * (item + FP32_BYTES) + shape.embedding * FP32_BYTES
    width = KEPT_HIDDEN * shape.hidden + KEPT_INTERMEDIATE * shape.active_experts * (
        shape.intermediate
    )
    kept = shape.layers * shape.hidden + width if recompute else shape.layers * width
    logits = min(LOGITS_BYTES, 2 * tokens * shape.vocabulary * FP32_BYTES)
    return TrainerMemory(states, gathered, tokens * kept * item + logits)


def generator_memory(
    shape: ModelShape, dtype: str, devices: int, accelerator: Accelerator
) -> GeneratorMemory:
    """Memory of each device of a generator."""
    item = ITEM_BYTES[dtype]
    weights = shape.parameters * item / devices
    arriving = shape.embedding * item / devices
    cache = USED_SHARE * accelerator.gb * 1e9 - weights - arriving - WORKSPACE_BYTES
    tokens = max(cache, 0.0) * devices / (shape.cache_numbers * item)
    return GeneratorMemory(weights, arriving, WORKSPACE_BYTES, cache, tokens)
