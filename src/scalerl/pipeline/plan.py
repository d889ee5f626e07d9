"""From a recipe to the parts of a run: task, tokenizer, curriculum, length control, specs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.algorithm.curriculum import Curriculum, NoPositiveResampling, Uniform
from scalerl.algorithm.length import Interruption, LengthControl, Limit
from scalerl.algorithm.objective import Options
from scalerl.engine.interface import Sampling
from scalerl.errors import InputError
from scalerl.pipeline.messages import GeneratorSpec, TrainerSpec
from scalerl.pipeline.schedule import Schedule
from scalerl.pipeline.weights import Layout
from scalerl.recipe import Recipe
from scalerl.tasks.registry import task_of
from scalerl.tasks.task import Prompt, Task
from scalerl.trainer.local import Optimiser

#: Rows of the key-value cache of a local generator, at most.
MAX_SLOTS = 512
#: Tokens of a micro-batch of the local trainer.
TOKEN_BUDGET = 12_288
LOCAL_MODELS = Path(__file__).parent.parent / "tasks" / "checkpoints"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything a run needs, made and checked before any process starts."""

    recipe: Recipe
    task: Task
    tokenizer: Any
    prompts: dict[str, Prompt]
    validation: tuple[Prompt, ...]
    #: Further sets that are evaluated with it, by name.
    downstream: dict[str, tuple[Prompt, ...]]
    curriculum: Curriculum
    schedule: Schedule
    control: LengthControl
    validation_control: LengthControl
    sampling: Sampling
    validation_sampling: Sampling
    generator: GeneratorSpec
    trainer: TrainerSpec
    layout: Layout
    #: Parameters that take part in the matrix products of one token.
    parameters: int

    @staticmethod
    def of(recipe: Recipe) -> Plan:
        if recipe.placement.backend != "local" or recipe.placement.engine != "local":
            raise InputError(
                "this version runs on one machine: set placement.backend=local and "
                "placement.engine=local (the overlay `tiny` does)"
            )
        model = str(LOCAL_MODELS / "tiny") if recipe.model.path == "tiny" else recipe.model.path
        tokenizer = _tokenizer(model)
        task = task_of(recipe.task)
        train = {p.id: p for p in task.train_prompts(recipe.seed)}
        if not train:
            raise InputError(f"task {task.name} has no prompts to train on: see held_out_share")
        held_out = tuple(task.validation_prompts(recipe.validation.prompts))
        shape = _shape(model, recipe.model.dtype)
        control = _control(recipe, tokenizer)
        plain = Limit(control.max_tokens, control.stop_ids, control.end_think_ids)
        columns = recipe.sampling.max_prompt_tokens + control.max_tokens
        context = getattr(shape.config, "max_position_embeddings", None)
        if context is not None and columns > context:
            raise InputError(
                f"sampling.max_prompt_tokens + the longest answer = {columns} tokens, but the "
                f"model reads {context}: lower sampling.max_prompt_tokens or length.max_tokens"
            )
        device = "cpu" if recipe.placement.device == "auto" else recipe.placement.device
        per_generator = recipe.batch.prompts * recipe.batch.generations
        plan = Plan(
            recipe=recipe,
            task=task,
            tokenizer=tokenizer,
            prompts=train,
            validation=held_out,
            downstream={name: tuple(prompts) for name, prompts in task.downstream().items()},
            curriculum=Curriculum(list(train), _rule(recipe), recipe.seed),
            schedule=Schedule(recipe.schedule.name, recipe.schedule.k, recipe.batch.prompts),
            control=control,
            validation_control=control if recipe.validation.length_control else plain,
            sampling=Sampling(
                recipe.sampling.temperature, recipe.sampling.top_p, recipe.sampling.top_k
            ),
            validation_sampling=Sampling(recipe.validation.temperature),
            generator=GeneratorSpec(
                model=model,
                dtype=recipe.model.dtype,
                head=recipe.precision.generator_head,
                slots=min(per_generator, MAX_SLOTS),
                columns=columns,
                device=device,
                in_step=recipe.placement.deterministic,
            ),
            trainer=TrainerSpec(
                model=model,
                dtype=recipe.model.dtype,
                head=recipe.precision.trainer_head,
                options=options_of(recipe),
                optimiser=Optimiser(
                    lr=recipe.optimiser.lr,
                    warmup_steps=recipe.optimiser.warmup_steps,
                    weight_decay=recipe.optimiser.weight_decay,
                    eps=recipe.optimiser.eps,
                    betas=(recipe.optimiser.betas[0], recipe.optimiser.betas[1]),
                    grad_clip=recipe.optimiser.grad_clip,
                ),
                temperature=recipe.sampling.temperature,
                token_budget=TOKEN_BUDGET,
                device=device,
            ),
            layout=Layout.of(shape),
            parameters=_parameters(shape),
        )
        return plan._without_long_prompts()

    def _without_long_prompts(self) -> Plan:
        """Held-out prompts that fit. (Training prompts are looked at when their turn comes.)"""
        kept = tuple(p for p in self.validation if self.fits(p))
        if not kept:
            raise InputError(
                f"all {len(self.validation)} held-out prompts have more than "
                f"{self.recipe.sampling.max_prompt_tokens} tokens: raise sampling.max_prompt_tokens"
            )
        others = {}
        for name, prompts in self.downstream.items():
            others[name] = tuple(p for p in prompts if self.fits(p))
            if not others[name]:
                raise InputError(f"every prompt of downstream set {name!r} is empty or too long")
        return replace(self, validation=kept, downstream=others)

    def fits(self, prompt: Prompt) -> bool:
        """Whether a prompt has tokens, and not too many."""
        return 0 < len(self.tokens_of(prompt)) <= self.recipe.sampling.max_prompt_tokens

    def tokens_of(self, prompt: Prompt) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The prompt as the model reads it: by the chat template where the tokenizer has one."""
        template = getattr(self.tokenizer, "chat_template", None)
        if prompt.is_chat and not template:
            raise InputError(
                f"prompt {prompt.id} is a chat, but the tokenizer of {self.recipe.model.path} has "
                "no chat template: take a model that has one, or ask plain text "
                "(task.options.chat = false)"
            )
        if template:
            messages = prompt.question
            if isinstance(messages, str):
                messages = ({"role": "user", "content": messages},)
            ids = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
            )
        else:
            ids = self.tokenizer(prompt.question)["input_ids"]
        return np.asarray(ids, dtype=np.int64)

    def text_of(self, token_ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
        """A completion as the task reads it."""
        return str(self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=True))


def options_of(recipe: Recipe) -> Options:
    """The algorithm a recipe selects."""
    loss = recipe.loss
    named = {"ratio_cap": loss.ratio_cap, "clip_low": loss.clip_low, "clip_high": loss.clip_high}
    return Options(
        loss=loss.name,
        constants={k: v for k, v in named.items() if v is not None},
        aggregation=loss.aggregation,
        constant_length=float(recipe.length.max_tokens),
        count_forced=loss.count_forced_tokens,
        normalisation=recipe.advantage.normalisation,
        population=recipe.advantage.population,
        ddof=recipe.advantage.ddof,
        epsilon=recipe.advantage.epsilon,
        zero_variance=recipe.filter.zero_variance,
        truncated=recipe.filter.truncated,
        kl_coefficient=loss.kl_coefficient,
        kl_estimator=loss.kl_estimator,
    )


def _rule(recipe: Recipe) -> NoPositiveResampling | Uniform:
    if recipe.curriculum.name == "uniform":
        return Uniform()
    threshold = recipe.curriculum.threshold
    history = recipe.curriculum.history
    return NoPositiveResampling(
        threshold=0.9 if threshold is None else threshold, history=history or "latest"
    )


def _control(recipe: Recipe, tokenizer: Any) -> LengthControl:
    length = recipe.length
    stop = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
    end = tuple(tokenizer(recipe.task.think_close, add_special_tokens=False)["input_ids"])
    if length.control != "interruption":
        return Limit(length.max_tokens, stop, end)
    phrase = tuple(tokenizer(length.phrase or "", add_special_tokens=False)["input_ids"])
    return Interruption(
        phrase,
        end,
        think_min=length.think_tokens_min or 0,
        think_max=length.think_tokens_max or 0,
        answer_tokens=length.answer_tokens or 0,
        stop_ids=stop,
    )


def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise InputError(f"tokenizer of {model}: {str(error).splitlines()[0]}") from None


def _shape(model: str, dtype: str) -> Any:
    """The model without its weights: names and shapes only."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise InputError(f"model {model}: {str(error).splitlines()[0]}") from None
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    shape.tie_weights()
    return shape


def _parameters(shape: Any) -> int:
    """Parameters in the matrix products of a token: an embedding that is only looked up has none,
    and of a mixture's experts only those that are asked."""
    config = shape.config
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    share = getattr(config, "num_experts_per_tok", 1) / experts if experts else 1.0
    embedding = shape.get_input_embeddings().weight
    if embedding is shape.get_output_embeddings().weight:
        embedding = None  # tied: used by the head
    total = 0.0
    for name, parameter in shape.named_parameters():
        if parameter is not embedding:
            total += parameter.numel() * (share if ".experts." in name else 1.0)
    return round(total)
