"""`Recipe`: the complete, typed description of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from scalerl.errors import InputError
from scalerl.recipe.adapter import AdapterSection
from scalerl.recipe.curriculum import Curriculum, NoPositiveResamplingCurriculum
from scalerl.recipe.fields import Section, field
from scalerl.recipe.forces import ForcesSection
from scalerl.recipe.length import InterruptionLength, Length, PenaltyLength, PlainLength
from scalerl.recipe.losses import LossSection
from scalerl.recipe.sections_algorithm import (
    AdvantageSection,
    BatchSection,
    EnvironmentSection,
    FilterSection,
    ModelSection,
    SamplingSection,
    TaskSection,
)
from scalerl.recipe.sections_runtime import (
    BudgetSection,
    CheckpointSection,
    ComputeSection,
    OptimiserSection,
    PlacementSection,
    PrecisionSection,
    RecordSection,
    ScheduleSection,
    ValidationSection,
)
from scalerl.recipe.toml import write

#: Fields that identify a recipe; they do not change what a run does.
IDENTITY = ("name", "description", "source")


class Recipe(Section):
    """The complete description of a run: every choice and every number.

    >>> recipe = Recipe.load("scalerl", overrides=["loss.ratio_cap=4"])
    >>> recipe.loss.ratio_cap, recipe.batch.completions
    (4.0, 768)
    """

    name: str = field("scalerl", "name of the run", "ours", min_length=1)
    description: str = field("", "one-line description", "ours")
    source: str = field("", "where the numbers come from", "ours")
    seed: int = field(0, "seed of every random choice", "not stated", ge=0, lt=2**32)
    model: ModelSection = ModelSection()
    adapter: AdapterSection = AdapterSection()
    task: TaskSection = TaskSection()
    sampling: SamplingSection = SamplingSection()
    batch: BatchSection = BatchSection()
    loss: LossSection = LossSection()
    advantage: AdvantageSection = AdvantageSection()
    filter: FilterSection = FilterSection()
    curriculum: Curriculum = NoPositiveResamplingCurriculum()
    length: Length = InterruptionLength()
    environment: EnvironmentSection = EnvironmentSection()
    precision: PrecisionSection = PrecisionSection()
    forces: ForcesSection = ForcesSection()
    schedule: ScheduleSection = ScheduleSection()
    optimiser: OptimiserSection = OptimiserSection()
    validation: ValidationSection = ValidationSection()
    compute: ComputeSection = ComputeSection()
    budget: BudgetSection = BudgetSection()
    checkpoint: CheckpointSection = CheckpointSection()
    record: RecordSection = RecordSection()
    placement: PlacementSection = PlacementSection()

    def __init__(self, *names: object, **data: Any) -> None:
        # pydantic's own message for a positional argument does not say what to write instead.
        if names:
            shown = ", ".join(repr(name) for name in names)
            raise InputError(f"Recipe({shown}) takes no names: write Recipe.load({shown})")
        super().__init__(**data)

    @classmethod
    def load(
        cls, *sources: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()
    ) -> Recipe:
        """The recipe from presets, files and mappings, later ones over earlier, then overrides.

        >>> Recipe.load("scalerl", "tiny", overrides=["schedule.k=2"]).batch.completions
        512
        """
        # Imported here, because load.py imports this module; likewise problems.py.
        from scalerl.recipe.load import load

        return load(*sources, overrides=overrides)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recipe:
        """The recipe in `data`, with defaults for missing keys; InputError if a value is wrong."""
        from scalerl.recipe.problems import explain, open_sections, unknown_key

        unknown = unknown_key(data, open_sections(data))
        if unknown:
            raise InputError(unknown)
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise InputError(explain(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain values, section by section; None where a field is unset."""
        # In JSON mode tuples become lists, as they come back from TOML.
        return self.model_dump(mode="json")

    def to_toml(self) -> str:
        """The complete recipe as TOML, from which `Recipe.load` makes the same recipe."""
        return write(self.to_dict())

    def replace(self, changes: Mapping[str, Any]) -> Recipe:
        """This recipe with dotted keys changed; a new loss gets its own default constants.

        >>> Recipe().replace({"loss.name": "dapo"}).loss.clip_high
        0.26
        """
        from scalerl.recipe.load import merge, nest

        return Recipe.from_dict(merge(self.to_dict(), nest(changes)))

    def with_decay_fixed(self) -> Recipe:
        """This recipe with start and length of its decay as numbers. A run fixes them when it
        starts, so that a longer budget on resume does not raise the learning rate again.

        >>> recipe = Recipe().replace({"optimiser.decay": "cosine", "budget.steps": 1000})
        >>> recipe.with_decay_fixed().optimiser.decay_steps
        900
        """
        o = self.optimiser
        if o.decay == "constant" or (o.decay_start is not None and o.decay_steps is not None):
            return self
        start = o.warmup_steps if o.decay_start is None else o.decay_start
        steps = o.decay_steps
        if steps is None:
            assert self.budget.steps is not None, "`_check_decay` refuses a decay without an end"
            steps = self.budget.steps - start
        return self.replace({"optimiser.decay_start": start, "optimiser.decay_steps": steps})

    @property
    def learning_rate(self) -> float:
        """The learning rate after warm-up: optimiser.lr, with an adapter times adapter.lr_factor.

        >>> Recipe().replace({"adapter.rank": 8}).learning_rate / Recipe().learning_rate
        10.0
        """
        return self.optimiser.lr * (self.adapter.lr_factor if self.adapter.rank else 1.0)

    @property
    def learning_rate_text(self) -> str:
        """A line about the learning rate of an adapter, which is derived: its factors and their
        source."""
        adapter = self.adapter
        return (
            f"learning rate: {self.learning_rate:g} = optimiser.lr {self.optimiser.lr:g} x "
            f"adapter.lr_factor {adapter.lr_factor:g} ({adapter.lr_factor_source})"
        )

    def _repr_html_(self) -> str:
        from scalerl.recipe.notebook import recipe_html

        return recipe_html(self)

    @model_validator(mode="after")
    def _possible(self) -> Recipe:
        # Checks that need several sections; those of one section are in the section.
        if self.schedule.name == "off-policy":
            # Rollouts, not prompts, are split: the paper's 48 prompts at k = 1 are fewer than its
            # 64 generators.
            k, completions = self.schedule.k, self.batch.completions
            if k * completions % self.placement.generators:
                raise ValueError(
                    "off-policy gives every generator the same number of rollouts, but "
                    f"schedule.k x completions = {k} x {completions} = {k * completions} cannot be "
                    f"split evenly among placement.generators = {self.placement.generators}: "
                    "change one of the three"
                )
            if self.filter.zero_variance == "refill":
                raise ValueError(
                    'filter.zero_variance = "refill" needs schedule.name = "pipeline": an '
                    "off-policy phase fixes its prompts in advance, so none are left to refill with"
                )
        self._check_decay()
        self._check_forces()
        if self.placement.trainer == "local" and self.placement.trainers > 1:
            raise ValueError(
                'placement.trainer = "local" uses one device, but placement.trainers = '
                f"{self.placement.trainers}: set placement.trainers = 1, or placement.trainer = "
                '"fsdp"'
            )
        self._check_devices()
        if self.placement.address != "local" and self.placement.backend != "ray":
            raise ValueError(
                f'placement.address = "{self.placement.address}" is used by Ray only, but '
                f'placement.backend = "{self.placement.backend}": leave placement.address out, or '
                'set placement.backend = "ray"'
            )
        # A control of the user may append tokens too.
        if isinstance(self.length, PenaltyLength | PlainLength):
            for key, used in (
                ("loss.count_forced_tokens", self.loss.count_forced_tokens),
                ("validation.length_control", not self.validation.length_control),
            ):
                if used:
                    raise ValueError(
                        f'{key} is used by interruption only, but length.control = "'
                        f'{self.length.control}": leave it out'
                    )
        if self.loss.name == "dr-grpo" and (
            self.loss.aggregation != "constant" or self.advantage.normalisation != "none"
        ):
            raise ValueError(
                'loss.name = "dr-grpo" needs loss.aggregation = "constant" and '
                'advantage.normalisation = "none": set both, or set loss.name = "grpo"'
            )
        return self

    def _check_forces(self) -> None:
        """Refuse forces that the run cannot have."""
        forces, engine = self.forces, self.placement.engine
        # The simulated engine writes nothing.
        if forces.active and engine not in ("local", "simulated"):
            raise ValueError(
                f'placement.engine = "{engine}" adds no forces to its sampler: set '
                'placement.engine = "local", or leave out forces.sampler_noise and '
                "forces.generator_split"
            )
        if forces.sampler_noise and self.sampling.top_k == 1:
            raise ValueError(
                f"forces.sampler_noise = {forces.sampler_noise:g} needs a sampler that draws, but "
                "sampling.top_k = 1 always takes the likeliest token: set sampling.top_k = 0, or "
                "leave out forces.sampler_noise"
            )
        head = self.precision.generator_head
        if forces.generator_split > 1 and not head.endswith("-emulated"):
            raise ValueError(
                f"forces.generator_split = {forces.generator_split} rounds partial sums, but "
                f'precision.generator_head = "{head}" does not round: set it to "bf16-emulated" or '
                '"fp16-emulated", or leave out forces.generator_split'
            )

    def _check_devices(self) -> None:
        where, many = self.placement, self.placement.devices_per_generator
        if many == 1:
            return
        if where.engine == "local":
            raise ValueError(
                f'placement.engine = "local" uses one device, but placement.devices_per_generator '
                f'= {many}: set it to 1, or placement.engine = "vllm"'
            )
        if where.backend == "local" and where.device == "cuda":
            # Processes of this machine see all its GPUs; Ray gives each actor its own.
            raise ValueError(
                f"placement.devices_per_generator = {many} on GPUs needs placement.backend = "
                '"ray", which assigns the GPUs of a machine to the generators'
            )

    def _check_decay(self) -> None:
        """Refuse a decay without an end, or with one before its start."""
        o, steps = self.optimiser, self.budget.steps
        if o.decay == "constant" or o.decay_steps is not None:
            return
        if steps is None:
            raise ValueError(
                f'optimiser.decay = "{o.decay}" needs an end: set budget.steps (--steps N), or '
                "optimiser.decay_steps for a run without a fixed number of steps"
            )
        start = o.warmup_steps if o.decay_start is None else o.decay_start
        if steps <= start:
            raise ValueError(
                f"budget.steps = {steps} leaves no step for optimiser.decay, which starts after "
                f"step {start}: raise budget.steps, or lower optimiser.warmup_steps or "
                "optimiser.decay_start"
            )
