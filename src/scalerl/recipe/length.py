"""The [length] section: one type for each length control."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from scalerl.recipe.choices import OWN, Choice
from scalerl.recipe.fields import Option, field
from scalerl.recipe.names import Names

#: The paper's phrase (main text). Its appendix leaves out the last "now".
PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"

LENGTH_NAMES = Names("length control", "interruption", "penalty", "none")


def _tokens(default: Any, meaning: str, source: str) -> Any:
    return field(default, meaning, source, unit="tokens", gt=0)


def _share(default: float, meaning: str, source: str) -> Any:
    return field(default, meaning, source, unit="fraction", ge=0, le=1)


class LengthSection(Choice):
    """How long a rollout may get, and what happens to longer ones. Further keys are the constants
    of your own control: the keyword arguments of its function."""

    key: ClassVar[str] = "length.control"
    names: ClassVar[Names] = LENGTH_NAMES
    #: Field that cuts rollouts off.
    cutting: ClassVar[str] = "max_tokens"

    control: Annotated[str, LENGTH_NAMES] = field(
        "interruption", "end a long thought with a phrase, penalise length, or neither", "paper"
    )
    truncation_warn: float = _share(
        0.05, "truncated share of a batch from which the run warns", "derived"
    )
    truncation_critical: float = _share(
        0.10,
        "truncated share of a batch that is an alarm; training destabilises at 0.10 to 0.15",
        "derived: the paper sees trouble from 10 %",
    )

    @property
    def thinking_budgets(self) -> tuple[int, int] | None:
        """The smallest and the largest thinking budget; None where thoughts have none."""
        return None

    @model_validator(mode="after")
    def _warns_first(self) -> LengthSection:
        if self.truncation_warn > self.truncation_critical:
            raise ValueError(
                f"length.truncation_warn = {self.truncation_warn:g} is above "
                f"length.truncation_critical = {self.truncation_critical:g}: lower it"
            )
        return self


class InterruptionLength(LengthSection):
    # A thought that is too long is interrupted, not cut off: only the answer after it can be.
    cutting: ClassVar[str] = "answer_tokens"

    control: Literal["interruption"] = "interruption"
    phrase: str = field(
        PHRASE,
        "text appended to a thought that reaches its budget; it closes the thought",
        "paper",
        min_length=1,
    )
    think_tokens_min: int = _tokens(
        10240,
        "smallest thinking budget; each rollout draws its own, uniformly",
        "paper: 10k; 10,240 as read by TRL",
    )
    think_tokens_max: int = _tokens(12288, "largest thinking budget", "paper: 12,288")
    answer_tokens: int = _tokens(
        2048, "tokens for the answer after the thought; a longer rollout is truncated",
        "paper: 2,048",
    )  # fmt: skip

    @property
    def longest(self) -> int:
        """Tokens that a rollout may sample at most: the longest thought and the longest answer.
        (The phrase is appended, not sampled.)"""
        return self.think_tokens_max + self.answer_tokens

    @property
    def thinking_budgets(self) -> tuple[int, int]:
        return self.think_tokens_min, self.think_tokens_max

    @model_validator(mode="after")
    def _possible(self) -> InterruptionLength:
        low, high = self.think_tokens_min, self.think_tokens_max
        if low > high:
            raise ValueError(
                f"length.think_tokens_min = {low} is above length.think_tokens_max = {high}: "
                "lower the one or raise the other"
            )
        return self


class LimitedLength(LengthSection):
    max_tokens: int = _tokens(
        ...,
        "tokens of a rollout under any control but interruption; a longer one is truncated",
        "paper: 14k, read as 14,336",
    )

    @property
    def longest(self) -> int:
        """Tokens that a rollout may sample at most."""
        return self.max_tokens


class PenaltyLength(LimitedLength):
    control: Literal["penalty"] = "penalty"
    penalty_max: int = _tokens(
        ...,
        "L_max of Eq. 9: a correct rollout of this length loses 1 reward",
        "paper: 14k, read as 14,336",
    )
    penalty_cache: int = _tokens(
        ...,
        "L_cache of Eq. 9: the penalty starts this far before penalty_max",
        "paper: 2k, read as 2,048",
    )

    @model_validator(mode="after")
    def _possible(self) -> PenaltyLength:
        top, cache = self.penalty_max, self.penalty_cache
        if cache > top:
            raise ValueError(
                f"length.penalty_cache = {cache} is above length.penalty_max = {top}, so even "
                "an empty answer would be penalised: lower penalty_cache"
            )
        if top - cache >= self.max_tokens:
            raise ValueError(
                f"the penalty starts at {top - cache} tokens, but length.max_tokens = "
                f"{self.max_tokens}, so it would never act: lower length.penalty_max"
            )
        return self


class PlainLength(LimitedLength):
    control: Literal["none"] = "none"


class OwnLength(LimitedLength):
    """A length control of the user."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Option] = Field(init=False)


LengthSection.types = {
    "interruption": InterruptionLength,
    "penalty": PenaltyLength,
    "none": PlainLength,
}
Length = Annotated[
    Annotated[InterruptionLength, Tag("interruption")]
    | Annotated[PenaltyLength, Tag("penalty")]
    | Annotated[PlainLength, Tag("none")]
    | Annotated[OwnLength, Tag(OWN)],
    Discriminator(LengthSection.tag),
]
