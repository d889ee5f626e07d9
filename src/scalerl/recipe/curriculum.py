"""The [curriculum] section: one type for each curriculum."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from scalerl.recipe.choices import OWN, Choice
from scalerl.recipe.fields import Option, field
from scalerl.recipe.names import Names

CURRICULUM_NAMES = Names("curriculum", "no-positive-resampling", "uniform")


class CurriculumSection(Choice):
    """Which prompts return in later epochs. Further keys are the constants of your own curriculum:
    the keyword arguments of its class."""

    key: ClassVar[str] = "curriculum.name"
    names: ClassVar[Names] = CURRICULUM_NAMES

    name: Annotated[str, CURRICULUM_NAMES] = field(
        "no-positive-resampling", "drop solved prompts for good, or draw all alike", "paper"
    )


class NoPositiveResamplingCurriculum(CurriculumSection):
    name: Literal["no-positive-resampling"] = "no-positive-resampling"
    threshold: float = field(
        0.9,
        "pass rate from which a prompt counts as solved",
        "paper: 0.9",
        unit="pass rate",
        gt=0,
        le=1,
    )
    history: Literal["latest", "mean"] = field(
        "latest",
        "pass rate compared with threshold: that of the latest group, or the running mean",
        "not stated: latest, as in TRL",
    )
    return_after: int = field(
        0,
        "epochs after which a solved prompt is drawn again; 0: never",
        "ours; never in the paper",
        unit="epochs",
        ge=0,
    )


class UniformCurriculum(CurriculumSection):
    name: Literal["uniform"] = "uniform"


class OwnCurriculum(CurriculumSection):
    """A curriculum of the user."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Option] = Field(init=False)


CurriculumSection.types = {
    "no-positive-resampling": NoPositiveResamplingCurriculum,
    "uniform": UniformCurriculum,
}
Curriculum = Annotated[
    Annotated[NoPositiveResamplingCurriculum, Tag("no-positive-resampling")]
    | Annotated[UniformCurriculum, Tag("uniform")]
    | Annotated[OwnCurriculum, Tag(OWN)],
    Discriminator(CurriculumSection.tag),
]
