"""The sections of a recipe that say what is learned: model, task, batch, advantages, filters …

Those with constants of each choice are in `losses.py`, `length.py` and `curriculum.py`.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import StrictFloat, field_validator, model_validator

from scalerl.recipe.fields import Option, Section, field
from scalerl.recipe.names import Names

NORMALISATION_NAMES = Names("normalisation", "batch", "prompt", "none")
CREDIT_NAMES = Names("credit rule", "episode", "turn")
FILTER_NAMES = Names("filter", "truncated", "zero-variance")


class ModelSection(Section):
    """The model that is trained."""

    path: str = field(
        "meta-llama/Llama-3.1-8B-Instruct",
        "Hugging Face id or directory of a causal language model, or one that comes with scalerl: "
        "tiny, tiny-noisy, tiny-tools, tiny-guess",
        'not stated: an unnamed "8B dense", fine-tuned on reasoning traces first',
        min_length=1,
    )
    dtype: Literal["bfloat16", "float32"] = field(
        "bfloat16", "dtype of the weights in trainers and generators", "not stated"
    )
    trust_remote_code: bool = field(
        False,
        "whether to run Python code that comes with the model, with your rights; if not, such a "
        "model is refused",
        "ours",
    )
    chat_date: str | None = field(
        None,
        "date for the chat template, as 2026-01-31; unset: the day the run started, if the "
        "template uses a date",
        "ours",
    )

    @field_validator("chat_date", mode="before")
    @classmethod
    def _a_date(cls, chat_date: Any) -> Any:
        if isinstance(chat_date, date):  # as TOML has it without quotes
            return chat_date.isoformat()
        if isinstance(chat_date, str):
            try:
                # In one form: 20260131 is the same date, and must not look like a change on resume.
                return date.fromisoformat(chat_date).isoformat()
            except ValueError:
                raise ValueError(
                    f"model.chat_date = {chat_date!r} is not a date: write it like 2026-01-31"
                ) from None
        return chat_date

    @field_validator("dtype", mode="before")
    @classmethod
    def _no_half(cls, dtype: Any) -> Any:
        # Before the type is checked, which would list the choices without the reason.
        if dtype == "float16":
            raise ValueError(
                "model.dtype = float16 needs loss scaling, which scalerl does not have: small "
                "gradients would become 0; set bfloat16 or float32"
            )
        return dtype


class TaskSection(Section):
    """The prompts, and the reward of an answer."""

    name: str = field(
        "math",
        "task that gives the prompts; several joined by +, as in math+code",
        "paper",
        min_length=1,
    )
    # Not strict, here and for other tuples: TOML has lists only. The numbers in it stay strict.
    weights: tuple[StrictFloat, ...] = field(
        (),
        "share of the prompts from each task, in the order of name; empty: equal shares",
        "not stated",
        strict=False,
    )
    dataset: str = field(
        "POLARIS-Project/Polaris-Dataset-53K",
        "file or Hugging Face dataset of the prompts; empty for tasks that make their own",
        "paper: Polaris-53K",
    )
    system_prompt: str = field(
        "",
        "system message before every question, in training and validation; empty: none",
        "not stated",
    )
    reward_correct: float = field(1.0, "reward of a correct answer", "paper", unit="reward")
    reward_wrong: float = field(-1.0, "reward of any other answer", "paper", unit="reward")
    think_open: str = field(
        "<think>",
        "tag that opens a thought; an answer with an open thought is wrong",
        "paper",
    )
    think_close: str = field(
        "</think>", "tag that closes a thought; only text after it is scored", "paper", min_length=1
    )
    options: dict[str, Option | dict[str, Option | dict[str, Option]]] = field(
        {},
        "options passed to the task; a table named after a task goes to that task only",
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
                f"({', '.join(self.names)}): give one number for each task, or none"
            )
        if self.weights and (min(self.weights) < 0 or sum(self.weights) <= 0):
            raise ValueError(
                f"task.weights = {list(self.weights)}: give numbers of 0 or more, not all 0"
            )
        if self.reward_correct <= self.reward_wrong:
            raise ValueError(
                f"task.reward_correct = {self.reward_correct:g} must be above task.reward_wrong = "
                f"{self.reward_wrong:g}"
            )
        return self


class SamplingSection(Section):
    """How generators sample rollouts for training."""

    temperature: float = field(1.0, "softmax temperature; log-probs include it", "not stated", gt=0)
    top_p: float = field(
        1.0, "nucleus sampling mass; 1: off", "not stated", unit="probability", gt=0, le=1
    )
    top_k: int = field(
        0, "number of likeliest tokens to sample from; 0: all", "not stated", unit="tokens", ge=0
    )
    max_prompt_tokens: int = field(
        2048, "longest prompt; longer ones are left out", "paper", unit="tokens", gt=0
    )


class BatchSection(Section):
    """The rollouts of one optimiser step."""

    prompts: int = field(
        48,
        "prompts per optimiser step",
        "paper",
        unit="prompts",
        gt=0,
    )
    generations: int = field(
        16,
        "rollouts per prompt; advantages are centred within them",
        "paper",
        unit="rollouts",
        ge=2,
    )

    @property
    def completions(self) -> int:
        """Rollouts per optimiser step: prompts x generations."""
        return self.prompts * self.generations


class AdvantageSection(Section):
    """How rewards become advantages: centred within each prompt, then divided."""

    normalisation: Annotated[str, NORMALISATION_NAMES] = field(
        "batch", "divisor: std of the batch, std of the prompt, or 1 (none)", "paper"
    )
    population: Literal["kept", "all"] = field(
        "kept",
        "prompts in the batch std: those kept by the filters, or all",
        "not stated",
    )
    ddof: Literal[0, 1] = field(
        0, "delta degrees of freedom of the std: 0 population, 1 sample", "not stated"
    )
    epsilon: float = field(
        1e-6, "added to the std before dividing", "not stated", unit="reward", ge=0
    )
    credit: Annotated[str, CREDIT_NAMES] = field(
        "episode",
        "tokens that a turn's reward credits: all of the episode, or those of the turn and of "
        "earlier ones (turn)",
        "ours",
    )

    @model_validator(mode="after")
    def _used(self) -> AdvantageSection:
        # One of the user's own may use all of these.
        if self.normalisation in ("prompt", "none") and self.population != "kept":
            raise ValueError(
                f'advantage.population = "{self.population}" needs advantage.normalisation = '
                '"batch": only the std of the batch is taken over a population'
            )
        # Compared with the defaults, which every complete recipe holds.
        if self.normalisation == "none" and (self.ddof, self.epsilon) != (0, 1e-6):
            raise ValueError(
                'advantage.normalisation = "none" uses no std: leave out advantage.ddof and '
                "advantage.epsilon"
            )
        return self


class FilterSection(Section):
    """Which rollouts are left out of the loss."""

    zero_variance: Literal["drop", "keep", "refill"] = field(
        "drop",
        "prompts with equal rewards: drop them (a smaller batch), keep them, or refill the batch "
        "with others",
        "paper",
    )
    truncated: Literal["keep", "drop"] = field(
        "drop",
        "rollouts cut off before their end: keep or drop them",
        "paper: implied",
    )
    further: tuple[Annotated[str, FILTER_NAMES], ...] = field(
        (),
        "further filters, by registered names or as package.module:function",
        "ours",
        strict=False,
    )
    empty_steps: int = field(
        10,
        "steps in a row without any difference in rewards after which the run stops, since it "
        "learns nothing; 0: never",
        "ours",
        unit="steps",
        ge=0,
    )


class EnvironmentSection(Section):
    """Limits of episodes in an environment (task.name = "environment:..."), and how its replies
    become tokens. [length] then limits each turn."""

    turns: int = field(8, "most turns of an episode", "ours", unit="turns", ge=1)
    observation_tokens: int = field(
        1024, "most tokens of one reply; the rest is cut off", "ours", unit="tokens", gt=0
    )
    episode_tokens: int | None = field(
        None,
        "most tokens of an episode after its prompt; unset: room for all turns and replies",
        "ours",
        unit="tokens",
        gt=0,
    )
    seconds: float = field(
        600.0, "most seconds of an episode; a longer one ends unscored", "ours", unit="s", gt=0
    )
    history: Literal["template", "keep"] = field(
        "template",
        "earlier turns as the chat template shows them, in a new row where it rewrites them, or as "
        "they were written (keep)",
        "ours",
    )
    tool_format: str = field(
        "auto",
        "how the model writes tool calls: hermes, llama3, plain, your own as package.module:name, "
        "or the chat template's (auto)",
        "ours",
        min_length=1,
    )
