"""The setup of a run: task, tokenizer, curriculum, length control and sizes, from a recipe.

Everything is resolved and checked before any worker is started, so that what a user can repair is
reported in one line before any compute is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from scalerl.algorithm.constants import check_call, check_constants, check_travels
from scalerl.algorithm.curriculum import CURRICULA, Curriculum, RetirementRule
from scalerl.algorithm.episode import Episode
from scalerl.algorithm.length import LengthControl, Limit
from scalerl.algorithm.length_controls import LENGTH_CONTROLS, Vocabulary
from scalerl.algorithm.options import Options, options_from_recipe
from scalerl.engine.interface import Sampling
from scalerl.environments.parsers import PYTHON_TAG, TOOL_FORMATS, detect
from scalerl.errors import InputError
from scalerl.models.adapter import (
    PROOF,
    AdapterSpec,
    probe_tokens,
    proof_size,
    shapes_of,
    targets_of,
)
from scalerl.models.chat import Chat, reads_the_clock
from scalerl.models.head import accumulation_dtype
from scalerl.models.load import (
    load_generation_config_fast,
    load_tokenizer_fast,
    meta_model_fast,
    model_path,
    resolve_device,
)
from scalerl.models.meta_model import cache_bytes, context_length, matmul_parameters
from scalerl.models.routing import routers_of
from scalerl.models.tokens import hidden_tokens, stop_tokens, token_pieces
from scalerl.models.turns import TurnRenderer
from scalerl.pipeline.episodes import EpisodeRules
from scalerl.pipeline.schedule import SCHEDULES, Schedule
from scalerl.pipeline.transcripts import transcript
from scalerl.recipe import Recipe
from scalerl.recipe.sections_algorithm import AdvantageSection, EnvironmentSection
from scalerl.tasks.registry import task_of
from scalerl.tasks.task import Answer, Message, Prompt, Task
from scalerl.text import one_line
from scalerl.weights.interface import Layout

T = TypeVar("T")

#: Largest number of rollouts that a lane of a local generator writes at once.
MAX_SLOTS = 512
#: Bytes of its key-value caches, both lanes together.
CACHE_BYTES = 4 << 30
#: Name of the held-out set of the task itself; the other sets have names of their own.
MAIN = ""
#: Tokens that a chat template writes around a reply, at most: roles, line breaks, a thought that it
#: opens. Those of some twenty families take 4 to 17.
TEMPLATE_TOKENS = 32
#: Prefix of the names of held-out sets at further temperatures.
TEMPERATURE = "temperature "


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutSet:
    """Prompts that a validation asks together, for one pass rate."""

    name: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    #: Answers to each prompt.
    k: int


@dataclass(frozen=True, slots=True, eq=False)
class RunSetup:
    """Everything a run needs, resolved and checked before anything starts."""

    recipe: Recipe
    task: Task
    tokenizer: Any
    chat: Chat
    #: Tokens that are not shown in the text of an answer.
    hidden: frozenset[int]
    #: Training prompts, by id.
    prompts: dict[str, Prompt]
    #: Held-out prompts of the task.
    validation: tuple[Prompt, ...]
    #: Further held-out sets, by name.
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
    #: Tokens of the longest prompt plus the longest answer.
    columns: int
    #: Rollouts that an engine writes at once for training.
    slots: int
    #: Rollouts that an engine writes at once for validation.
    validation_slots: int
    #: Whether the model is a mixture of experts.
    experts: bool = False
    #: How episodes are played in environments; None for tasks of single turns.
    episodes: EpisodeRules | None = None
    #: LoRA adapters that are trained; None: all weights are.
    adapter: AdapterSpec | None = None

    @staticmethod
    def from_recipe(
        recipe: Recipe,
        asks: Callable[[Task], Sequence[Prompt]] | None = None,
        today: Callable[[], date] = date.today,
    ) -> RunSetup:
        """Resolve a recipe; raises InputError over anything that cannot work.

        asks   chooses the prompts of an evaluation, which has no other sets and no training prompts
        today  is called only where the chat template writes a date into prompts and the recipe
               sets none; the recipe of the setup then does
        """
        model, trust = model_path(recipe.model.path), recipe.model.trust_remote_code
        device = resolve_device(recipe.placement.device)
        tokenizer = load_tokenizer_fast(model, trust_remote_code=trust)
        if recipe.model.chat_date is None and reads_the_clock(tokenizer):
            recipe = recipe.replace({"model.chat_date": today().isoformat()})
        day = recipe.model.chat_date
        task = task_of(recipe.task)
        asked = asks(task) if asks else task.validation_prompts(recipe.validation.prompts)
        train = {p.id: p for p in (asked if asks else task.train_prompts(recipe.seed))}
        if not train:
            raise InputError(f"task {task.name} has no prompts to train on: see held_out_share")
        shape = meta_model_fast(model, recipe.model.dtype, trust_remote_code=trust)
        configs = (load_generation_config_fast(model), shape.config.get_text_config())
        stop_ids = stop_tokens(tokenizer, *configs)
        hidden = hidden_tokens(tokenizer, (recipe.task.think_open, recipe.task.think_close))
        control = _control(recipe, tokenizer, stop_ids, hidden)
        plain = Limit(control.max_tokens, stop_ids)
        chat = Chat(tokenizer, None if day is None else date.fromisoformat(day))
        columns = recipe.sampling.max_prompt_tokens + _answer_tokens(recipe, task, control)
        context = context_length(shape.config)
        if context is not None and columns > context:
            raise InputError(
                f"sampling.max_prompt_tokens + the longest answer = {columns} tokens, but the "
                f"model reads {context}: lower sampling.max_prompt_tokens or the budgets in "
                f"{'environment' if _has_environment(task) else 'length'}"
            )
        if recipe.precision.routing == "replay" and not routers_of(shape):
            raise InputError(
                f"precision.routing=replay is for mixtures of experts, and {recipe.model.path} has "
                "no router: set precision.routing=own"
            )
        words = shape.get_input_embeddings().weight.shape[0]
        adapter = adapter_spec(recipe, probe_tokens(words, columns))
        # Two lanes share the cache, each with half of it.
        most = CACHE_BYTES // (cache_bytes(shape.config) * columns)
        setup = RunSetup(
            recipe=recipe,
            task=task,
            tokenizer=tokenizer,
            chat=chat,
            hidden=hidden,
            prompts=train,
            validation=tuple(asked),
            downstream={} if asks else {n: tuple(p) for n, p in task.downstream().items()},
            curriculum=Curriculum(list(train), _rule(recipe), recipe.seed),
            schedule=_schedule(recipe),
            control=control,
            validation_control=control if recipe.validation.length_control else plain,
            sampling=Sampling(
                recipe.sampling.temperature,
                recipe.sampling.top_p,
                recipe.sampling.top_k,
                recipe.forces.sampler_noise,
            ),
            validation_sampling=Sampling(recipe.validation.temperature),
            model=model,
            device=device,
            options=options_from_recipe(recipe),
            layout=_layout(shape, adapter, recipe.model.dtype),
            adapter=adapter,
            parameters=matmul_parameters(shape),
            experts=bool(routers_of(shape)),
            episodes=_episode_rules(recipe, task, chat, stop_ids, columns),
            columns=columns,
            slots=max(min(recipe.batch.completions, MAX_SLOTS, most // 2), 1),
            validation_slots=max(min(MAX_SLOTS, most // 2), 1),
        )
        setup._check_system_prompt()
        setup._check_roles()
        return setup._without_long_prompts()._with_slots_for_all()

    @property
    def warnings(self) -> list[str]:
        """Warnings about this run, for the user, before it starts."""
        found = list(self.task.notes)
        if self.recipe.model.trust_remote_code:
            found.append(
                f"model.trust_remote_code = true: Python code that comes with {self.model} runs "
                "here, with all your rights"
            )
        if self.chat.merges and any("system" in roles for roles in self._roles()):
            found.append(
                "the model's chat template refuses system messages: they are put before the first "
                "message of the user"
            )
        if self.episodes is not None and not self.episodes.keep_history:
            found += self.episodes.renderer.warnings
        return found

    def plays(self, prompt: Prompt) -> bool:
        """Whether episodes of this prompt are played in an environment."""
        return self.task.member_for(prompt).has_environment

    @property
    def episode_rules(self) -> EpisodeRules:
        """How episodes are played, for tasks with environments."""
        assert self.episodes is not None, "only episodes in environments ask"
        return self.episodes

    @property
    def dated(self) -> bool:
        """Whether the chat template writes a date into prompts."""
        return reads_the_clock(self.tokenizer)

    @property
    def stop_text(self) -> str:
        """A line about the tokens that end a rollout."""
        ids = self.control.stop_ids
        named = [f"{self.tokenizer.convert_ids_to_tokens(i)} ({i})" for i in ids]
        return f"rollouts end at {', '.join(named) or 'no token, only at their longest'}"

    def _roles(self) -> dict[tuple[str, ...], Prompt]:
        """One prompt for each sequence of chat roles that occurs."""
        sets = (self.prompts.values(), self.validation, *self.downstream.values())
        return {
            tuple(message["role"] for message in p.question): p
            for prompts in sets
            for p in prompts
            if not isinstance(p.question, str)
        }

    def _check_roles(self) -> None:
        """Render one prompt of each sequence of roles: raises if the chat template refuses it."""
        for prompt in self._roles().values():
            if not self.plays(prompt):  # the environment may add to its messages
                self.tokens_of(prompt)

    def _without_long_prompts(self) -> RunSetup:
        """Leave out held-out prompts that are too long. (Training prompts are checked when they are
        drawn: rendering all of a large dataset would delay the start.)"""
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

    def _with_slots_for_all(self) -> RunSetup:
        """Reduce the validation slots to the number of answers of a validation."""
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
        """Further temperatures of the held-out prompts, by the text that names them: "0", "0.6"."""
        further = self.recipe.validation.also_temperatures
        return {repr(float(t)).removesuffix(".0"): t for t in further}

    @property
    def sets(self) -> tuple[HeldOutSet, ...]:
        """All sets of a validation: the held-out prompts of the task, downstream sets, and the
        held-out prompts at further temperatures."""
        k, usual = self.recipe.validation.k, self.validation_sampling
        others = [HeldOutSet(name, found, usual, k) for name, found in self.downstream.items()]
        for text, t in self.temperatures.items():
            # Greedy answers to a prompt are all the same: one is enough.
            name, answers = TEMPERATURE + text, k if t > 0 else 1
            others.append(HeldOutSet(name, self.validation, Sampling(t), answers))
        return (HeldOutSet(MAIN, self.validation, usual, k), *others)

    def fits(self, prompt: Prompt) -> bool:
        """Whether a prompt has at least one token and at most sampling.max_prompt_tokens. (With an
        environment, that is known when it is reset.)"""
        if self.plays(prompt):
            return True
        return 0 < len(self.tokens_of(prompt)) <= self.recipe.sampling.max_prompt_tokens

    def messages_of(self, prompt: Prompt) -> tuple[Message, ...]:
        """The messages that a conversation about a prompt begins with."""
        messages = prompt.question
        if isinstance(messages, str):
            messages = ({"role": "user", "content": messages},) if messages else ()
        return (*self._system(prompt), *messages)

    def first_tokens(self, prompt: Prompt) -> npt.NDArray[np.int64] | None:
        """The tokens of a prompt; None with an environment, which is reset first."""
        return None if self.plays(prompt) else self.tokens_of(prompt)

    def tokens_of(self, prompt: Prompt) -> npt.NDArray[np.int64]:
        """The tokens of a prompt, by the chat template where the tokenizer has one."""
        if self.chat.exists:
            messages = self.messages_of(prompt)
            try:
                return np.asarray(self.chat.tokens(messages), dtype=np.int64)
            except InputError as error:
                raise InputError(f"prompt {prompt.id}: {error}: {_begin(messages)}") from None
        if prompt.is_chat:
            raise InputError(
                f"prompt {prompt.id} is a chat, but the tokenizer of {self.recipe.model.path} has "
                "no chat template: take a model that has one, or ask plain text "
                "(task.options.chat = false)"
            )
        return np.asarray(self.tokenizer(prompt.question)["input_ids"], dtype=np.int64)

    def _system(self, prompt: Prompt) -> tuple[Message, ...]:
        """The system message of the recipe, if it has one."""
        text = self.recipe.task.system_prompt
        if not text:
            return ()
        chat = () if isinstance(prompt.question, str) else prompt.question
        if any(message["role"] == "system" for message in chat):
            raise InputError(
                f"prompt {prompt.id} has a system message of its own: leave task.system_prompt "
                "empty, or take that message out of the dataset"
            )
        return ({"role": "system", "content": text},)

    def _check_system_prompt(self) -> None:
        if not self.recipe.task.system_prompt:
            return
        model = self.recipe.model.path
        if not self.chat.exists:
            raise InputError(
                f"task.system_prompt needs a chat template, and the tokenizer of {model} has none: "
                "leave it empty, or take a model that has one"
            )
        if self.chat.merges:
            raise InputError(
                f"task.system_prompt is refused by the chat template of {model}, which has no "
                "system role: leave it empty, and write it into the questions"
            )

    def answer(self, prompt: Prompt, token_ids: npt.NDArray[np.int64], step: int) -> Answer:
        """An answer as checkers get it."""
        return Answer(prompt, self.text_of(token_ids), tuple(token_ids.tolist()), step)

    def text_of(self, token_ids: npt.NDArray[np.int64]) -> str:
        """The text of a completion, without hidden tokens."""
        shown = [i for i in token_ids.tolist() if i not in self.hidden]
        return str(self.tokenizer.decode(shown, skip_special_tokens=False))

    def episode_text(self, episode: Episode) -> str:
        """The text of an episode behind its prompt: of an episode of one turn, the answer; of
        several, each turn after the role that wrote it."""
        rules = self.episodes
        return transcript(episode, self.text_of, None if rules is None else rules.renderer)


def _begin(messages: Sequence[Mapping[str, str]]) -> str:
    """The roles of a chat and the beginning of its first message, for errors."""
    roles = ", ".join(message["role"] for message in messages)
    return f"its roles are {roles}, it begins {messages[0]['content'][:40]!r}"


def _has_environment(task: Task) -> bool:
    """Whether any prompt of a task is played in an environment."""
    return any(member.has_environment for member in task.members())


def _answer_tokens(recipe: Recipe, task: Task, control: LengthControl) -> int:
    """The most tokens that follow a prompt: one turn, or the turns and replies of an episode."""
    if not _has_environment(task):
        return control.max_tokens
    limits = recipe.environment
    if limits.episode_tokens is not None:
        if limits.episode_tokens < control.max_tokens:
            raise InputError(
                f"environment.episode_tokens = {limits.episode_tokens} has no room for one turn of "
                f"{control.max_tokens} tokens: raise it, or lower the budgets in length"
            )
        return limits.episode_tokens
    # A suffix has a few tokens of the template besides the observation.
    reply = limits.observation_tokens + TEMPLATE_TOKENS
    return limits.turns * control.max_tokens + (limits.turns - 1) * reply


def _episode_rules(
    recipe: Recipe, task: Task, chat: Chat, stop_ids: tuple[int, ...], columns: int
) -> EpisodeRules | None:
    if not _has_environment(task):
        _refuse_environment_keys(recipe, task)
        return None
    if recipe.precision.routing == "replay":
        raise InputError(
            "precision.routing=replay is for tasks of a single turn: each turn in an environment "
            "routes the earlier ones again; set precision.routing=own"
        )
    limits, tags = recipe.environment, (recipe.task.think_open, recipe.task.think_close)
    tokenizer = chat.tokenizer
    # Llama 3 opens a tool call with a special token.
    hidden = hidden_tokens(tokenizer, (*tags, PYTHON_TAG))
    name = limits.tool_format
    if name == "auto":
        name = detect(getattr(tokenizer, "chat_template", None))

    def text_of(token_ids: npt.NDArray[np.int64]) -> str:
        shown = [i for i in token_ids.tolist() if i not in hidden]
        return str(tokenizer.decode(shown, skip_special_tokens=False))

    return EpisodeRules(
        renderer=TurnRenderer(chat, stop_ids, think_open=tags[0], think_close=tags[1]),
        tool_format=TOOL_FORMATS[name],
        text_of=text_of,
        turns=limits.turns,
        observation_tokens=limits.observation_tokens,
        seconds=limits.seconds,
        columns=columns,
        keep_history=limits.history == "keep",
    )


def _refuse_environment_keys(recipe: Recipe, task: Task) -> None:
    """Raise an InputError for a key that only environments use."""
    default, given = EnvironmentSection(), recipe.environment
    names = EnvironmentSection.model_fields
    keys = [f"environment.{k}" for k in names if getattr(given, k) != getattr(default, k)]
    if recipe.advantage.credit != AdvantageSection().credit:
        keys.append("advantage.credit")
    if keys:
        raise InputError(
            f"{keys[0]} has no effect on task {task.name}: its episodes have one turn; leave it "
            "out, or take a task with an environment"
        )


def adapter_spec(recipe: Recipe, probe: tuple[int, ...] = ()) -> AdapterSpec | None:
    """The adapters of a recipe; None where all weights are trained."""
    asked = recipe.adapter
    if not asked.rank:
        return None
    return AdapterSpec(
        rank=asked.rank,
        alpha=asked.alpha_used,
        targets=asked.targets,
        experts=asked.experts,
        head=asked.head,
        merged=asked.mode == "merged",
        seed=recipe.seed,
        probe=probe,
        proof_every=recipe.placement.proof_every,
    )


def _layout(shape: Any, adapter: AdapterSpec | None, dtype: str) -> Layout:
    """What a publish carries: all weights, or an adapter with its proof. Raises where the model
    cannot have the adapter."""
    if adapter is None:
        return Layout.from_model(shape)
    tensors = shapes_of(targets_of(shape, adapter), adapter.rank)
    tensors[PROOF] = (proof_size(adapter),)
    wide = accumulation_dtype(getattr(torch, dtype))
    return Layout(tuple(tensors), tuple(tensors.values()), wide)


def _rule(recipe: Recipe) -> RetirementRule:
    chosen = recipe.curriculum
    make = CURRICULA[chosen.name]
    check_constants("curriculum", chosen.name, make, chosen.constants)
    return _made(f"curriculum {chosen.name}", RetirementRule, make, **chosen.constants)


def _schedule(recipe: Recipe) -> Schedule:
    name, make = recipe.schedule.name, SCHEDULES[recipe.schedule.name]
    check_call(f"schedule {name}", make, "k", "prompts")
    schedule = _made(f"schedule {name}", Schedule, make, recipe.schedule.k, recipe.batch.prompts)
    if recipe.filter.zero_variance == "refill" and not schedule.streams:
        raise InputError(
            f'filter.zero_variance = "refill" needs a schedule that streams, and {name} does not: '
            'set schedule.name = "pipeline", or filter.zero_variance = "drop"'
        )
    return schedule


def _control(
    recipe: Recipe, tokenizer: Any, stop_ids: tuple[int, ...], hidden: frozenset[int]
) -> LengthControl:
    chosen = recipe.length
    vocabulary = Vocabulary(
        encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
        pieces=lambda: token_pieces(tokenizer, hidden),
        think_close=recipe.task.think_close,
        stop_ids=stop_ids,
    )
    make = LENGTH_CONTROLS[chosen.control]
    check_constants("length", chosen.control, make, chosen.constants, ("vocabulary",))
    what = f"length control {chosen.control}"
    control = _made(what, LengthControl, make, vocabulary, **chosen.constants)
    check_travels(what, control)
    return control


def _made(what: str, kind: type, make: Callable[..., T], *given: Any, **constants: Any) -> T:
    """What a registered function makes; raises InputError if it fails or lacks a method or property
    of `kind`, a protocol."""
    try:
        made = make(*given, **constants)
    except InputError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise InputError(
            f"{what} cannot be made: {one_line(f'{type(error).__name__}: {error}')}"
        ) from None
    needed = sorted(name for name in vars(kind) if not name.startswith("_"))
    missing = [name for name in needed if not hasattr(made, name)]
    if missing:
        raise InputError(f"{what} has no {', '.join(missing)}: it needs {', '.join(needed)}")
    return made
