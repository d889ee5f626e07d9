"""A recipe: everything that decides what a run does, typed, frozen and complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from scalerl.errors import InputError
from scalerl.recipe.fields import Section, field
from scalerl.recipe.length import LengthSection
from scalerl.recipe.losses import LossSection
from scalerl.recipe.sections_algorithm import (
    AdvantageSection,
    BatchSection,
    CurriculumSection,
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
    ScheduleSection,
    ValidationSection,
)

#: Fields that say which recipe this is; they change nothing that a run does.
IDENTITY = ("name", "description", "source")


class Recipe(Section):
    """One run, described to the last number.

    >>> recipe = Recipe.load("scalerl", overrides=["loss.ratio_cap=4"])
    >>> recipe.loss.ratio_cap, recipe.batch.completions
    (4.0, 768)
    """

    name: str = field("scalerl", "what the run is called", "ours", min_length=1)
    description: str = field("", "one line about it", "ours")
    source: str = field("", "what the numbers are taken from", "ours")
    seed: int = field(0, "seed of every random choice", "not stated", ge=0, lt=2**32)
    model: ModelSection = ModelSection()
    task: TaskSection = TaskSection()
    sampling: SamplingSection = SamplingSection()
    batch: BatchSection = BatchSection()
    loss: LossSection = LossSection()
    advantage: AdvantageSection = AdvantageSection()
    filter: FilterSection = FilterSection()
    curriculum: CurriculumSection = CurriculumSection()
    length: LengthSection = LengthSection()
    precision: PrecisionSection = PrecisionSection()
    schedule: ScheduleSection = ScheduleSection()
    optimiser: OptimiserSection = OptimiserSection()
    validation: ValidationSection = ValidationSection()
    compute: ComputeSection = ComputeSection()
    budget: BudgetSection = BudgetSection()
    checkpoint: CheckpointSection = CheckpointSection()
    placement: PlacementSection = PlacementSection()

    def __init__(self, *names: object, **data: Any) -> None:
        if names:
            shown = ", ".join(repr(name) for name in names)
            raise InputError(f"Recipe({shown}) is written Recipe.load({shown})")
        super().__init__(**data)

    @classmethod
    def load(
        cls, *sources: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()
    ) -> Recipe:
        """A recipe from presets and files, later ones laid over earlier ones, then overrides.

        >>> Recipe.load("scalerl", "tiny", overrides=["schedule.k=2"]).batch.completions
        512
        """
        from scalerl.recipe.load import load

        return load(*sources, overrides=overrides)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recipe:
        """The recipe in `data`: what is missing has its default, what is wrong is an InputError."""
        from scalerl.recipe.problems import explain, loss_named, unknown_key

        unknown = unknown_key(data, loss_named(data))
        if unknown:
            raise InputError(unknown)
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise InputError(explain(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, section by section; None where a field is unset."""
        return self.model_dump(mode="json")

    def to_toml(self) -> str:
        """The complete recipe as TOML; `Recipe.load` of it gives this recipe back."""
        from scalerl.recipe.toml import write

        return write(self.to_dict())

    def replace(self, changes: Mapping[str, Any]) -> Recipe:
        """This recipe with dotted keys changed; a new loss starts from its own constants.

        >>> Recipe().replace({"loss.name": "dapo"}).loss.clip_high
        0.26
        """
        from scalerl.recipe.load import merge, nest

        return Recipe.from_dict(merge(self.to_dict(), nest(changes)))

    def with_decay_fixed(self) -> Recipe:
        """This recipe with the beginning and the end of a decay as numbers. A run is given these
        when it begins, so that a longer budget later does not raise the rate again.

        >>> recipe = Recipe().replace({"optimiser.decay": "cosine", "budget.steps": 1000})
        >>> recipe.with_decay_fixed().optimiser.decay_steps
        900
        """
        o = self.optimiser
        if o.decay == "constant" or (o.decay_start is not None and o.decay_steps is not None):
            return self
        start = o.warmup_steps if o.decay_start is None else o.decay_start
        steps = (self.budget.steps or 0) - start if o.decay_steps is None else o.decay_steps
        return self.replace({"optimiser.decay_start": start, "optimiser.decay_steps": steps})

    def _repr_html_(self) -> str:
        from scalerl.recipe.notebook import recipe_html

        return recipe_html(self)

    @model_validator(mode="after")
    def _possible(self) -> Recipe:
        if self.schedule.name == "off-policy":
            # The paper hands out prompts, yet its 48 at k = 1 are fewer than its 64 generators:
            # only rollouts can have been shared evenly.
            k, completions = self.schedule.k, self.batch.completions
            if k * completions % self.placement.generators:
                raise ValueError(
                    "off-policy gives every generator the same share of a generation phase, but "
                    f"schedule.k x completions = {k} x {completions} = {k * completions} rollouts "
                    "cannot be split evenly among placement.generators = "
                    f"{self.placement.generators}: change one of the three"
                )
            if self.filter.zero_variance == "refill":
                raise ValueError(
                    'filter.zero_variance = "refill" needs schedule.name = "pipeline": the prompts '
                    "of an off-policy phase are handed out beforehand, so none are left to refill"
                )
        self._check_decay()
        if self.placement.trainer == "local" and self.placement.trainers > 1:
            raise ValueError(
                'placement.trainer = "local" learns on one device, but placement.trainers = '
                f"{self.placement.trainers}: set placement.trainers = 1, or placement.trainer = "
                '"fsdp"'
            )
        if self.placement.address != "local" and self.placement.backend != "ray":
            raise ValueError(
                "placement.address is about Ray, but placement.backend is "
                f'"{self.placement.backend}": leave it at "local", or set placement.backend = "ray"'
            )
        if self.length.control != "interruption":
            for key, used in (
                ("loss.count_forced_tokens", self.loss.count_forced_tokens),
                ("validation.length_control", not self.validation.length_control),
            ):
                if used:
                    raise ValueError(
                        f'{key} is about interruption, but length.control is "'
                        f'{self.length.control}": leave it as it is'
                    )
        if self.loss.name == "dr-grpo" and (
            self.loss.aggregation != "constant" or self.advantage.normalisation != "none"
        ):
            raise ValueError(
                'dr-grpo is the clipped loss with loss.aggregation = "constant" and '
                'advantage.normalisation = "none": set both, or set loss.name = "grpo"'
            )
        return self

    def _check_decay(self) -> None:
        """A decay needs an end, and that after its beginning."""
        o, steps = self.optimiser, self.budget.steps
        if o.decay == "constant" or o.decay_steps is not None:
            return
        if steps is None:
            raise ValueError(
                f'optimiser.decay = "{o.decay}" needs an end: set budget.steps (--steps N), or '
                "optimiser.decay_steps for a run of open length"
            )
        start = o.warmup_steps if o.decay_start is None else o.decay_start
        if steps <= start:
            raise ValueError(
                f"budget.steps = {steps} leaves no step for optimiser.decay, which begins after "
                f"step {start}: raise budget.steps, or lower optimiser.warmup_steps or "
                "optimiser.decay_start"
            )
