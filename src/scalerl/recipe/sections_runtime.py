"""The sections of a recipe that say how a run is executed: precision, schedule, optimiser, budget …

Engines, trainers, backends, weight channels and optimisers are found by name in registries that a
user can extend. Here a name only has to have the form of one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictFloat, model_validator

from scalerl.recipe.fields import Section, field
from scalerl.recipe.names import Names, name_or_path

SCHEDULE_NAMES = Names("schedule", "pipeline", "off-policy", "lag")
Name = Annotated[str, AfterValidator(name_or_path)]
Head = Literal["fp32", "model", "bf16-emulated", "fp16-emulated"]
#: Fields of the optimiser that a constant rate does not use.
DECAY_CONSTANTS = ("decay_start", "decay_steps", "min_lr_ratio")


class PrecisionSection(Section):
    """Precision of the language-model head, which limits how exact the ratio is."""

    trainer_head: Head = field(
        "fp32",
        "head of the trainer: fp32, the model's dtype, or emulated bf16 or fp16 rounding",
        "paper",
    )
    generator_head: Head = field("fp32", "head of the generator, as trainer_head", "paper")
    one_sided: bool = field(
        False, "whether fp32 on one side only is allowed, to measure its effect", "ours"
    )
    routing: Literal["own", "replay"] = field(
        "own",
        "experts of a token in a mixture of experts: chosen by each side (own), or the trainer "
        "reuses the generator's (replay)",
        "ours",
    )

    @model_validator(mode="after")
    def _both_sides(self) -> PrecisionSection:
        differ = (self.trainer_head == "fp32") != (self.generator_head == "fp32")
        if differ and not self.one_sided:
            raise ValueError(
                f"precision.trainer_head is {self.trainer_head} and precision.generator_head is "
                f"{self.generator_head}: with fp32 on one side only, the log-probs of trainer and "
                "generator differ; set both to fp32 or neither, or precision.one_sided = true to "
                "measure the effect"
            )
        return self


class ScheduleSection(Section):
    """When generators and trainer wait for each other. Under pipeline, generators never stop, and
    the trainer waits before a token would be more than k steps old. Under off-policy, one set of
    weights generates k batches, then k optimiser steps follow. Under lag, every token is exactly k
    steps old, to measure what staleness does."""

    name: Annotated[str, SCHEDULE_NAMES] = field(
        "pipeline",
        "generators run all the time (pipeline), or in turn with the trainer (off-policy, lag)",
        "paper",
    )
    k: int = field(
        8,
        "pipeline: largest age of a token when it is trained on; lag: the age of every token; "
        "off-policy: optimiser steps per generation phase",
        "paper",
        unit="steps",
        ge=1,
    )


class OptimiserSection(Section):
    """The optimiser. Its rate rises linearly, stays constant, and may decay at the end."""

    name: Name = field("adamw", "adamw, or your own as package.module:function", "paper")
    lr: float = field(5e-7, "learning rate after warm-up, before any decay", "paper", gt=0)
    warmup_steps: int = field(
        100, "steps over which the rate rises linearly from 0", "paper", unit="steps", ge=0
    )
    decay: Literal["constant", "linear", "cosine"] = field(
        "constant", "shape of the rate after warm-up", "paper"
    )
    decay_start: int | None = field(
        None,
        "step at which the decay begins; unset: warmup_steps",
        "ours",
        unit="steps",
        ge=0,
    )
    decay_steps: int | None = field(
        None,
        "steps of the decay; unset: up to budget.steps, as set when the run started",
        "ours",
        unit="steps",
        gt=0,
    )
    min_lr_ratio: float = field(0.0, "rate after the decay, as a share of lr", "ours", ge=0, le=1)
    weight_decay: float = field(0.01, "decoupled weight decay", "paper", ge=0)
    eps: float = field(
        1e-15,
        "term added to the root of the second moment; small, since gradients are small",
        "paper",
        gt=0,
    )
    betas: tuple[StrictFloat, StrictFloat] = field(
        (0.9, 0.95), "decay of the first and second moment", "not stated", strict=False
    )
    grad_clip: float = field(
        1.0,
        "largest norm of the gradient; larger ones are scaled down; 0: off",
        "not stated",
        ge=0,
    )

    @model_validator(mode="after")
    def _betas_below_one(self) -> OptimiserSection:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(
                f"optimiser.betas = {list(self.betas)}: give two numbers of 0 or more, below 1"
            )
        return self

    @model_validator(mode="after")
    def _decays(self) -> OptimiserSection:
        for key in DECAY_CONSTANTS:
            # The defaults are None and 0, which every complete recipe holds.
            if self.decay == "constant" and getattr(self, key):
                raise ValueError(
                    f'optimiser.{key} has no effect with optimiser.decay = "constant": set decay '
                    'to "linear" or "cosine", or leave it out'
                )
        if self.decay_start is not None and self.decay_start < self.warmup_steps:
            raise ValueError(
                f"optimiser.decay_start = {self.decay_start} is before the end of the warm-up: "
                f"give at least optimiser.warmup_steps = {self.warmup_steps}"
            )
        return self


class ValidationSection(Section):
    """How the pass rate of the curve is measured: k answers to each held-out prompt."""

    prompts: int = field(1000, "prompts held out of training", "paper", unit="prompts", gt=0)
    k: int = field(16, "rollouts per held-out prompt (mean@k)", "paper", unit="rollouts", gt=0)
    every: int = field(100, "optimiser steps between validations", "paper", unit="steps", gt=0)
    temperature: float = field(
        1.0, "softmax temperature in validation; 0: greedy", "not stated: as in training", ge=0
    )
    also_temperatures: tuple[Annotated[StrictFloat, Field(ge=0)], ...] = field(
        (),
        "further temperatures, each with its own curve; at 0 there is one answer per prompt, since "
        "all would be the same",
        "ours",
        strict=False,
    )
    length_control: bool = field(
        True, "whether validation uses interruption too", "not stated: as in training"
    )

    @model_validator(mode="after")
    def _each_temperature_once(self) -> ValidationSection:
        every = (self.temperature, *self.also_temperatures)
        twice = next((t for i, t in enumerate(every) if t in every[:i]), None)
        if twice is not None:
            raise ValueError(
                f"validation.also_temperatures: {twice:g} is given twice (validation.temperature "
                "is always measured): leave one out"
            )
        return self


class ComputeSection(Section):
    """The x-axis of the curve."""

    axis: Literal["gpu_hours", "flops", "tokens", "samples", "steps"] = field(
        "gpu_hours", "unit of compute in forecasts; all units are recorded", "paper"
    )
    count_validation: bool = field(
        False, "whether the time of validation counts as compute", "not stated"
    )


class BudgetSection(Section):
    """When the run stops: at the first limit reached, or when the curriculum has no prompts."""

    steps: int | None = field(None, "optimiser steps", "ours", unit="steps", gt=0)
    gpu_hours: float | None = field(
        None,
        "hours times devices, counted as on the compute axis",
        "ours",
        unit="GPU-h",
        gt=0,
    )
    minutes: float | None = field(
        None,
        "minutes of training and validation, without the time between two sessions of a run",
        "ours",
        unit="minutes",
        gt=0,
    )


class CheckpointSection(Section):
    """The states from which an interrupted run continues."""

    every: int = field(50, "optimiser steps between checkpoints", "not stated", unit="steps", gt=0)
    keep: int = field(
        2,
        "newest checkpoints kept; the last healthy one is kept too",
        "ours",
        unit="checkpoints",
        ge=1,
    )


class RecordSection(Section):
    """What the run directory keeps besides statistics: training episodes and validation answers to
    read, with the source of every token, in `episodes/training.jsonl` and
    `episodes/validation.jsonl`."""

    episodes_per_step: int = field(
        4, "episodes kept of each step, chosen by a hash; 0: none", "ours", unit="episodes", ge=0
    )
    episodes_megabytes: int = field(
        100,
        "limit to that file: half of it by step 1000, the rest ever more slowly",
        "ours",
        unit="MB",
        gt=0,
    )
    validation_megabytes: int = field(
        100,
        "limit to validation answers, in the same way: all are kept while it allows, then those "
        "to fewer prompts, the same ones each time; 0: none",
        "ours",
        unit="MB",
        ge=0,
    )


class PlacementSection(Section):
    """Where the workers run."""

    generators: int = field(64, "workers that generate", "paper", unit="generators", ge=1)
    devices_per_generator: int = field(
        1, "devices of each generator: tensor parallel in vLLM", "not stated", unit="devices", ge=1
    )
    trainers: int = field(16, "devices that train", "paper", unit="devices", ge=1)
    device: Literal["auto", "cpu", "cuda"] = field("cuda", "kind of device", "paper: GB200")
    backend: Name = field(
        "ray",
        "where workers run: processes on this machine (local), Ray (ray), one process on a virtual "
        "clock (inline), or package.module:name",
        "not stated",
    )
    address: str = field(
        "local",
        "Ray cluster: a new one here (local), the one this machine belongs to (auto), or "
        "ray://HOST:PORT",
        "ours",
        min_length=1,
    )
    engine: Name = field(
        "vllm",
        "inference engine: scalerl's own (local), vLLM (vllm), or package.module:name",
        "not stated",
    )
    trainer: Name = field(
        "fsdp",
        "trainer: torch on one device (local), FSDP2 over all trainers (fsdp), by the number of "
        "trainers (auto), or package.module:function",
        "not stated",
    )
    activations: Literal["keep", "recompute"] = field(
        "keep",
        "activations in the backward pass: kept, or recomputed block by block, which needs less "
        "memory and a third more work",
        "not stated",
    )
    idle_cores: Literal["help", "wait"] = field(
        "help",
        "cores of a waiting worker on a machine without a GPU: used by the other side, or idle; "
        "results are the same bit for bit",
        "ours",
    )
    weights: Name = field(
        "auto",
        "transport of new weights: by the backend (auto), shared-memory, Ray objects (ray), a gloo "
        "or NCCL broadcast (collective), cuda-ipc on one GPU, direct, or package.module:Class",
        "not stated",
    )
    proof_every: int = field(
        50,
        "sets of weights that a generator loads from one proof that it has them to the next; the "
        "first is always proven",
        "ours",
        unit="loads",
        ge=1,
    )
    checkers: int = field(
        64,
        "answers, or calls of a reward function, scored at the same time; of environments, calls "
        "that block",
        "not stated",
        ge=1,
    )
    environment_processes: int | None = field(
        None,
        "processes that score answers and run environments; unset: one per core, four at most",
        "ours",
        unit="processes",
        ge=1,
    )
    check_seconds: float = field(
        60.0,
        "time limit for scoring an answer, or for one call of an environment; after it the answer "
        "or the episode stays unscored",
        "not stated",
        unit="seconds",
        gt=0,
    )
    deterministic: bool = field(
        False,
        "whether a seed gives the same run bit for bit; slower",
        "ours",
    )
    patience: float = field(
        600.0,
        "silence after which a worker counts as lost",
        "ours",
        unit="seconds",
        gt=0,
    )

    @property
    def devices(self) -> int:
        """Devices of all generators and trainer ranks."""
        return self.generators * self.devices_per_generator + self.trainers
