"""The [loss] section: which loss, and the constants that it brings.

The constants of the built-in losses are stated here once; the functions in `algorithm/losses` take
their defaults from here (and not the other way round, because a recipe is read without torch). A
custom loss has its constants in its signature; `algorithm/options.py` compares the recipe with it
before a run starts.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from scalerl.recipe.fields import Option, Section, field
from scalerl.recipe.names import Names
from scalerl.text import listed


def _clip_low(default: float, source: str) -> Any:
    return field(
        default, "ratios are clipped to at least 1 - clip_low", source, unit="ratio", gt=0, le=1
    )


def _clip_high(default: float, source: str) -> Any:
    return field(default, "ratios are clipped to at most 1 + clip_high", source, unit="ratio", gt=0)


class CispoConstants(Section):
    ratio_cap: float = field(
        5.0,
        "absolute cap on the ratio: 5 means min(ratio, 5), not 1 + 5",
        "community: 5 in TRL; the paper finds 4, 5 and 8 alike",
        unit="ratio",
        ge=1,
    )


class ReinforceConstants(Section):
    ratio_cap: float | None = field(
        None,
        "absolute cap on the ratio; unset: the ratio is ignored",
        "ours",
        unit="ratio",
        ge=1,
    )


class GrpoConstants(Section):
    clip_low: float = _clip_low(0.2, "paper")
    clip_high: float = _clip_high(0.2, "paper")

    @model_validator(mode="after")
    def _symmetric(self) -> GrpoConstants:
        if self.clip_low != self.clip_high:
            raise ValueError(
                f"grpo clips symmetrically, but loss.clip_low = {self.clip_low:g} and "
                f"loss.clip_high = {self.clip_high:g} differ: make them equal, or set loss.name = "
                '"dapo"'
            )
        return self


class DapoConstants(Section):
    clip_low: float = _clip_low(0.2, "paper")
    clip_high: float = _clip_high(0.26, "paper")


class DrGrpoConstants(Section):
    clip_low: float = _clip_low(0.2, "community: as in GRPO")
    clip_high: float = _clip_high(0.2, "community: as in GRPO")


class GspoConstants(Section):
    clip_low: float = _clip_low(3e-3, "paper")
    clip_high: float = _clip_high(5e-3, "paper")


class SequenceTisConstants(Section):
    ratio_cap: float = field(
        2.0,
        "absolute cap on the ratio of an episode",
        "community: 2 in verl's rollout correction",
        unit="ratio",
        ge=1,
    )
    ratio: Literal["product", "mean"] = field(
        "product",
        "ratio of an episode: the product of its tokens' ratios, or their geometric mean (mean)",
        "ours",
    )


#: The constants of each built-in loss.
LOSS_CONSTANTS: dict[str, type[Section]] = {
    "cispo": CispoConstants,
    "grpo": GrpoConstants,
    "dapo": DapoConstants,
    "gspo": GspoConstants,
    "dr-grpo": DrGrpoConstants,
    "reinforce": ReinforceConstants,
    "sequence-tis": SequenceTisConstants,
}
LOSS_NAMES = Names("loss", *LOSS_CONSTANTS)
AGGREGATION_NAMES = Names("aggregation", "prompt", "sample", "token", "constant")
KL_NAMES = Names("KL estimator", "k1", "k2", "k3")


class LossSection(Section):
    """The loss. Ratios are the trainer's probability of a token over the generator's. Any other
    key is a constant of the loss; those of your own loss are the keyword arguments of its
    function."""

    # Extra keys are allowed here: they are the constants of the loss, checked in `_complete`.
    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, Option | None] = Field(init=False)

    name: Annotated[str, LOSS_NAMES] = field("cispo", "loss function", "paper, Eq. 4")
    aggregation: Annotated[str, AGGREGATION_NAMES] = field(
        "prompt",
        "average of token losses: per prompt, per sample, per token of the batch, or divided by "
        "the longest rollout allowed (constant)",
        "paper",
    )
    count_forced_tokens: bool = field(
        False,
        "whether tokens appended by the length control count in the denominators of the average; "
        "they never have a loss",
        "not stated: left out, since the policy did not sample them",
    )
    kl_coefficient: float = field(
        0.0, "weight of the KL term towards the starting model; 0: off", "paper: no KL", ge=0
    )
    kl_estimator: Annotated[str, KL_NAMES] = field(
        "k3", "estimator of the KL term", "community: k3 in GRPO code"
    )

    @property
    def constants(self) -> dict[str, Any]:
        """Keyword arguments of the loss function, besides log-probs and batch."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Check and complete the constants of a built-in loss; keep those of others as given."""
        if not isinstance(data, dict):
            return data
        given = {k: v for k, v in data.items() if k not in cls.model_fields and v is not None}
        data = {k: v for k, v in data.items() if k in cls.model_fields}
        name = data.get("name", cls.model_fields["name"].default)
        known = LOSS_CONSTANTS.get(name) if isinstance(name, str) else None
        # A loss of the user, or a name that is refused below.
        if known is None:
            return data | given
        for key in given:
            if key not in known.model_fields:
                users = [n for n, other in LOSS_CONSTANTS.items() if key in other.model_fields]
                only = f", only by {listed(users, last=' and ')}" if users else ""
                raise ValueError(f"loss.{key} is not used by {name}{only}: leave it out")
        return data | known.model_validate(given).model_dump()

    @model_serializer(mode="wrap")
    def _constants_beside_the_name(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Constants directly after the name, where a reader of the file looks for them.
        data: dict[str, Any] = plain(self)
        return {"name": data["name"], **{key: data[key] for key in self.constants}, **data}

    @model_validator(mode="after")
    def _used(self) -> LossSection:
        # k3 is the default, which every complete recipe holds, with a KL term or without.
        if self.kl_estimator != "k3" and not self.kl_coefficient:
            raise ValueError(
                "loss.kl_estimator has no effect without a KL term: set loss.kl_coefficient above 0"
            )
        return self
