"""Rates by the roofline: peak numbers of a device times the share of them that is used.

A decode step reads the weights and the cache from memory, or multiplies, whichever takes longer. A
token of a batch takes 6 N products (8 N with recomputation), attention, and a head in FP32, which
does not use the tensor cores. What decides is how much of the peak is used: public RL trainers use
between .05 and .40 of it (MFU), so the share is an input with an interval and has no default.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalerl.planner.accelerators import Accelerator
from scalerl.planner.memory import generator_memory
from scalerl.planner.model_shape import ITEM_BYTES, ModelShape
from scalerl.planner.normal import Interval
from scalerl.planner.rates import GeneratorRates, Rates, TrainerRates
from scalerl.recipe import Recipe

#: Share of the peak that trainers of public RL runs use: prime-rl's BENCHMARKS.md of February 2026
#: has .09 to .15 for 4B at 16k tokens and .35 at 65k; verl and NeMo-RL state up to .40.
PUBLIC_MFU = Interval(0.05, 0.40)
#: Share of the memory bandwidth that engines reach while they decode. A guess: not measured.
PUBLIC_DECODE = Interval(0.3, 0.7)
#: Share of the peak in products of a decode step of many rows, and when prompts are read.
PREFILL_SHARE = 0.5
#: Seconds of a decode step besides products and memory: launches, sampling, scheduling. A guess.
STEP_SECONDS = 0.002
#: Share of the FP32 peak that the head reaches. A guess.
HEAD_SHARE = 0.6
#: Seconds of one reduction over the devices of a generator besides its bytes; two for each layer.
REDUCE_SECONDS = 15e-6
#: Most rollouts that a generator writes at once (vLLM's own limit is 256 to 1,024, by version).
MAX_ROWS = 512
#: Room that is left in a cache beyond the mean of what rollouts take up, as a factor: lengths of a
#: group are alike, so what is written at once varies, and rollouts pushed out are read again.
CACHE_MARGIN = 1.2
#: Bandwidth between nodes in GB/s a device: one 400 Gb/s port.
NODE_GB_S = 50.0


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Shares of the peak that are used, each with its 90 % interval."""

    #: Trainer: products over peak products (MFU).
    mfu: Interval
    #: Generators: bytes over peak bytes of a decode step.
    decode: Interval


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Seconds of one trainer device per token, by part."""

    #: At the peak.
    blocks: float
    #: At the share of the FP32 peak that it reaches, or in BF16 at the peak.
    head: float
    #: Whether the head is in FP32 beside BF16 blocks.
    fp32_head: bool
    #: Per pair of tokens of a rollout.
    attention: float


def token_cost(shape: ModelShape, device: Accelerator, recipe: Recipe) -> TokenCost:
    """Seconds per token at the peak: forward and backward pass."""
    # 2 products a parameter forward, 4 backward, 2 more where activations are recomputed.
    passes = 8.0 if recipe.placement.activations == "recompute" else 6.0
    peak = device.bf16 * 1e12 if recipe.model.dtype == "bfloat16" else device.fp32 * 1e12
    fp32 = recipe.precision.trainer_head == "fp32" and recipe.model.dtype != "float32"
    # The head is as precise as the recipe says, and is recomputed in chunks (models/logprobs.py).
    head_peak = HEAD_SHARE * device.fp32 * 1e12 if fp32 else peak
    # Half of the pairs: a token attends to those before it.
    pairs = passes * shape.attention_products / 2 / 2
    return TokenCost(
        passes * shape.block_parameters / peak,
        8.0 * shape.embedding / head_peak,
        fp32,
        pairs / peak,
    )


def roofline(
    shape: ModelShape, device: Accelerator, recipe: Recipe, *, generator_devices: int = 1,
    trainers: int, use: Utilisation, cached: float,
) -> Rates:  # fmt: skip
    """The rates of a placement at the middle of the intervals; a rollout that is being written has
    `cached` tokens in the cache, in the mean."""
    item, n = ITEM_BYTES[recipe.model.dtype], generator_devices
    peak = device.bf16 * 1e12 if recipe.model.dtype == "bfloat16" else device.fp32 * 1e12
    bytes_s = device.gb_s * 1e9 * use.decode.middle * n
    memory = generator_memory(shape, recipe.model.dtype, n, device)
    weights = shape.parameters * item
    hand_over = weights / (NODE_GB_S * 1e9)
    # Tensor parallelism adds the vectors of all devices twice a layer.
    reduced = 2 * shape.layers * shape.hidden * item * 2 / (device.link_gb_s / 2 * 1e9)
    several = float(n > 1)
    generator = GeneratorRates(
        step=STEP_SECONDS + several * 2 * shape.layers * REDUCE_SECONDS,
        stream=weights / bytes_s,
        row=2.0 * shape.active_parameters / (PREFILL_SHARE * peak * n) + several * reduced,
        context=shape.cache_numbers * item / bytes_s,
        admit_token=2.0 * shape.block_parameters / (PREFILL_SHARE * peak * n),
        load=weights / n / (NODE_GB_S * 1e9),
        cache_tokens=memory.cache_tokens,
        slots=max(min(MAX_ROWS, int(memory.cache_tokens / (CACHE_MARGIN * cached))), 1),
    )
    cost = token_cost(shape, device, recipe)
    trainer = TrainerRates(
        ranks=trainers,
        # AdamW reads and writes all states once.
        fixed=2 * 16.0 * shape.parameters / trainers / (device.gb_s * 1e9),
        token=cost.blocks / use.mfu.middle
        + (cost.head if cost.fp32_head else cost.head / use.mfu.middle),
        square=cost.attention / use.mfu.middle,
        publish=hand_over,
    )
    return Rates(generator, trainer)
