"""The [length] section: how long a rollout may get."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from scalerl.recipe.choices import LENGTH_CONSTANTS, with_constants
from scalerl.recipe.fields import Section, field


class LengthSection(Section):
    """How long a rollout may get, and what happens to one that gets longer."""

    control: Literal["interruption", "penalty", "none"] = field(
        "interruption", "cut the thought short with a phrase, penalise length, or neither", "paper"
    )
    phrase: str | None = field(
        None,
        "appended to a thought that reaches its budget; ends the thought",
        "paper",
        min_length=1,
    )
    think_tokens_min: int | None = field(
        None,
        "smallest thinking budget; each rollout draws its own uniformly",
        "paper: 10k; 10,240 as read by TRL",
        unit="tokens",
        gt=0,
    )
    think_tokens_max: int | None = field(
        None, "largest thinking budget", "paper: 12,288", unit="tokens", gt=0
    )
    answer_tokens: int | None = field(
        None,
        "tokens for the answer, after the thought ended or was cut short; past it, a rollout is "
        "truncated",
        "paper: 2,048",
        unit="tokens",
        gt=0,
    )
    max_tokens: int | None = field(
        None,
        "tokens a rollout may sample under penalty or none; past it, it is truncated",
        "paper: 14k, read as 14,336",
        unit="tokens",
        gt=0,
    )
    penalty_max: int | None = field(
        None,
        "L_max of Eq. 9: a correct rollout of this length loses 1 reward",
        "paper: 14k, read as 14,336",
        unit="tokens",
        gt=0,
    )
    penalty_cache: int | None = field(
        None,
        "L_cache of Eq. 9: the penalty starts this many tokens before penalty_max",
        "paper: 2k, read as 2,048",
        unit="tokens",
        gt=0,
    )
    truncation_warn: float = field(
        0.05, "truncated share of a batch that warns", "derived", unit="fraction", ge=0, le=1
    )
    truncation_critical: float = field(
        0.10,
        "truncated share that is an alarm: training usually destabilises at 0.10 to 0.15",
        "derived: the paper sees trouble from 10 %",
        unit="fraction",
        ge=0,
        le=1,
    )

    @property
    def longest(self) -> int:
        """Tokens a rollout may sample at most, whatever the control: under interruption a whole
        thought and a whole answer (the phrase is written for it, not sampled)."""
        if self.max_tokens is not None:
            return self.max_tokens
        return (self.think_tokens_max or 0) + (self.answer_tokens or 0)

    @model_validator(mode="before")
    @classmethod
    def _constants(cls, data: Any) -> Any:
        return with_constants(data, "length.control", LENGTH_CONSTANTS, "interruption")

    @model_validator(mode="after")
    def _possible(self) -> LengthSection:
        if self.control == "interruption":
            low, high = self.think_tokens_min or 0, self.think_tokens_max or 0
            if low > high:
                raise ValueError(
                    f"length.think_tokens_min ({low}) is above length.think_tokens_max ({high})"
                )
        if self.control == "penalty":
            top, cache = self.penalty_max or 0, self.penalty_cache or 0
            if cache > top:
                raise ValueError(
                    f"length.penalty_cache ({cache}) is above length.penalty_max ({top}): "
                    "even an empty answer would be penalised"
                )
            if top - cache >= self.longest:
                raise ValueError(
                    f"the penalty starts at {top - cache} tokens, but length.max_tokens is "
                    f"{self.longest}: it would never act"
                )
        if self.truncation_warn > self.truncation_critical:
            raise ValueError("length.truncation_warn is above length.truncation_critical")
        return self
