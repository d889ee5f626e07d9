"""The sections of a recipe that say how a run is run: precision, schedule, optimiser, budget …

What runs is found by name in registries that a user can extend (engines, trainers, placements,
weight channels, optimisers): here a name only has to look like one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictFloat, model_validator

from scalerl.recipe.fields import Section, field
from scalerl.recipe.names import name_or_path

Name = Annotated[str, AfterValidator(name_or_path)]
Head = Literal["fp32", "model", "bf16-emulated"]
#: Fields of the optimiser that mean nothing to a constant rate.
DECAY_CONSTANTS = ("decay_start", "decay_steps", "min_lr_ratio")


class PrecisionSection(Section):
    """The precision of the language-model head, which decides how well the ratio is known."""

    trainer_head: Head = field(
        "fp32", "head of the trainer: fp32, the model's dtype, or bf16 rounding emulated", "paper"
    )
    generator_head: Head = field(
        "fp32", "head of the generator; fp32 on one side only is refused", "paper"
    )
    one_sided: bool = field(
        False, "allow fp32 on one side only, to see what it does to the ratios", "ours"
    )

    routing: Literal["own", "replay"] = field(
        "own",
        "of a mixture of experts: trainer and generator each choose a token's experts by "
        "themselves, or the trainer takes those that the generator took",
        "ours",
    )

    @model_validator(mode="after")
    def _both_sides(self) -> PrecisionSection:
        differ = (self.trainer_head == "fp32") != (self.generator_head == "fp32")
        if differ and not self.one_sided:
            raise ValueError(
                f"precision.trainer_head is {self.trainer_head} and precision.generator_head is "
                f"{self.generator_head}: with an FP32 head on one side only, the log-probs of "
                "trainer and generator stay apart; set both to fp32, or neither (or, to measure "
                "what that does, precision.one_sided = true)"
            )
        return self


class ScheduleSection(Section):
    """Who waits for whom. Under off-policy, a generation phase makes k batches of prompts
    (B = k x batch.prompts) with one set of weights, and k optimiser steps follow; its rollouts must
    split evenly among the generators. Under pipeline, generators never stop, and the trainer waits
    before a token would be more than k steps old."""

    name: Literal["pipeline", "off-policy"] = field(
        "pipeline",
        "generators stream (pipeline) or take turns with the trainer (off-policy)",
        "paper",
    )
    k: int = field(
        8,
        "pipeline: most optimiser steps the weights may be ahead of a token; "
        "off-policy: steps per generation phase",
        "paper",
        unit="steps",
        ge=1,
    )


class OptimiserSection(Section):
    """The optimiser. Its rate rises linearly, then stays constant; it may decay to the end."""

    name: Name = field("adamw", "adamw, or your own as package.module:function", "paper")
    lr: float = field(5e-7, "learning rate after warm-up, before any decay", "paper", gt=0)
    warmup_steps: int = field(
        100, "steps over which the rate rises linearly from 0", "paper", unit="steps", ge=0
    )
    decay: Literal["constant", "linear", "cosine"] = field(
        "constant", "how the rate falls after warm-up: not at all, linearly, by a cosine", "paper"
    )
    decay_start: int | None = field(
        None,
        "steps before the rate begins to fall; unset: warmup_steps",
        "ours",
        unit="steps",
        ge=0,
    )
    decay_steps: int | None = field(
        None,
        "steps over which the rate falls; unset: up to budget.steps, as it is when the run begins",
        "ours",
        unit="steps",
        gt=0,
    )
    min_lr_ratio: float = field(
        0.0, "rate at the end of the decay, as a share of lr", "ours", ge=0, le=1
    )
    weight_decay: float = field(0.01, "decoupled weight decay", "paper", ge=0)
    eps: float = field(
        1e-15,
        "added to the root of the second moment; small, so that updates survive",
        "paper",
        gt=0,
    )
    betas: tuple[StrictFloat, StrictFloat] = field(
        (0.9, 0.95), "decay of the first and second moment", "not stated", strict=False
    )
    grad_clip: float = field(
        1.0,
        "largest norm of the gradient; longer ones are scaled down; 0 is off",
        "not stated",
        ge=0,
    )

    @model_validator(mode="after")
    def _betas_below_one(self) -> OptimiserSection:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("optimiser.betas must both be from 0 to below 1")
        return self

    @model_validator(mode="after")
    def _decays(self) -> OptimiserSection:
        for key in DECAY_CONSTANTS:
            if self.decay == "constant" and getattr(self, key):
                raise ValueError(
                    f'optimiser.{key} is about decay, but optimiser.decay is "constant": set '
                    'optimiser.decay to "linear" or "cosine", or leave it out'
                )
        if self.decay_start is not None and self.decay_start < self.warmup_steps:
            raise ValueError(
                f"optimiser.decay_start = {self.decay_start} is before the end of the warm-up: "
                f"give at least optimiser.warmup_steps = {self.warmup_steps}"
            )
        return self


class ValidationSection(Section):
    """How the pass rate of the curve is measured: mean over k answers to held-out prompts."""

    prompts: int = field(1000, "prompts held out of training", "paper", unit="prompts", gt=0)
    k: int = field(16, "rollouts per held-out prompt (mean@k)", "paper", unit="rollouts", gt=0)
    every: int = field(100, "optimiser steps between validations", "paper", unit="steps", gt=0)
    temperature: float = field(
        1.0, "softmax temperature of validation; 0 is greedy", "not stated: as in training", ge=0
    )
    also_temperatures: tuple[Annotated[StrictFloat, Field(ge=0)], ...] = field(
        (),
        "further temperatures at which the held-out prompts are answered, each a curve of its own; "
        "at 0 one answer per prompt is asked, since all would be the same",
        "ours",
        strict=False,
    )
    length_control: bool = field(
        True, "whether interruption acts in validation as well", "not stated: as in training"
    )

    @model_validator(mode="after")
    def _each_temperature_once(self) -> ValidationSection:
        every = (self.temperature, *self.also_temperatures)
        twice = next((t for i, t in enumerate(every) if t in every[:i]), None)
        if twice is not None:
            raise ValueError(
                f"validation.also_temperatures: {twice:g} is asked for twice; "
                "validation.temperature is always measured, give further ones only"
            )
        return self


class ComputeSection(Section):
    """What the curve is plotted against."""

    axis: Literal["gpu_hours", "flops", "tokens", "samples", "steps"] = field(
        "gpu_hours", "compute that the forecast is made on; the others are recorded too", "paper"
    )
    count_validation: bool = field(
        False, "whether time spent on validation counts as compute", "not stated"
    )


class BudgetSection(Section):
    """When to stop: at whichever comes first of those given, or at the end of the curriculum."""

    steps: int | None = field(None, "optimiser steps", "ours", unit="steps", gt=0)
    gpu_hours: float | None = field(
        None,
        "device-hours times devices, as the compute axis counts them",
        "ours",
        unit="GPU-h",
        gt=0,
    )
    minutes: float | None = field(
        None,
        "minutes on the clock since the run began to train, validation included, time between two "
        "parts of a run left out",
        "ours",
        unit="minutes",
        gt=0,
    )


class CheckpointSection(Section):
    """What a run that ends early goes on from."""

    every: int = field(50, "optimiser steps between checkpoints", "not stated", unit="steps", gt=0)
    keep: int = field(
        2,
        "checkpoints kept, beside the last healthy one",
        "ours",
        unit="checkpoints",
        ge=1,
    )


class PlacementSection(Section):
    """Where the parts run."""

    generators: int = field(64, "devices that generate", "paper", unit="devices", ge=1)
    trainers: int = field(16, "devices that train", "paper", unit="devices", ge=1)
    device: Literal["auto", "cpu", "cuda"] = field("cuda", "kind of device", "paper: GB200")
    backend: Name = field(
        "ray",
        "where parts live: processes on this machine (local), Ray over many (ray), one process on "
        "a virtual clock (inline), or package.module:name",
        "not stated",
    )
    address: str = field(
        "local",
        "Ray cluster to live in: one of this machine that is started and stopped (local), the one "
        "this machine belongs to (auto), or ray://HOST:PORT",
        "ours",
        min_length=1,
    )
    engine: Name = field(
        "vllm",
        "who writes the text: the engine that comes with scalerl (local), vLLM (vllm), or "
        "package.module:name",
        "not stated",
    )
    trainer: Name = field(
        "fsdp",
        "who learns: plain torch on one device (local), FSDP2 over all trainers (fsdp), the one "
        "that suits their number (auto), or package.module:function",
        "not stated",
    )
    activations: Literal["keep", "recompute"] = field(
        "keep",
        "what the trainer does with activations between its two passes: keep them, or compute them "
        "again, block by block, for less memory and a third more work",
        "not stated",
    )
    idle_cores: Literal["help", "wait"] = field(
        "help",
        "on one machine without a GPU: the core of a part that waits helps the other side, or it "
        "waits; no bit of any result depends on it",
        "ours",
    )
    weights: Name = field(
        "auto",
        "how new weights travel: what suits the backend (auto), shared-memory, Ray objects (ray), "
        "a broadcast by gloo or NCCL (collective), between processes on one GPU (cuda-ipc), "
        "direct, or package.module:Class",
        "not stated",
    )
    checkers: int = field(
        64,
        "answers, or calls of a reward function, that are checked at once",
        "not stated",
        ge=1,
    )
    check_seconds: float = field(
        60.0,
        "an answer whose check takes longer stays unscored",
        "not stated",
        unit="seconds",
        gt=0,
    )
    deterministic: bool = field(
        False,
        "keep both sides in step: one seed then gives the same run bit for bit; slower",
        "ours",
    )
    patience: float = field(
        600.0,
        "a process that says nothing for so long is taken for dead",
        "ours",
        unit="seconds",
        gt=0,
    )
