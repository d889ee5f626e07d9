"""From a recipe to what a run needs: task, tokenizer, curriculum, length control, sizes.

Everything is made and checked before any part is started, so that what a user can put right is one
line before any compute is spent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scalerl.algorithm.curriculum import Curriculum, NoPositiveResampling, Uniform
from scalerl.algorithm.length import Interruption, LengthControl, Limit
from scalerl.algorithm.options import Options, options_of
from scalerl.engine.interface import Sampling
from scalerl.errors import InputError
from scalerl.models.load import load_tokenizer, model_path, resolve_device
from scalerl.models.shape import cache_bytes, context_length, matmul_parameters, meta_model
from scalerl.pipeline.schedule import Schedule
from scalerl.recipe import Recipe
from scalerl.tasks.registry import task_of
from scalerl.tasks.task import Prompt, Task
from scalerl.weights.interface import Layout

#: Rows of the key-value cache of a local generator, and its bytes, at most.
MAX_SLOTS = 512
CACHE_BYTES = 4 << 30
#: The held-out prompts of the task itself; the other sets of a validation have names of their own.
MAIN = ""
#: Starts the names of those at further temperatures.
TEMPERATURE = "temperature "


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutSet:
    """Prompts that a validation asks, k times each, for one score."""

    name: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    k: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything the loop needs to know of a run, and what parts are made from."""

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
    #: Directory or hub id of the model.
    model: str
    device: str
    options: Options
    layout: Layout
    #: Parameters that take part in the matrix products of one token.
    parameters: int
    #: Longest prompt plus answer, and rollouts written at once in each lane of an engine.
    columns: int
    slots: int
    validation_slots: int

    @staticmethod
    def of(recipe: Recipe) -> Plan:
        """Raises InputError over anything that cannot work."""
        model = model_path(recipe.model.path)
        tokenizer = load_tokenizer(model)
        task = task_of(recipe.task)
        train = {p.id: p for p in task.train_prompts(recipe.seed)}
        if not train:
            raise InputError(f"task {task.name} has no prompts to train on: see held_out_share")
        shape = meta_model(model, recipe.model.dtype)
        control = _control(recipe, tokenizer)
        plain = Limit(control.max_tokens, control.stop_ids, control.end_think_ids)
        columns = recipe.sampling.max_prompt_tokens + control.max_tokens
        context = context_length(shape.config)
        if context is not None and columns > context:
            raise InputError(
                f"sampling.max_prompt_tokens + the longest answer = {columns} tokens, but the "
                f"model reads {context}: lower sampling.max_prompt_tokens or the budgets in length"
            )
        most = CACHE_BYTES // (cache_bytes(shape.config) * columns)
        plan = Plan(
            recipe=recipe,
            task=task,
            tokenizer=tokenizer,
            prompts=train,
            validation=tuple(task.validation_prompts(recipe.validation.prompts)),
            downstream={name: tuple(prompts) for name, prompts in task.downstream().items()},
            curriculum=Curriculum(list(train), _rule(recipe), recipe.seed),
            schedule=Schedule(recipe.schedule.name, recipe.schedule.k, recipe.batch.prompts),
            control=control,
            validation_control=control if recipe.validation.length_control else plain,
            sampling=Sampling(
                recipe.sampling.temperature, recipe.sampling.top_p, recipe.sampling.top_k
            ),
            validation_sampling=Sampling(recipe.validation.temperature),
            model=model,
            device=resolve_device(recipe.placement.device),
            options=options_of(recipe),
            layout=Layout.of(shape),
            parameters=matmul_parameters(shape),
            columns=columns,
            slots=max(min(recipe.batch.completions, MAX_SLOTS, most // 2), 1),
            validation_slots=max(min(MAX_SLOTS, most // 2), 1),
        )
        return plan._without_long_prompts()._with_slots_for_all()

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

    def _with_slots_for_all(self) -> Plan:
        """No more room than all answers of a validation take together."""
        names = [each.name for each in self.sets]
        if len(set(names)) < len(names):
            raise InputError(
                f"a downstream set is named as a further temperature is ({', '.join(names[1:])}): "
                "give it another name"
            )
        asked = sum(len(each.prompts) * each.k for each in self.sets)
        return replace(self, validation_slots=min(self.validation_slots, asked))

    @property
    def temperatures(self) -> dict[str, float]:
        """Further temperatures of the held-out prompts, by their text: "0", "0.6"."""
        further = self.recipe.validation.also_temperatures
        return {repr(float(t)).removesuffix(".0"): t for t in further}

    @property
    def sets(self) -> tuple[HeldOutSet, ...]:
        """All that a validation asks: the held-out prompts of the task, downstream sets, and the
        held-out prompts at further temperatures."""
        k, usual = self.recipe.validation.k, self.validation_sampling
        others = [HeldOutSet(name, found, usual, k) for name, found in self.downstream.items()]
        for text, t in self.temperatures.items():
            name, answers = TEMPERATURE + text, k if t > 0 else 1
            others.append(HeldOutSet(name, self.validation, Sampling(t), answers))
        return (HeldOutSet(MAIN, self.validation, usual, k), *others)

    def fits(self, prompt: Prompt) -> bool:
        """Whether a prompt has tokens, and not too many."""
        return 0 < len(self.tokens_of(prompt)) <= self.recipe.sampling.max_prompt_tokens

    def tokens_of(self, prompt: Prompt) -> npt.NDArray[np.int64]:
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

    def text_of(self, token_ids: npt.NDArray[np.int64]) -> str:
        """A completion as the task reads it."""
        return str(self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=True))


def _rule(recipe: Recipe) -> NoPositiveResampling | Uniform:
    chosen = recipe.curriculum
    if chosen.name == "uniform":
        return Uniform()
    assert chosen.threshold is not None, "the recipe fills it in"
    assert chosen.history is not None, "the recipe fills it in"
    return NoPositiveResampling(chosen.threshold, chosen.history)


def _control(recipe: Recipe, tokenizer: Any) -> LengthControl:
    length = recipe.length
    stop = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
    end = tuple(tokenizer(recipe.task.think_close, add_special_tokens=False)["input_ids"])
    if length.control != "interruption":
        return Limit(length.longest, stop, end)
    phrase = tuple(tokenizer(length.phrase or "", add_special_tokens=False)["input_ids"])
    return Interruption(
        phrase,
        end,
        think_min=length.think_tokens_min or 0,
        think_max=length.think_tokens_max or 0,
        answer_tokens=length.answer_tokens or 0,
        stop_ids=stop,
    )
