"""The sections of a recipe that say what is learned from: model, task, batch, loss and the rest."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import StrictFloat, field_validator, model_validator

from scalerl.recipe.choices import (
    CURRICULUM_CONSTANTS,
    LENGTH_CONSTANTS,
    LOSS_CONSTANTS,
    with_constants,
)
from scalerl.recipe.fields import Section, field

Scalar = str | bool | int | float
Option = Scalar | list[Scalar]


class Model(Section):
    """The policy that is trained."""

    path: str = field(
        "meta-llama/Llama-3.1-8B-Instruct",
        'Hugging Face id or directory of a causal language model, or "tiny"',
        'not stated: an unnamed "8B dense", fine-tuned on reasoning traces first',
        min_length=1,
    )
    dtype: Literal["bfloat16", "float16", "float32"] = field(
        "bfloat16", "dtype of the weights in trainer and generator", "not stated"
    )


class Task(Section):
    """What is asked, and what an answer earns."""

    name: str = field(
        "math",
        "task to draw prompts from; several are joined by +, as in math+code",
        "paper",
        min_length=1,
    )
    weights: tuple[StrictFloat, ...] = field(
        (),
        "share of prompts drawn from each task, in the order of name; empty for equal shares",
        "not stated",
        strict=False,
    )
    dataset: str = field(
        "POLARIS-Project/Polaris-Dataset-53K",
        "file or Hugging Face dataset with the prompts; empty for tasks that make their own",
        "paper: Polaris-53K",
    )
    reward_correct: float = field(1.0, "reward of a correct answer", "paper", unit="reward")
    reward_wrong: float = field(-1.0, "reward of any other answer", "paper", unit="reward")
    think_open: str = field("<think>", "what opens the thought of a rollout", "paper")
    think_close: str = field(
        "</think>", "what closes the thought; only text after it is checked", "paper", min_length=1
    )
    options: dict[str, Option | dict[str, Option | dict[str, Option]]] = field(
        {},
        "passed to the task as they are; a table named after a task goes to that task only",
        "ours",
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The names in `name`, one by one."""
        return tuple(part.strip() for part in self.name.split("+"))

    @field_validator("options", mode="before")
    @classmethod
    def _without_unset(cls, options: Any) -> Any:
        if not isinstance(options, dict):
            return options
        return {key: value for key, value in options.items() if value is not None}

    @model_validator(mode="after")
    def _weights_match(self) -> Task:
        if self.weights and len(self.weights) != len(self.names):
            raise ValueError(
                f"task.weights has {len(self.weights)} numbers for {len(self.names)} tasks "
                f"({', '.join(self.names)}): give one each, or none"
            )
        if self.weights and (min(self.weights) < 0 or sum(self.weights) <= 0):
            raise ValueError("task.weights must not be negative, and not all zero")
        if self.reward_correct <= self.reward_wrong:
            raise ValueError("task.reward_correct must be above task.reward_wrong")
        return self


class Sampling(Section):
    """How the generator samples rollouts for training."""

    temperature: float = field(
        1.0, "softmax temperature; log-probs are of the tempered distribution", "not stated", gt=0
    )
    top_p: float = field(
        1.0, "nucleus mass to sample from; 1 is off", "not stated", unit="probability", gt=0, le=1
    )
    top_k: int = field(
        0, "sample from the k likeliest tokens only; 0 is off", "not stated", unit="tokens", ge=0
    )
    max_prompt_tokens: int = field(
        2048, "longer prompts are left out of the data", "paper", unit="tokens", gt=0
    )


class Batch(Section):
    """What one optimiser step learns from."""

    prompts: int = field(
        48,
        "prompts per optimiser step, under either schedule",
        "paper",
        unit="prompts",
        gt=0,
    )
    generations: int = field(
        16,
        "rollouts per prompt: the group that advantages are centred in",
        "paper",
        unit="rollouts",
        ge=2,
    )

    @property
    def completions(self) -> int:
        """Rollouts per optimiser step: prompts x generations."""
        return self.prompts * self.generations


class Loss(Section):
    """What is minimised. Ratios are the trainer's probability over the generator's own."""

    name: str = field(
        "cispo",
        "cispo, grpo, dapo, gspo, dr-grpo, reinforce, or your own as package.module:function",
        "paper, Eq. 4",
    )
    ratio_cap: float | None = field(
        None,
        "absolute, one-sided cap on the ratio (cispo, reinforce): 5 means min(ratio, 5), not 1 + 5;"
        " reinforce without it ignores the ratio",
        "community: 5 in TRL; the paper finds 4, 5 and 8 alike",
        unit="ratio",
        ge=1,
    )
    clip_low: float | None = field(
        None,
        "ratios are clipped below at 1 - clip_low (grpo, dapo, dr-grpo, gspo)",
        "paper: 0.2, gspo 3e-3",
        unit="ratio",
        gt=0,
        le=1,
    )
    clip_high: float | None = field(
        None,
        "ratios are clipped above at 1 + clip_high (grpo, dapo, dr-grpo, gspo)",
        "paper: grpo 0.2, dapo 0.26, gspo 5e-3",
        unit="ratio",
        gt=0,
    )
    aggregation: Literal["prompt", "sample", "token", "constant"] = field(
        "prompt",
        "how token losses are averaged: within prompts, samples, the whole batch, or by a constant "
        "(the longest completion allowed)",
        "paper",
    )
    count_forced_tokens: bool = field(
        False,
        "whether tokens written by the length control count in the loss",
        "not stated: left out, since the policy did not sample them",
    )
    kl_coefficient: float = field(
        0.0, "weight of the KL term towards the starting model; 0 is off", "paper: no KL", ge=0
    )
    kl_estimator: Literal["k1", "k2", "k3"] = field(
        "k3", "estimator of the KL term, where there is one", "community: k3 in GRPO code"
    )

    @model_validator(mode="before")
    @classmethod
    def _constants(cls, data: Any) -> Any:
        return with_constants(data, "loss.name", LOSS_CONSTANTS, "cispo")

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        module, _, function = name.partition(":")
        if name in LOSS_CONSTANTS:
            return name
        if function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
            return name
        raise ValueError(
            f'"{name}" is no loss; choose from {", ".join(LOSS_CONSTANTS)}, '
            "or give your own as package.module:function"
        )

    @model_validator(mode="after")
    def _symmetric(self) -> Loss:
        if self.name == "grpo" and self.clip_low != self.clip_high:
            raise ValueError(
                "grpo clips symmetrically but loss.clip_low and loss.clip_high differ: "
                'make them equal, or set loss.name = "dapo"'
            )
        return self


class Advantage(Section):
    """How rewards become advantages. They are always centred within the prompt first."""

    normalisation: Literal["batch", "prompt", "none"] = field(
        "batch", "divide centred rewards by the std of the batch, of the prompt, or by 1", "paper"
    )
    population: Literal["kept", "all"] = field(
        "kept",
        "prompts the batch std is taken over: those kept by the filters, or all",
        "not stated",
    )
    ddof: Literal[0, 1] = field(
        0, "delta degrees of freedom of the std: 0 population, 1 sample", "not stated"
    )
    epsilon: float = field(
        1e-6, "added to the std before dividing", "not stated", unit="reward", ge=0
    )


class Filter(Section):
    """Which rollouts never reach the loss."""

    zero_variance: Literal["drop", "keep", "refill"] = field(
        "drop",
        "prompts whose rewards are all equal: drop (the batch shrinks), keep, or refill",
        "paper",
    )
    truncated: Literal["keep", "drop"] = field(
        "drop",
        "rollouts cut off before their end: keep them in the loss or drop them",
        "paper: implied",
    )


class Curriculum(Section):
    """Which prompts come back in later epochs."""

    name: Literal["no-positive-resampling", "uniform"] = field(
        "no-positive-resampling", "leave solved prompts out for good, or draw all alike", "paper"
    )
    threshold: float | None = field(
        None,
        "pass rate from which a prompt is left out of later epochs",
        "paper: 0.9",
        unit="pass rate",
        gt=0,
        le=1,
    )
    history: Literal["latest", "mean"] | None = field(
        None,
        "pass rate that is compared with the threshold: of the latest group or the running mean",
        "not stated: latest, as in TRL",
    )

    @model_validator(mode="before")
    @classmethod
    def _constants(cls, data: Any) -> Any:
        return with_constants(
            data, "curriculum.name", CURRICULUM_CONSTANTS, "no-positive-resampling"
        )


class Length(Section):
    """How long a rollout may get, and what happens to one that gets longer."""

    control: Literal["interruption", "penalty", "none"] = field(
        "interruption", "cut the thought short with a phrase, penalise length, or neither", "paper"
    )
    max_tokens: int = field(
        14336,
        "tokens a rollout may sample, thought and answer together; past it, it is truncated",
        "paper: 12,288 thinking + 2,048 answer",
        unit="tokens",
        gt=0,
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
        None, "tokens left for the answer after the phrase", "paper: 2,048", unit="tokens", gt=0
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

    @model_validator(mode="before")
    @classmethod
    def _constants(cls, data: Any) -> Any:
        return with_constants(data, "length.control", LENGTH_CONSTANTS, "interruption")

    @model_validator(mode="after")
    def _possible(self) -> Length:
        if self.control == "interruption":
            low, high = self.think_tokens_min or 0, self.think_tokens_max or 0
            if low > high:
                raise ValueError(
                    f"length.think_tokens_min ({low}) is above length.think_tokens_max ({high})"
                )
            if high + (self.answer_tokens or 0) > self.max_tokens:
                raise ValueError(
                    f"length.think_tokens_max + length.answer_tokens = {high} + "
                    f"{self.answer_tokens} is more than length.max_tokens = {self.max_tokens}: an "
                    "interrupted rollout could not finish its answer"
                )
        if self.control == "penalty":
            top, cache = self.penalty_max or 0, self.penalty_cache or 0
            if cache > top:
                raise ValueError(
                    f"length.penalty_cache ({cache}) is above length.penalty_max ({top}): "
                    "even an empty answer would be penalised"
                )
            if top - cache >= self.max_tokens:
                raise ValueError(
                    f"the penalty starts at {top - cache} tokens, but length.max_tokens is "
                    f"{self.max_tokens}: it would never act"
                )
        if self.truncation_warn > self.truncation_critical:
            raise ValueError("length.truncation_warn is above length.truncation_critical")
        return self
