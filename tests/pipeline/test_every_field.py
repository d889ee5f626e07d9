"""No knob does nothing: changing any field of the schema changes what a run is made of or what it
does, or is refused with the reason. A field that is new in the schema must be named here."""

import json
import sys
from dataclasses import fields, is_dataclass

import pytest
from pydantic import BaseModel

from scalerl.errors import InputError
from scalerl.pipeline.alarms import Alarms
from scalerl.pipeline.setup import RunSetup
from scalerl.placement.inline import InlineCrew
from scalerl.placement.specs import Specs
from scalerl.placement.world import Duration, World
from scalerl.recipe import Recipe
from scalerl.recipe.problems import known_fields
from scalerl.recipe.schema import IDENTITY
from scalerl.runs.lines import EpisodeLine, EvalLine, StepLine, ValidationEpisodeLine
from scalerl.runs.listener import Listener
from scalerl.runs.store import RunStore
from scalerl.training import RunAttempts

#: A run of a moment: everything real but engine, trainer and time.
BASE = [
    "placement.backend=inline", "placement.engine=simulated", "placement.trainer=simulated",
    "batch.prompts=2", "batch.generations=2", "validation.prompts=2", "validation.k=1",
    "validation.every=2", "validation.also_temperatures=[]", "checkpoint.every=3",
    "task.options.prompts=40", "budget.steps=7",
    "budget.gpu_hours=",
]  # fmt: skip
LORA = ["adapter.rank=4"]
NO_CONTROL = ["length.control=none", "length.max_tokens=40"]
HEADS = ["precision.trainer_head=model", "precision.generator_head=model"]
PENALTY = ["length.control=penalty", "length.max_tokens=70", "length.penalty_max=40",
           "length.penalty_cache=8"]  # fmt: skip
DECAY = ["optimiser.warmup_steps=2", "optimiser.decay=linear"]
GYM = "reasoning-gym:leg_counting"
#: It asks in words, which the tiny model's tokenizer knows letter by letter, if at all.
WORDS = ["sampling.max_prompt_tokens=400", "task.options={}"]
MIXTURE = [f"task.name=running-sums+{GYM}", *WORDS, f"task.options.{GYM}={{chat = false}}"]
PLAIN = [f"task.name={GYM}", *WORDS, "task.options.chat=false"]

PLAY = ["task.name=environment:tiny-tools", "task.options={}", "model.path=tiny-tools",
        "environment.turns=3", "environment.observation_tokens=9", *NO_CONTROL]  # fmt: skip
#: Field -> what to change, and what to change before it where the field only then has a meaning.
CHANGES = {
    "seed": ("seed=1", []),
    "model.dtype": ("model.dtype=bfloat16", []),
    "model.trust_remote_code": ("model.trust_remote_code=true", []),
    "model.chat_date": ("model.chat_date=2026-01-31", []),
    "adapter.rank": ("adapter.rank=4", []),
    "adapter.alpha": ("adapter.alpha=4.0", LORA),
    "adapter.targets": ('adapter.targets=["q_proj"]', LORA),
    "adapter.head": ("adapter.head=true", LORA),
    "adapter.mode": ("adapter.mode=unmerged", LORA),
    "adapter.lr_factor": ("adapter.lr_factor=20.0", LORA),
    "task.name": (PLAIN, []),
    "task.weights": ("task.weights=[3.0, 1.0]", MIXTURE),
    "task.reward_correct": ("task.reward_correct=2.0", []),
    "task.reward_wrong": ("task.reward_wrong=0.0", []),
    "task.options": ("task.options.items_max=8", []),
    "task.think_close": ("task.think_close=!", PLAIN),
    "task.think_open": ("task.think_open=;", PLAIN),
    "sampling.temperature": ("sampling.temperature=0.7", []),
    "sampling.top_p": ("sampling.top_p=0.9", []),
    "sampling.top_k": ("sampling.top_k=5", []),
    "sampling.max_prompt_tokens": ("sampling.max_prompt_tokens=48", []),
    "batch.prompts": ("batch.prompts=3", []),
    "batch.generations": ("batch.generations=3", []),
    "loss.name": ("loss.name=dapo", []),
    "loss.aggregation": ("loss.aggregation=token", []),
    "loss.count_forced_tokens": ("loss.count_forced_tokens=true", []),
    "loss.kl_coefficient": ("loss.kl_coefficient=0.1", []),
    "loss.kl_estimator": ("loss.kl_estimator=k1", ["loss.kl_coefficient=0.1"]),
    "advantage.normalisation": ("advantage.normalisation=prompt", []),
    "advantage.population": ("advantage.population=all", []),
    "advantage.ddof": ("advantage.ddof=1", []),
    "advantage.epsilon": ("advantage.epsilon=0.01", []),
    "advantage.credit": ("advantage.credit=turn", PLAY),
    "environment.turns": ("environment.turns=2", PLAY),
    "environment.observation_tokens": ("environment.observation_tokens=5", PLAY),
    "environment.episode_tokens": ("environment.episode_tokens=90", PLAY),
    "environment.seconds": ("environment.seconds=5.0", PLAY),
    "environment.history": ("environment.history=keep", PLAY),
    "environment.tool_format": ("environment.tool_format=hermes", PLAY),
    "filter.zero_variance": ("filter.zero_variance=keep", []),
    "filter.truncated": ("filter.truncated=keep", []),
    "filter.further": ('filter.further=["zero-variance"]', []),
    "filter.empty_steps": ("filter.empty_steps=3", []),
    "curriculum.name": ("curriculum.name=uniform", []),
    "curriculum.threshold": ("curriculum.threshold=0.5", []),
    "curriculum.history": ("curriculum.history=mean", []),
    "curriculum.return_after": ("curriculum.return_after=1", []),
    "length.control": (NO_CONTROL, []),
    "length.phrase": ("length.phrase=</think>", []),
    "length.think_tokens_min": ("length.think_tokens_min=50", []),
    "length.think_tokens_max": ("length.think_tokens_max=60", []),
    "length.answer_tokens": ("length.answer_tokens=5", []),
    "length.max_tokens": ("length.max_tokens=30", NO_CONTROL),
    "length.penalty_max": ("length.penalty_max=30", PENALTY),
    "length.penalty_cache": ("length.penalty_cache=10", PENALTY),
    "length.truncation_warn": ("length.truncation_warn=0.01", []),
    "length.truncation_critical": ("length.truncation_critical=0.5", []),
    "precision.trainer_head": ("precision.trainer_head=bf16-emulated", HEADS),
    "precision.generator_head": ("precision.generator_head=bf16-emulated", HEADS),
    "forces.sampler_noise": ("forces.sampler_noise=0.1", []),
    "forces.generator_split": (
        "forces.generator_split=4",
        ["precision.trainer_head=model", "precision.generator_head=bf16-emulated"]),
    "schedule.name": ("schedule.name=off-policy", []),
    "schedule.k": ("schedule.k=1", []),
    "optimiser.lr": ("optimiser.lr=1e-3", []),
    "optimiser.warmup_steps": ("optimiser.warmup_steps=3", []),
    "optimiser.decay": ("optimiser.decay=linear", ["optimiser.warmup_steps=2"]),
    "optimiser.decay_start": ("optimiser.decay_start=6", DECAY),
    "optimiser.decay_steps": ("optimiser.decay_steps=2", DECAY),
    "optimiser.min_lr_ratio": ("optimiser.min_lr_ratio=0.5", DECAY),
    "optimiser.weight_decay": ("optimiser.weight_decay=0.0", []),
    "optimiser.eps": ("optimiser.eps=1e-8", []),
    "optimiser.betas": ("optimiser.betas=[0.9, 0.99]", []),
    "optimiser.grad_clip": ("optimiser.grad_clip=0.5", []),
    "validation.prompts": ("validation.prompts=3", []),
    "validation.k": ("validation.k=2", []),
    "validation.every": ("validation.every=3", []),
    "validation.temperature": ("validation.temperature=0.0", []),
    "validation.also_temperatures": ("validation.also_temperatures=[0]", []),
    "validation.length_control": ("validation.length_control=false", []),
    "compute.axis": ("compute.axis=steps", []),
    "compute.count_validation": ("compute.count_validation=true", []),
    "budget.steps": ("budget.steps=5", []),
    "budget.gpu_hours": ("budget.gpu_hours=0.0005", []),
    "budget.minutes": ("budget.minutes=0.01", []),
    "checkpoint.every": ("checkpoint.every=2", ["checkpoint.keep=9"]),
    "checkpoint.keep": ("checkpoint.keep=1", []),
    "record.episodes_per_step": ("record.episodes_per_step=1", []),
    "record.episodes_megabytes": ("record.episodes_megabytes=1", []),
    "record.validation_megabytes": ("record.validation_megabytes=0", []),
    "placement.generators": ("placement.generators=2", []),
    "placement.devices_per_generator": ("placement.devices_per_generator=2", []),
    "placement.engine": ("placement.engine=local", []),
    "placement.trainer": ("placement.trainer=fsdp", []),
    "placement.activations": ("placement.activations=recompute", []),
    "placement.idle_cores": ("placement.idle_cores=wait", ["placement.backend=local"]),
    "placement.weights": ("placement.weights=shared-memory", []),
    "placement.proof_every": ("placement.proof_every=3", []),
    "placement.checkers": ("placement.checkers=3", []),
    "placement.environment_processes": ("placement.environment_processes=3", []),
    "placement.check_seconds": ("placement.check_seconds=5.0", []),
    "placement.deterministic": ("placement.deterministic=true", []),
    "placement.patience": ("placement.patience=5.0", []),
}  # fmt: skip
#: Field -> a change that cannot be, and the reason that is given. (Some of the above have both.)
REFUSALS = {
    "model.path": ("model.path=/nowhere", [], "no such directory"),
    "model.dtype": ("model.dtype=float16", [], "bfloat16"),
    "task.dataset": ("task.dataset=rows.jsonl", [], "makes its own prompts"),
    "task.system_prompt": ("task.system_prompt=Sum.", [], "needs a chat template"),
    "task.think_open": ("task.think_open=;", [], "the tiny model ends its thoughts with"),
    "loss.kl_estimator": ("loss.kl_estimator=k1", [], "kl_coefficient above 0"),
    "loss.count_forced_tokens": ("loss.count_forced_tokens=true", NO_CONTROL, "interruption"),
    "advantage.population": (
        "advantage.population=all", ["advantage.normalisation=prompt"], "std of the batch"),
    "advantage.ddof": ("advantage.ddof=1", ["advantage.normalisation=none"], "uses no std"),
    "advantage.credit": ("advantage.credit=turn", [], "episodes have one turn"),
    "environment.turns": ("environment.turns=2", [], "has no effect on task running-sums"),
    "validation.also_temperatures": (
        "validation.also_temperatures=[0.5, 1]", [], "1 is given twice"),
    "validation.length_control": ("validation.length_control=false", NO_CONTROL, "interruption"),
    "length.phrase": ("length.phrase=!", [], "does not close the thought"),
    "length.max_tokens": ("length.max_tokens=30", [], "not used by interruption"),
    "precision.one_sided": (
        "precision.one_sided=false",
        ["precision.one_sided=true", "precision.generator_head=bf16-emulated"], "or neither"),
    "adapter.experts": ("adapter.experts=true", LORA, "has none: leave it out"),
    "precision.routing": ("precision.routing=replay", [], "tiny has no router"),
    "optimiser.name": ("optimiser.name=adamv", [], "did you mean 'adamw'"),
    "placement.trainers": ("placement.trainers=2", [], "placement.trainers"),
    "placement.device": ("placement.device=cuda", [], "no GPU"),
    "placement.backend": ("placement.backend=ray", [], "needs Ray: pip install"),
    "placement.address": ("placement.address=auto", [], "is used by Ray only"),
    "placement.engine": ("placement.engine=vllm", [], "needs vLLM: install"),
    "placement.devices_per_generator": (
        "placement.devices_per_generator=2", ["placement.engine=local"], "uses one device"),
    "placement.weights": (
        "placement.weights=direct", ["placement.backend=local"], "within one process"),
}  # fmt: skip


def plain(value):
    """Anything as JSON would have it, deep enough to see a difference."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, BaseModel):  # a section of the recipe
        return plain(value.model_dump())
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, str | int | float | bool | None):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)


def made_of(recipe):
    """What the workers of a run are made of, and the settings of the loop."""
    setup = RunSetup.from_recipe(recipe)
    specs = Specs.from_setup(setup, None, default_channel="direct")
    first = setup.curriculum.draw(4)
    where = recipe.placement
    return {
        "plan": {
            "prompts": [setup.prompts[str(i)].question for i in first],
            "all": len(setup.prompts),
            "tasks": sorted({p.task for p in setup.prompts.values()}),
            "shares": [p.task for p in setup.prompts.values()].count("running-sums"),
            "validation": [p.id for p in setup.validation],
            "rules": plain(setup.task.rules),
            "curriculum": setup.curriculum.state_dict()["rule"],
            "schedule": [type(setup.schedule).__name__, plain(setup.schedule)],
            "controls": plain([setup.control, setup.validation_control]),
            "sampling": plain([setup.sampling, setup.validation_sampling]),
            "options": plain(setup.options),
            "length": recipe.length.constants,
            "sizes": [setup.columns, setup.slots, setup.validation_slots, setup.parameters],
            "dtype": str(setup.layout.dtype),
            "date": setup.chat.variables.get("date_string"),
            "episodes": plain(setup.episodes),
        },
        "specs": plain([specs.make_engine, specs.engine, specs.make_trainer, specs.trainer,
                        type(specs.channel)]),
        "alarms": plain(Alarms.from_recipe(recipe)),
        "loop": [where.patience, where.checkers, where.environment_processes, where.check_seconds,
                 where.deterministic, recipe.filter.empty_steps,
                 recipe.record.episodes_megabytes],
    }  # fmt: skip


def does(recipe, out):
    """What a run of it does, on a clock that is made up."""

    def begin(recipe, checkpoint):
        setup = RunSetup.from_recipe(recipe)
        crew = InlineCrew(setup, checkpoint, World(check=Duration(0.05, 0.5)))
        return setup, crew, crew.clock

    store = RunStore(out)
    run = RunAttempts(recipe, store, None, Listener(), False, begin)
    end = run.run()
    steps, evals = store.read(StepLine), store.read(EvalLine)
    return {
        "axis": run.axis,
        "reason": end.reason,
        "steps": [[s.step, s.prompts, s.pass_rate, s.staleness.max] for s in steps],
        "evals": [[e.step, e.compute.device_hours, e.n_prompts, e.k] for e in evals],
        "episodes": [e.step for e in store.read(EpisodeLine)],
        "answers": [e.step for e in store.read(ValidationEpisodeLine)],
        "checkpoints": sorted(p.name for p in (out / "checkpoints").iterdir()),
    }


def differs(base, change, tmp_path):
    """Whether the change shows in what a run is made of, or else in what it does."""
    changes = [change] if isinstance(change, str) else change
    before, after = (Recipe.load("scalerl", "tiny", overrides=[*base, *c]) for c in ([], changes))
    if json.dumps(made_of(before)) != json.dumps(made_of(after)):
        return True
    return does(before, tmp_path / "before") != does(after, tmp_path / "after")


def test_every_field_is_looked_at():
    known = set(known_fields()) - set(IDENTITY)
    assert known == CHANGES.keys() | REFUSALS.keys()


@pytest.mark.parametrize("field", CHANGES)
def test_changing_a_field_changes_the_run(field, tmp_path):
    change, before = CHANGES[field]
    assert differs([*BASE, *before], change, tmp_path)


@pytest.mark.parametrize("field", REFUSALS)
def test_what_cannot_be_is_refused_with_the_reason(field, monkeypatch):
    from scalerl.placement.registry import place

    for package in ("ray", "vllm"):  # as where they are not installed
        monkeypatch.setitem(sys.modules, package, None)
    change, before, reason = REFUSALS[field]
    with pytest.raises(InputError, match=reason):
        place(
            RunSetup.from_recipe(
                Recipe.load("scalerl", "tiny", overrides=[*BASE, *before, change])
            ),
            None,
        )
