"""Placements to simulate: which split of the devices, which k, how many devices a generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalerl.planner.accelerators import Accelerator
from scalerl.planner.memory import generator_memory, trainer_memory
from scalerl.planner.model_shape import ModelShape
from scalerl.planner.rates import Rates
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import PlacementSection

#: Devices that a generator may have: tensor parallelism within a node.
DEGREES = (1, 2, 4, 8)
#: Key of a recipe for the devices of a generator.
DEGREE_KEY = "devices_per_generator"
#: Splits of the devices that are simulated, at most; the others are clearly slower by arithmetic.
SPLITS = 4
#: Largest staleness that is tried besides the recipe's.
STALENESS = (1, 2, 4, 8)
#: Tokens of a micro-batch, at least (placement/specs.py).
MICRO_TOKENS = 12_288
#: Share of a device's memory that a plan may count on.
USABLE = 0.95
#: Rollouts of the longest kind that must fit into a generator's cache: below that it hardly works.
MIN_ROWS = 2


@dataclass(frozen=True, slots=True)
class Placement:
    """How a run is placed and scheduled."""

    generators: int
    trainers: int
    schedule: str
    k: int
    #: Devices of one generator.
    devices_per_generator: int = 1

    @property
    def devices(self) -> int:
        return self.generators * self.devices_per_generator + self.trainers

    @property
    def split(self) -> str:
        """12+4; with several devices a generator, 6x2+4."""
        many = f"x{self.devices_per_generator}" if self.devices_per_generator > 1 else ""
        return f"{self.generators}{many}+{self.trainers}"

    @property
    def schedule_text(self) -> str:
        return f"{self.schedule}-{self.k}"

    def changes(self) -> dict[str, Any]:
        """The keys of a recipe that place a run so."""
        found: dict[str, Any] = {
            "placement.generators": self.generators,
            "placement.trainers": self.trainers,
            "schedule.name": self.schedule,
            "schedule.k": self.k,
        }
        if DEGREE_KEY in PlacementSection.model_fields:
            found[f"placement.{DEGREE_KEY}"] = self.devices_per_generator
        return found


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """GB of a device of a generator and of a trainer rank, and why they do not fit."""

    generator: float
    trainer: float
    #: Tokens in a generator's cache.
    cache_tokens: float
    #: One line if something does not fit, with the device and the GB that are missing.
    problem: str | None


def memory_need(
    shape: ModelShape, device: Accelerator, recipe: Recipe, placement: Placement
) -> MemoryNeed:
    """What a placement needs, and whether it fits."""
    longest = recipe.sampling.max_prompt_tokens + recipe.length.longest
    recompute = recipe.placement.activations == "recompute"
    dtype, n = recipe.model.dtype, placement.devices_per_generator
    trainer = trainer_memory(
        shape, dtype, placement.trainers, max(MICRO_TOKENS, longest), recompute=recompute
    )
    generator = generator_memory(shape, dtype, n, device)
    rows = MIN_ROWS * longest * shape.cache_numbers * (2 if dtype == "bfloat16" else 4) / n
    problem = None
    over = trainer.total / 1e9 - USABLE * device.gb
    short = (rows - generator.cache) / 1e9
    if over > 0:
        how = "" if recompute else " (placement.activations=recompute needs less)"
        problem = (
            f"a trainer rank needs {trainer.total / 1e9:.0f} GB ({trainer.states / 1e9:.0f} of "
            f"states, {trainer.activations / 1e9:.0f} of activations), {over:.0f} more than "
            f"{device.name} has{how}"
        )
    elif short > 0:
        problem = (
            f"a generator of {n} {device.name} lacks {short:.0f} GB for "
            f"{generator.weights / 1e9:.0f} GB of weights and the cache of {MIN_ROWS} rollouts"
        )
    # A cache takes what is left, but no more than all rollouts of k + 1 batches would fill.
    return MemoryNeed(
        (generator.needed + max(generator.cache, 0.0)) / 1e9, trainer.total / 1e9,
        generator.cache_tokens, problem,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class QuickEstimate:
    """Seconds of a step by arithmetic, without waits: to choose what is simulated."""

    generate: float
    train: float

    def step(self, schedule: str) -> float:
        if schedule == "pipeline":
            return max(self.generate, self.train)
        return self.generate + self.train


def quick_estimate(
    rates: Rates, recipe: Recipe, placement: Placement, mean_length: float, prompt: int
) -> QuickEstimate:
    """Seconds to write and to train on a batch with generators that are always full."""
    rollouts = recipe.batch.completions
    under_way = rollouts * (placement.k + 1 if placement.schedule == "pipeline" else placement.k)
    context = prompt + mean_length / 2
    g = rates.generator
    rows = min(under_way / placement.generators, g.slots, g.cache_tokens / context)
    rows = max(rows, 1.0)
    step = g.decode(round(rows)) + g.context * rows * context
    generate = rollouts * mean_length / (placement.generators * rows / step)
    tokens = mean_length + prompt / recipe.batch.generations
    work = rollouts * (rates.trainer.token * tokens + rates.trainer.square * tokens**2)
    return QuickEstimate(generate, rates.trainer.fixed + work / rates.trainer.ranks)


def usable_degrees() -> tuple[int, ...]:
    """Devices of a generator that a recipe can ask for."""
    return DEGREES if DEGREE_KEY in PlacementSection.model_fields else DEGREES[:1]


def splits(devices: int, degree: int) -> list[tuple[int, int]]:
    """Generators and trainers that use all devices."""
    return [((devices - t) // degree, t) for t in range(1, devices) if (devices - t) % degree == 0]
