"""The sections of a recipe that say what is learned from: model, task, batch, curriculum …"""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

from pydantic import StrictFloat, field_validator, model_validator

from scalerl.recipe.choices import CURRICULUM_CONSTANTS, with_constants
from scalerl.recipe.fields import Option, Section, field


class ModelSection(Section):
    """The policy that is trained."""

    path: str = field(
        "meta-llama/Llama-3.1-8B-Instruct",
        'Hugging Face id or directory of a causal language model, or "tiny" or "tiny-noisy"',
        'not stated: an unnamed "8B dense", fine-tuned on reasoning traces first',
        min_length=1,
    )
    dtype: Literal["bfloat16", "float32"] = field(
        "bfloat16", "dtype of the weights in trainer and generator", "not stated"
    )
    trust_remote_code: bool = field(
        False,
        "run Python code that the model brings along, with all your rights; else such a model is "
        "refused",
        "ours",
    )
    chat_date: str | None = field(
        None,
        "date that the chat template is given, as 2026-01-31; unset: a run whose template writes "
        "the date into prompts sets the day of its start, and keeps it",
        "ours",
    )

    @field_validator("chat_date", mode="before")
    @classmethod
    def _a_date(cls, chat_date: Any) -> Any:
        if isinstance(chat_date, date):  # as TOML has it without quotes
            return chat_date.isoformat()
        if isinstance(chat_date, str):
            try:
                return date.fromisoformat(chat_date).isoformat()
            except ValueError:
                raise ValueError(
                    f"model.chat_date = {chat_date!r} is not a date: write it as 2026-01-31"
                ) from None
        return chat_date

    @field_validator("dtype", mode="before")
    @classmethod
    def _no_half(cls, dtype: Any) -> Any:
        if dtype == "float16":
            raise ValueError(
                "model.dtype = float16 needs its loss scaled, which no part here does, and small "
                "gradients would vanish: set bfloat16, or float32"
            )
        return dtype


class TaskSection(Section):
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
    system_prompt: str = field(
        "",
        "system message before every question, in training and validation, through the model's "
        "chat template; empty for none",
        "not stated",
    )
    reward_correct: float = field(1.0, "reward of a correct answer", "paper", unit="reward")
    reward_wrong: float = field(-1.0, "reward of any other answer", "paper", unit="reward")
    think_open: str = field(
        "<think>",
        "what opens a thought; an answer whose thought was opened and not closed is wrong",
        "paper",
    )
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
    def _weights_match(self) -> TaskSection:
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


class SamplingSection(Section):
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


class BatchSection(Section):
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


class AdvantageSection(Section):
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

    @model_validator(mode="after")
    def _used(self) -> AdvantageSection:
        if self.normalisation != "batch" and self.population != "kept":
            raise ValueError(
                "advantage.population chooses what the std of the batch is taken over: it needs "
                'advantage.normalisation = "batch"'
            )
        if self.normalisation == "none" and (self.ddof, self.epsilon) != (0, 1e-6):
            raise ValueError(
                'advantage.normalisation = "none" divides by nothing: leave advantage.ddof and '
                "advantage.epsilon as they are"
            )
        return self


class FilterSection(Section):
    """Which rollouts never reach the loss."""

    zero_variance: Literal["drop", "keep", "refill"] = field(
        "drop",
        "prompts whose rewards are all equal: drop (the batch shrinks), keep, or refill (drop, and "
        "wait until others have filled the batch)",
        "paper",
    )
    truncated: Literal["keep", "drop"] = field(
        "drop",
        "rollouts cut off before their end: keep them in the loss or drop them",
        "paper: implied",
    )
    empty_steps: int = field(
        10,
        "steps in a row without a prompt whose rewards differ, after which the run ends: it learns "
        "nothing, and by chance only a batch of a few prompts is so ten times; 0 is never",
        "ours",
        unit="steps",
        ge=0,
    )


class CurriculumSection(Section):
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
