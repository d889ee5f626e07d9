"""verl's PPO trainer config (YAML, or the overrides of a launch script) as a recipe.

Conventions that differ, and how they are converted:

* a clip is an offset from 1 everywhere: with `loss_mode: cispo` the cap is 1 + clip_ratio_high.
* `clip_ratio_low` and `clip_ratio_high` have a default of their own, 0.2: `clip_ratio` counts only
  where they are null.
* `data.train_batch_size` and `ppo_mini_batch_size` count prompts. A training step of verl is one
  generation phase with k = train_batch_size / ppo_mini_batch_size optimiser steps: off-policy-k.
  Steps of training, warm-up, validation and saving are counted in phases, here in optimiser steps.
* GRPO's advantages divide by a sample std (ddof 1) + 1e-6; groups without variance stay, unless
  `filter_groups` replaces them: here they are left out of the step.
* verl's devices generate and train in turn; here each does one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalerl.errors import InputError
from scalerl.recipe.importers.hydra import resolve
from scalerl.recipe.importers.result import Imported, Reader, flatten

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."

#: Settings of loading, placing, logging, saving and memory, not of learning.
HOUSEKEEPING_PREFIXES = (
    *("defaults", "hydra.", "ray_", "global_profiler.", "transfer_queue.", "trainer."),
    *("data.", "actor_rollout_ref.model.", "actor_rollout_ref.ref.", "actor_rollout_ref.hybrid"),
    *("actor_rollout_ref.nccl_timeout", f"{ACTOR}fsdp_config.", f"{ACTOR}megatron."),
    *(f"{ACTOR}checkpoint.", f"{ACTOR}profiler.", f"{ACTOR}ppo_micro", f"{ACTOR}ppo_max_token"),
    *(f"{ACTOR}use_dynamic_bsz", f"{ACTOR}strategy", f"{ACTOR}use_torch_compile"),
    *(f"{ACTOR}use_fused", f"{ACTOR}use_remove", f"{ACTOR}ulysses", f"{ACTOR}shuffle"),
    *(f"{ACTOR}entropy_from", f"{ACTOR}entropy_check", f"{ACTOR}load_weight"),
    f"{ACTOR}data_loader",
    ROLLOUT,
)  # fmt: skip
#: Endings of keys under these prefixes that do change what is learned.
LEARNING = (
    *("lora_rank", "custom_cls.path", "sampler.class_path", "datagen.path", "multi_turn.enable"),
    *("gen_batch_size", "repetition_penalty", "ignore_eos", "critic_warmup", "over_sample_rate"),
)
#: Settings of optional features: prefix → the switch.
OPTIONAL = {
    "algorithm.kl_ctrl.": "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty": "algorithm.use_kl_in_reward",
    "algorithm.pf_ppo.": "algorithm.use_pf_ppo",
    "algorithm.filter_groups.": "algorithm.filter_groups.enable",
    "reward_model.overlong_buffer.": "reward_model.overlong_buffer.enable",
    "reward_model.": "reward_model.enable",
}
#: Values that change nothing with the estimators and losses that have a counterpart.
NEUTRAL: dict[str, Any] = {
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    f"{ACTOR}ppo_epochs": 1,
    f"{ACTOR}entropy_coeff": 0,
    f"{ACTOR}tis_imp_ratio_cap": -1,
    "actor_rollout_ref.model.lora_rank": 0,
    f"{ROLLOUT}over_sample_rate": 0,
    f"{ROLLOUT}repetition_penalty": 1.0,
    "trainer.critic_warmup": 0,
}
#: The tables by which a config of verl is recognised.
SECTIONS = ("actor_rollout_ref", "algorithm", "data", "trainer")

#: Advantage estimators with a counterpart → what advantages are divided by.
NORMALISATION = {
    "grpo": "prompt",
    "rloo": "none",
    "reinforce_plus_plus_baseline": "batch",
}
AGGREGATION = {
    "token-mean": "token",
    "seq-mean-token-mean": "sample",
    "seq-mean-token-sum-norm": "constant",
    "seq-mean-token-sum": "constant",
}
KL_ESTIMATORS = {
    "kl": "k1",
    "k1": "k1",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
ENGINES = {"vllm": "vllm", "hf": "local"}
#: More devices than this are a mistake, and splitting them would take forever.
MAX_DEVICES = 1_000_000


def is_verl(config: Mapping[str, Any]) -> bool:
    """Whether the tables of a config are those of verl."""
    found = [name for name in SECTIONS if isinstance(config.get(name), Mapping)]
    # The names of the other three are common: only all of them together tell.
    return "actor_rollout_ref" in found or len(found) == 3


def from_verl(config: Mapping[str, Any]) -> Imported:
    """A recipe from the tables of verl's `ppo_trainer.yaml`."""
    reader = Reader(resolve(flatten(config)))
    reader.set("model.path", reader.take("actor_rollout_ref.model.path"))
    reader.set("model.dtype", "bfloat16")
    reader.set_heads(False)
    phases = _batch(reader)
    _placement(reader)
    _sampling(reader)
    _advantage(reader)
    _loss(reader)
    _optimiser(reader, phases)
    _validation(reader, phases)
    _data(reader)
    name = reader.take("trainer.experiment_name", default="verl")
    reader.leave_out(NEUTRAL)
    reader.forget(*(start for start, key in OPTIONAL.items() if not reader.config.get(key)))
    # The estimators that have a counterpart need no critic, and the constants of losses that have
    # none are not used.
    reader.forget("critic.", f"{ACTOR}policy_loss.")
    # Hydra's name of the class that a table becomes in verl.
    reader.take(*(key for key in reader.left if key.endswith("_target_")))
    return reader.finish(str(name), "imported from a verl config", _housekeeping)


def _housekeeping(key: str) -> bool:
    """Whether a key is about loading, placing, logging or saving, not about learning."""
    return key.startswith(HOUSEKEEPING_PREFIXES) and not key.endswith(LEARNING)


def _batch(reader: Reader) -> int:
    """Prompts and rollouts of an optimiser step; returns the optimiser steps of a phase."""
    # Defaults here and below are verl's: a config has only the keys that were changed.
    prompts: int = reader.whole("data.train_batch_size", default=1024, least=1)
    mini: int = reader.whole(f"{ACTOR}ppo_mini_batch_size", default=256, least=1)
    k, rest = divmod(prompts, mini)
    if rest or not k:
        raise InputError(
            f"data.train_batch_size = {prompts} is no multiple of ppo_mini_batch_size = {mini}: "
            "make the optimiser steps of a phase equally large"
        )
    reader.set("batch.prompts", mini)
    reader.set("batch.generations", reader.whole(f"{ROLLOUT}n", default=1, least=1))
    reader.set("schedule.name", "off-policy")
    reader.set("schedule.k", k)
    reader.convert(
        "data.train_batch_size", f"{prompts} prompts a phase / {mini} a step = off-policy-{k}"
    )
    return k


def _placement(reader: Reader) -> None:
    nodes = reader.whole("trainer.nnodes", default=1, least=1)
    per_node = reader.whole("trainer.n_gpus_per_node", default=8, least=1)
    devices = nodes * per_node
    if devices > MAX_DEVICES:
        raise InputError(
            f"trainer.nnodes = {nodes:g} of trainer.n_gpus_per_node = {per_node:g} are more than "
            f"{MAX_DEVICES:,} devices: give those of the run"
        )
    batch = reader.changes
    rollouts = batch["batch.prompts"] * batch["batch.generations"] * batch["schedule.k"]
    # The rollouts of a phase split evenly among the generators.
    half = max(1, devices // 2)
    generators = next(n for n in range(half, 0, -1) if rollouts % n == 0)
    trainers = max(1, devices - half)
    reader.set("placement.generators", generators)
    reader.set_trainers(trainers)
    reader.set("placement.backend", "local" if nodes == 1 else "ray")
    reader.convert(
        "trainer.n_gpus_per_node",
        f"{devices} devices generate and train in turn; here {generators} generate and {trainers} "
        "train",
    )
    engine = str(reader.take(f"{ROLLOUT}name", default="vllm"))
    reader.set("placement.engine", ENGINES.get(engine, "vllm"))
    if engine not in ENGINES:
        reader.convert(f"{ROLLOUT}name", "no such engine here: vllm")


def _sampling(reader: Reader) -> None:
    reader.set_float("sampling.temperature", f"{ROLLOUT}temperature", default=1.0)
    reader.set_float("sampling.top_p", f"{ROLLOUT}top_p", default=1.0)
    reader.set("sampling.top_k", max(0, reader.whole(f"{ROLLOUT}top_k", default=-1)))
    prompt = reader.whole("data.max_prompt_length", f"{ROLLOUT}prompt_length", default=512)
    tokens = reader.whole("data.max_response_length", f"{ROLLOUT}response_length", default=512)
    reader.set("sampling.max_prompt_tokens", prompt)
    reader.set("length.control", "none")
    reader.set("length.max_tokens", tokens)
    home = "reward_model.overlong_buffer."
    if reader.take(f"{home}enable", default=False):
        factor = reader.number(f"{home}penalty_factor", default=1.0)
        cache = reader.whole(f"{home}len", least=1)
        if factor != 1 or cache is None:
            reader.drop(
                f"{home}penalty_factor", "the length penalty here is 1 at most, and needs len"
            )
            return
        reader.set("length.control", "penalty")
        reader.set("length.penalty_max", tokens)
        reader.set("length.penalty_cache", cache)
        reader.convert(f"{home}len", "of correct and wrong answers there; here of correct ones")


def _advantage(reader: Reader) -> None:
    key = "algorithm.adv_estimator"
    kind = str(reader.take(key, default="gae"))
    if kind not in NORMALISATION:
        raise InputError(
            f"{key} = {kind} has no counterpart here, where advantages are centred in groups "
            f"without a critic: use {', '.join(NORMALISATION)}"
        )
    scaled = reader.take("algorithm.norm_adv_by_std_in_grpo", default=True)
    reader.set("advantage.normalisation", NORMALISATION[kind])
    if kind == "grpo" and not scaled:
        reader.set("advantage.normalisation", "none")
    elif kind == "grpo":
        reader.set("advantage.ddof", 1)
        reader.set("advantage.epsilon", 1e-6)
    elif kind == "rloo":
        reader.convert(key, "leave-one-out: n / (n - 1) times the centred advantage here")
    else:
        reader.set("advantage.population", "all")
        reader.convert(key, "whitened over tokens there, here over rollouts")
    home = "algorithm.filter_groups."
    filtered = reader.take(f"{home}enable", default=False)
    reader.set("filter.zero_variance", "drop" if filtered else "keep")
    if filtered:
        # Refilling needs the pipeline schedule: a phase hands out its prompts beforehand.
        reader.convert(
            f"{home}enable", "groups without variance are replaced there, here left out of the step"
        )
        reader.take(f"{home}metric", f"{home}max_num_gen_batches")
    reader.set("filter.truncated", "keep")
    reader.set("curriculum.name", "uniform")


def _loss(reader: Reader) -> None:
    kind = str(reader.take(f"{ACTOR}policy_loss.loss_mode", f"{ACTOR}loss_mode", default="vanilla"))
    either = float(reader.number(f"{ACTOR}clip_ratio", default=0.2))
    low, high = (_clip(reader, f"{ACTOR}clip_ratio_{side}", either) for side in ("low", "high"))
    _aggregation(reader, kind)
    dual = float(reader.number(f"{ACTOR}clip_ratio_c", default=3.0))
    if kind == "cispo":
        reader.set("loss.name", "cispo")
        reader.set("loss.ratio_cap", 1 + high)
        reader.convert(
            f"{ACTOR}clip_ratio_high", f"an offset from 1: loss.ratio_cap = {1 + high:g}"
        )
        if low < 1:
            reader.convert(f"{ACTOR}clip_ratio_low", "ratios have no lower bound here")
    elif kind == "gpg":
        reader.set("loss.name", "reinforce")
    elif kind in ("vanilla", "gspo"):
        drgrpo = reader.changes["advantage.normalisation"] == "none"
        drgrpo = drgrpo and reader.changes["loss.aggregation"] == "constant"
        clipped = "dr-grpo" if drgrpo else "grpo" if low == high else "dapo"
        reader.set("loss.name", "gspo" if kind == "gspo" else clipped)
        reader.set("loss.clip_low", low)
        reader.set("loss.clip_high", high)
        if kind == "vanilla":
            reader.convert(
                f"{ACTOR}clip_ratio_c",
                f"ratios above {dual:g} with a negative advantage are cut there, not here",
            )
    else:
        raise InputError(
            f"{ACTOR}policy_loss.loss_mode = {kind} is no loss here: use vanilla, gspo, cispo or "
            "gpg"
        )
    _kl(reader)


def _clip(reader: Reader, key: str, either: float) -> float:
    # Null means "as clip_ratio"; a key that is left out has verl's default, 0.2.
    if key in reader.config and reader.config[key] is None:
        reader.left.pop(key, None)
        return either
    return float(reader.number(key, default=0.2))


def _aggregation(reader: Reader, kind: str) -> None:
    key = f"{ACTOR}loss_agg_mode"
    mode = str(reader.take(key, default="token-mean"))
    if mode not in AGGREGATION:
        raise InputError(f"{key} = {mode} is no average here: use {', '.join(AGGREGATION)}")
    if kind == "gspo" and mode != "seq-mean-token-mean":
        reader.convert(key, "verl averages gspo by seq-mean-token-mean whatever this says")
        mode = "seq-mean-token-mean"
    reader.set("loss.aggregation", AGGREGATION[mode])
    if mode == "seq-mean-token-sum":
        reader.convert(key, "divided by the longest rollout allowed as well: a constant factor")


def _kl(reader: Reader) -> None:
    coefficient = float(reader.number(f"{ACTOR}kl_loss_coef", default=0.001))
    kind = str(reader.take(f"{ACTOR}kl_loss_type", default="low_var_kl"))
    used = bool(reader.take(f"{ACTOR}use_kl_loss", default=False)) and coefficient > 0
    reader.set("loss.kl_coefficient", coefficient if used else 0.0)
    if used and kind not in KL_ESTIMATORS:
        known = ", ".join(KL_ESTIMATORS)
        raise InputError(f"{ACTOR}kl_loss_type = {kind} is no estimator here: use {known}")
    if used:
        reader.set("loss.kl_estimator", KL_ESTIMATORS[kind])
    if reader.take("algorithm.use_kl_in_reward", default=False):
        reader.drop(
            "algorithm.use_kl_in_reward",
            "rewards have no KL penalty here: loss.kl_coefficient is a term of the loss",
        )
    for key in [k for k in reader.left if k.startswith("algorithm.rollout_")]:
        if key.endswith(("rollout_is", ".bypass_mode")) and reader.left[key] not in (None, False):
            reader.convert(key, "here the ratio is against the generator's own log-probs anyway")
        reader.left.pop(key)


def _optimiser(reader: Reader, k: int) -> None:
    home = f"{ACTOR}optim."
    reader.set_float("optimiser.lr", f"{home}lr", default=1e-6)
    reader.set_float("optimiser.weight_decay", f"{home}weight_decay", default=0.01)
    # torch's default, since verl has no key for it.
    reader.set("optimiser.eps", 1e-8)
    betas = reader.take(f"{home}betas", default=[0.9, 0.999])
    if not isinstance(betas, list) or [type(beta) for beta in betas] != [float, float]:
        raise InputError(f"{home}betas = {betas!r} is not two numbers; give them")
    reader.set("optimiser.betas", betas)
    reader.set_float("optimiser.grad_clip", f"{ACTOR}grad_clip", f"{home}clip_grad", default=1.0)
    steps = reader.whole("trainer.total_training_steps", default=-1)
    warmup = reader.whole(f"{home}lr_warmup_steps", default=-1)
    ratio = float(reader.number(f"{home}lr_warmup_steps_ratio", default=0.0))
    if warmup < 0 and ratio and steps <= 0:
        reader.drop(f"{home}lr_warmup_steps_ratio", "a share of an unknown number of steps")
    elif warmup < 0 and ratio:
        warmup = round(ratio * steps)
    _count(reader, "optimiser.warmup_steps", f"{home}lr_warmup_steps", max(warmup, 0), k)
    shape = reader.take(f"{home}lr_scheduler_type", f"{home}warmup_style", default="constant")
    if shape != "constant":
        key = next(n for n in ("lr_scheduler_type", "warmup_style") if home + n in reader.config)
        reader.drop(home + key, f"here the rate stays constant after warm-up, not {shape}")
    unused = ("total_training_steps", "min_lr_ratio", "num_cycles", "_target_")
    reader.take(*(home + key for key in unused))
    if steps > 0:
        _count(reader, "budget.steps", "trainer.total_training_steps", steps, k)
        reader.left.pop("trainer.total_epochs", None)
    else:
        reader.drop("trainer.total_epochs", "a budget here is in steps, GPU-hours or minutes")


def _count(reader: Reader, path: str, key: str, phases: int, k: int) -> None:
    """Set a number of phases as one of optimiser steps."""
    reader.set(path, phases * k)
    if k > 1 and phases:
        reader.convert(key, f"{phases} phases of {k} optimiser steps: {path} = {phases * k}")


def _validation(reader: Reader, k: int) -> None:
    for path, key in (("validation.every", "test_freq"), ("checkpoint.every", "save_freq")):
        every = reader.whole(f"trainer.{key}", default=-1)
        if every > 0:
            _count(reader, path, f"trainer.{key}", every, k)
    home = f"{ROLLOUT}val_kwargs."
    reader.set("validation.k", reader.whole(f"{home}n", default=1, least=1))
    sampled = reader.take(f"{home}do_sample", default=False)
    temperature = float(reader.number(f"{home}temperature", default=0.0))
    reader.set("validation.temperature", temperature if sampled else 0.0)
    for name, ours in (("top_p", "sampling.top_p"), ("top_k", "sampling.top_k")):
        value = reader.number(home + name, default=1.0 if name == "top_p" else -1)
        if sampled and max(0, value) != reader.changes[ours]:
            reader.drop(home + name, f"validation samples with {ours} = {reader.changes[ours]:g}")


def _data(reader: Reader) -> None:
    reader.set("seed", reader.whole("data.seed", default=None, least=0))
    why = "choose a task, which brings prompts and rewards"
    reader.drop_given(why, "data.train_files", "data.val_files")
    reader.drop_given("rewards are code in verl; choose a task here", "custom_reward_function.path")
    reader.take("custom_reward_function.name")
