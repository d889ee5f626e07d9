"""prime-rl's rl.toml (and that of its ScaleRL fork) as a recipe.

Conventions that differ, and how they are converted:

* `batch_size` counts completions; `group_size` (once `rollouts_per_example`) those of a prompt.
* `max_async_level` is the lead that a pipeline allows; upstream fixed it at 1 and bounds staleness
  by `max_off_policy_steps`, past which rollouts are *dropped*. Here k is a cap that the trainer
  waits for, so whichever of the two binds becomes k.
* advantages are centred and not scaled; the loss divides by all tokens of the batch; prompts
  without variance are dropped.
* upstream's default loss (DPPO with a KL term) has no counterpart here; the fork's CISPO has, and
  its `eps_max` is the absolute cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalerl.recipe.importers.result import Imported, Reader, flatten, prompts_of

#: The tables by which a config of prime-rl is recognised.
SECTIONS = ("orchestrator", "trainer", "inference", "model")
#: A bound on staleness from this on means "no bound".
UNBOUNDED = 10_000
HOUSEKEEPING_PREFIXES = (
    *("wandb.", "ckpt.", "log.", "output_dir", "weight_broadcast.", "slurm.", "bench"),
    *("orchestrator.log.", "orchestrator.wandb.", "orchestrator.ckpt.", "orchestrator.renderer."),
    *("orchestrator.client.", "orchestrator.output_dir", "orchestrator.max_concurrent"),
    *("orchestrator.max_inflight_rollouts", "orchestrator.experimental.", "orchestrator.monitor."),
    *("trainer.log.", "trainer.wandb.", "trainer.ckpt.", "trainer.model.", "trainer.output_dir"),
    *("inference.", "deployment.", "clean_output_dir", "tokenizer."),
)


def from_prime_rl(config: Mapping[str, Any]) -> Imported:
    """A recipe from the tables of a prime-rl config."""
    reader = Reader(flatten(config))
    reader.set("model.path", reader.take("model.name", "trainer.model.name"))
    reader.left.pop("orchestrator.model.name", None)
    _batch(reader)
    _sampling(reader)
    _schedule(reader)
    _loss(reader)
    _heads(reader)
    _optimiser(reader)
    _validation(reader)
    why = "environments bring their own prompts and rewards; choose a task"
    reader.drop_given(why, "orchestrator.env", "orchestrator.train.env", "env")
    name = reader.take("wandb.name", default="prime-rl")
    return reader.finish(str(name), "imported from a prime-rl config", _housekeeping)


def _batch(reader: Reader) -> None:
    # Defaults here and below are prime-rl's: a config has only the keys that were changed.
    names = ("group_size", "rollouts_per_example", "train.group_size")
    generations = reader.whole(*(f"orchestrator.{name}" for name in names), default=1)
    if "orchestrator.token_batch_size" in reader.left:
        reader.drop("orchestrator.token_batch_size", "batches here are counted in prompts")
    completions = reader.whole("orchestrator.batch_size", "batch_size", default=128)
    reader.set("batch.prompts", prompts_of(completions, generations, "orchestrator.batch_size"))
    reader.set("batch.generations", generations)
    reader.convert(
        "orchestrator.batch_size", f"{completions} completions / {generations} per prompt"
    )
    reader.set("seed", reader.whole("seed", "orchestrator.seed", default=42))
    reader.set("budget.steps", reader.whole("max_steps", "orchestrator.max_steps"))
    reader.set("placement.generators", reader.whole("deployment.num_infer_gpus"))
    reader.set("placement.trainers", reader.whole("deployment.num_train_gpus"))
    # Older configs list the ids of the devices instead of their number.
    for ours, theirs in (("generators", "inference_gpu_ids"), ("trainers", "trainer_gpu_ids")):
        devices = reader.take(theirs)
        reader.set(f"placement.{ours}", len(devices) if isinstance(devices, list) else None)
    # A config with neither of them uses one device each.
    reader.changes.setdefault("placement.generators", 1)
    reader.set_trainers(reader.changes.get("placement.trainers", 1))
    reader.set("placement.backend", "local")
    reader.set("placement.engine", "vllm")


def _sampling(reader: Reader) -> None:
    homes = ("orchestrator.sampling.", "orchestrator.train.sampling.", "sampling.")
    reader.set_float("sampling.temperature", *(f"{h}temperature" for h in homes), default=1.0)
    reader.set_float("sampling.top_p", *(f"{h}top_p" for h in homes))
    names = ("max_completion_tokens", "max_tokens")
    tokens = reader.whole(*(f"{home}{name}" for home in homes for name in names))
    sequence = reader.whole("orchestrator.seq_len", "seq_len", default=2048)
    reader.set("length.control", "none")
    reader.left.pop("trainer.model.seq_len", None)
    # seq_len covers prompt and completion; what the completion leaves is for the prompt.
    if tokens is None:
        reader.set("length.max_tokens", sequence)
        reader.convert("orchestrator.seq_len", "of prompt and completion; taken for completions")
    else:
        reader.set("length.max_tokens", tokens)
        if sequence > tokens:
            reader.set("sampling.max_prompt_tokens", sequence - tokens)


def _schedule(reader: Reader) -> None:
    lead_keys = ("max_async_level", "orchestrator.max_async_level", "trainer.max_async_level")
    lead_key = next((key for key in lead_keys if key in reader.config), lead_keys[0])
    stale_key = "orchestrator.max_off_policy_steps"
    lead = reader.whole(*lead_keys, default=1)
    stale = reader.whole(stale_key, "max_off_policy_steps", default=8)
    for key in ("strict_async_level", "orchestrator.strict_async_level"):
        if reader.take(key):
            reader.drop(key, "rollouts are as fresh as they can be, never exactly k steps old")
    reader.set("schedule.name", "pipeline" if lead > 0 else "off-policy")
    if lead == 0:
        reader.set("schedule.k", 1)
        reader.convert(lead_key, "0 is synchronous: off-policy-1")
    elif lead > 1 or not 0 < stale < UNBOUNDED:
        reader.set("schedule.k", lead)
        reader.convert(lead_key, f"pipeline-{lead}: the trainer waits at this lead")
    else:
        reader.set("schedule.k", stale)
        reader.convert(
            stale_key, f"pipeline-{stale}: prime-rl drops what is staler, here the trainer waits"
        )


def _loss(reader: Reader) -> None:
    kind = reader.take("trainer.loss.type", "loss.type", default="default")
    if kind == "cispo":
        cap = float(reader.number("trainer.loss.eps_max", default=4.0))
        reader.set("loss.name", "cispo")
        reader.set("loss.ratio_cap", cap)
        reader.convert("trainer.loss.eps_max", f"the absolute cap: loss.ratio_cap = {cap:g}")
        reader.take("trainer.loss.loss_scale_mode")
        reader.leave_out({"trainer.loss.adv_tau": 1})
    else:
        reader.drop(
            "trainer.loss.type",
            f'"{kind}" is no loss here; the recipe has cispo with a cap of 5 instead',
        )
    by_prompt = reader.take("orchestrator.prompt_average_loss", default=False)
    reader.set("loss.aggregation", "prompt" if by_prompt else "token")
    scaled = reader.take("orchestrator.advantage.normalization", default="none")
    if scaled in ("batch", "none"):
        reader.set("advantage.normalisation", scaled)
    else:
        reader.set("advantage.normalisation", "none")
        reader.drop("orchestrator.advantage.normalization", "not batch or none")
    reader.leave_out({"orchestrator.advantage.type": "default"})
    refill = reader.take("orchestrator.buffer.online_difficulty_filtering", default=False)
    reader.set("filter.zero_variance", "refill" if refill else "drop")
    reader.set("filter.truncated", "keep")
    if reader.take("orchestrator.buffer.no_positive_resampling", default=False):
        key = "orchestrator.buffer.no_positive_resampling_threshold"
        reader.set("curriculum.name", "no-positive-resampling")
        reader.set_float("curriculum.threshold", key, default=0.9)
        reader.set("curriculum.history", "mean")
    else:
        reader.set("curriculum.name", "uniform")


def _heads(reader: Reader) -> None:
    keys = ("trainer.model.fp32_lm_head", "inference.model.fp32_lm_head")
    heads = [bool(reader.take(key, default=False)) for key in keys]
    reader.set_heads(any(heads))
    if any(heads) and not all(heads):
        reader.convert(keys[heads.index(True)], "FP32 on one side there; here both heads are FP32")


def _optimiser(reader: Reader) -> None:
    home = "trainer.optim."
    if reader.take(f"{home}type", default="adamw") != "adamw":
        reader.drop(f"{home}type", "only AdamW here")
    reader.set_float("optimiser.lr", f"{home}lr", default=1e-6)
    reader.leave_out({f"{home}weight_decay": "auto"})  # 0 for RL
    reader.set_float("optimiser.weight_decay", f"{home}weight_decay", default=0.0)
    reader.set_float("optimiser.eps", f"{home}eps", default=1e-8)
    first = reader.number(f"{home}betas1", default=0.9)
    second = reader.number(f"{home}betas2", default=0.999)
    reader.set("optimiser.betas", [float(first), float(second)])
    reader.set_float("optimiser.grad_clip", f"{home}max_norm", default=1.0)
    _decay(reader)


def _decay(reader: Reader) -> None:
    """`linear` falls in the last decay_steps steps of the run, `cosine` from the warm-up on."""
    home = "trainer.scheduler."
    shape = reader.take(f"{home}type", default="constant")
    warmup = reader.whole(f"{home}warmup_steps", default=0 if shape == "constant" else 10)
    falls = reader.whole(f"{home}decay_steps", default=10)
    floor = float(reader.number(f"{home}min_lr", default=0.0))
    reader.set("optimiser.warmup_steps", warmup)
    # prime-rl counts the decay back from the last step; here it needs a start.
    steps = reader.changes.get("budget.steps")
    if shape == "constant" or (shape == "linear" and falls == 0):
        return
    if shape not in ("linear", "cosine"):
        reader.drop(f"{home}type", "the rate here is constant, linear or cosine")
    elif steps is None:
        reader.drop(f"{home}type", "a decay here needs max_steps, its end")
    elif steps > warmup:
        reader.set("optimiser.decay", shape)
        if shape == "linear":
            falls = min(falls, steps - warmup)
            reader.set("optimiser.decay_start", steps - falls)
            reader.set("optimiser.decay_steps", falls)
        lr = reader.changes["optimiser.lr"]
        reader.set("optimiser.min_lr_ratio", floor / lr if lr else 0.0)


def _validation(reader: Reader) -> None:
    home = "orchestrator.eval."
    reader.set("validation.every", reader.whole(f"{home}interval"))
    reader.set("validation.k", reader.whole(f"{home}rollouts_per_example", f"{home}group_size"))
    prompts = reader.whole(f"{home}num_examples")
    reader.set("validation.prompts", prompts if prompts and prompts > 0 else None)
    reader.set_float("validation.temperature", f"{home}sampling.temperature")
    reader.drop_given("held-out prompts here are of the task itself", f"{home}env")


def _housekeeping(key: str) -> bool:
    return key.startswith(HOUSEKEEPING_PREFIXES) and ".lora" not in key
