"""TRL's GRPOConfig as a recipe.

Conventions that differ, and how they are converted:

* `epsilon_high` is the absolute cap with `loss_type="cispo"`, and an offset from 1 otherwise.
* a loss type is a loss and an aggregation in one: grpo averages samples, dapo, bnpo and cispo
  tokens, dr_grpo divides by a constant. None averages prompts.
* the batch of an optimiser step is per_device_train_batch_size x gradient_accumulation_steps x
  processes *completions*.
* `steps_per_generation` counts micro-batches, k optimiser steps:
  k = steps_per_generation / gradient_accumulation_steps.
* advantages divide by a sample std (ddof 1) + 1e-4 over all prompts; nothing is filtered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalerl.errors import InputError
from scalerl.recipe.importers.result import Imported, Reader, flatten, prompts_of

AGGREGATION = {
    "grpo": "sample",
    "dapo": "token",
    "bnpo": "token",
    "cispo": "token",
    "dr_grpo": "constant",
}
NORMALISATION = {True: "prompt", False: "none", "group": "prompt", "batch": "batch", "none": "none"}
#: Schedules of Transformers that our decays are.
DECAYS = {"linear": "linear", "cosine": "cosine", "cosine_with_min_lr": "cosine"}
DTYPES = ("bfloat16", "float16", "float32")

#: Settings of a Hugging Face trainer about logging, saving, loading and placing, not learning.
HOUSEKEEPING = """
output_dir report_to run_name project log_level log_level_replica log_on_each_node
log_completions log_multimodal num_completions_to_print log_unique_prompts disable_tqdm
do_train do_eval do_predict save_steps save_strategy save_total_limit save_only_model
save_on_each_node resume_from_checkpoint enable_jit_checkpoint ignore_data_skip debug
restore_callback_states_from_checkpoint load_best_model_at_end metric_for_best_model
greater_is_better push_to_hub local_rank accelerator_config parallelism_config deepspeed
fsdp fsdp_config average_tokens_across_devices auto_find_batch_size use_cpu tf32
bf16_full_eval fp16_full_eval gradient_checkpointing gradient_checkpointing_kwargs
torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps use_cache
skip_memory_metrics remove_unused_columns label_names prediction_loss_only data_seed
include_num_input_tokens_seen include_for_metrics include_inputs_for_metrics
full_determinism train_sampling_strategy length_column_name
per_device_eval_batch_size batch_eval_metrics ds3_gather_for_generation shuffle_dataset
pad_to_multiple_of cache_implementation use_transformers_continuous_batching
transformers_continuous_batching_config use_transformers_paged use_liger_kernel
liger_kernel_config attn_implementation trust_remote_code dataset_config
"""
HOUSEKEEPING_PREFIXES = ("logging_", "hub_", "dataloader_", "ddp_", "trackio_", "wandb_", "eval_")

#: Keys that change what is learned only in one setting, and the value that changes nothing.
NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "num_iterations": 1,
    "label_smoothing_factor": 0.0,
    "multi_objective_aggregation": "sum_then_normalize",
}
#: Settings of optional features: prefix → the switch, and the value that turns it on.
OPTIONAL: dict[str, tuple[str, Any]] = {
    "sapo_": ("loss_type", "sapo"),
    "vespo_": ("loss_type", "vespo"),
    "entropy_coef_": ("use_adaptive_entropy", True),
    "entropy_target": ("use_adaptive_entropy", True),
    "ref_model_": ("sync_ref_model", True),
    "vllm_": ("use_vllm", True),
}


def from_trl(config: Mapping[str, Any], *, processes: int = 1) -> Imported:
    """A recipe from the keys of a GRPOConfig (and of the model and script arguments beside it)."""
    if processes < 1:
        raise InputError(f"--processes {processes}: give 1 or more")
    reader = Reader(flatten(config))
    name = reader.take("run_name", default="trl")
    _model(reader)
    _batch(reader, processes)
    _sampling(reader)
    _loss(reader)
    _advantage(reader)
    _optimiser(reader)
    _rest(reader)
    reader.leave_out(NEUTRAL)
    reader.forget(*(start for start, (key, on) in OPTIONAL.items() if reader.config.get(key) != on))
    return reader.finish(str(name), "imported from a TRL GRPOConfig", _housekeeping)


def _model(reader: Reader) -> None:
    reader.set("model.path", reader.take("model_name_or_path"))
    # The key was renamed in Transformers, and may be in model_init_kwargs.
    homes = ("dtype", "torch_dtype", "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype")
    dtype = reader.take(*homes)
    half, brain = reader.take("fp16", default=False), reader.take("bf16", default=True)
    mixed = "float16" if half else "bfloat16" if brain else "float32"
    reader.set("model.dtype", dtype if dtype in DTYPES else mixed)
    if dtype not in DTYPES and mixed != "float32":
        reader.convert("fp16" if half else "bf16", f"TRL's mixed precision is dtype {mixed} here")
    reader.set("task.dataset", reader.take("dataset_name"))
    fp32 = bool(reader.take("cast_lm_head_to_fp32", default=False))
    vllm = bool(reader.take("use_vllm", default=False))
    reader.set_heads(fp32)
    if fp32 and vllm:
        reader.convert(
            "cast_lm_head_to_fp32", "TRL casts the trainer's head only; here both heads are FP32"
        )
    reader.set("placement.engine", "vllm" if vllm else "local")
    reader.set("placement.backend", "local")
    reader.set("placement.device", "cpu" if reader.left.get("use_cpu") else "auto")
    if vllm and reader.left.get("vllm_importance_sampling_correction", True):
        reader.left.pop("vllm_importance_sampling_correction", None)
        reader.convert(
            "vllm_importance_sampling_correction",
            "here the ratio is always against the generator's own log-probs, without a second one",
        )


def _batch(reader: Reader, processes: int) -> None:
    per_device = reader.whole("per_device_train_batch_size", default=8, least=1)
    accumulation = reader.whole("gradient_accumulation_steps", default=1, least=1)
    generations = reader.whole("num_generations", default=8, least=1)
    micro = per_device * processes
    completions = micro * accumulation
    sizes = "per_device_train_batch_size x gradient_accumulation_steps x processes"
    reader.set("batch.prompts", prompts_of(completions, generations, sizes))
    reader.set("batch.generations", generations)
    reader.convert(
        "per_device_train_batch_size",
        f"{per_device} x {accumulation} accumulated x {processes} processes = {completions} "
        "completions a step",
    )
    whole_phase = reader.whole("generation_batch_size")
    per_phase = reader.whole("steps_per_generation")
    if per_phase is None:
        per_phase = accumulation if whole_phase is None else whole_phase // micro
    if per_phase % accumulation:
        raise InputError(
            f"steps_per_generation = {per_phase} is no multiple of gradient_accumulation_steps = "
            f"{accumulation}: an optimiser step would mix two generation phases"
        )
    k = per_phase // accumulation
    reader.set("schedule.name", "off-policy")
    reader.set("schedule.k", k)
    # TRL's processes generate and train in turn; here one device only generates.
    reader.set("placement.generators", 1)
    reader.set_trainers(processes)
    reader.convert(
        "steps_per_generation", f"{per_phase} micro-steps / {accumulation} = off-policy-{k}"
    )


def _sampling(reader: Reader) -> None:
    reader.set_float("sampling.temperature", "temperature")
    reader.set_float("sampling.top_p", "top_p")
    reader.set("sampling.top_k", max(0, reader.whole("top_k", default=0)))
    reader.set("sampling.max_prompt_tokens", reader.whole("max_prompt_length"))
    reader.set("length.control", "none")
    reader.set("length.max_tokens", reader.whole("max_completion_length", default=512))


def _loss(reader: Reader) -> None:
    kind = str(reader.take("loss_type", default="dapo"))
    low = float(reader.number("epsilon", default=0.2))
    given = reader.number("epsilon_high")
    high = low if given is None else float(given)
    sequence = reader.take("importance_sampling_level", default="token") == "sequence"
    if kind not in AGGREGATION:
        reader.drop("loss_type", "no such loss here; the recipe has cispo with a cap of 5 instead")
        return
    reader.set("loss.aggregation", AGGREGATION[kind])
    if kind == "bnpo":
        reader.convert(
            "loss_type", "bnpo divides by the tokens of a micro-batch, here of the batch"
        )
    if kind == "cispo":
        if given is None:
            raise InputError(
                f"loss_type = cispo without epsilon_high: TRL would cap the ratio at epsilon = "
                f"{low:g}; set epsilon_high, for example to 5.0"
            )
        reader.set("loss.name", "cispo")
        reader.set("loss.ratio_cap", high)
        reader.convert("epsilon_high", f"the absolute cap on the ratio: loss.ratio_cap = {high:g}")
        return
    if sequence:
        reader.set("loss.name", "gspo")
    elif kind == "dr_grpo" and reader.left.get("scale_rewards") in (False, "none"):
        reader.set("loss.name", "dr-grpo")
    else:
        reader.set("loss.name", "grpo" if low == high else "dapo")
    reader.set("loss.clip_low", low)
    reader.set("loss.clip_high", high)


def _advantage(reader: Reader) -> None:
    scale = reader.take("scale_rewards", default="group")
    if not isinstance(scale, str | bool) or scale not in NORMALISATION:
        raise InputError(f"scale_rewards = {scale!r} is not group, batch or none")
    reader.set("advantage.normalisation", NORMALISATION[scale])
    if NORMALISATION[scale] != "none":
        reader.set("advantage.ddof", 1)
        reader.set("advantage.epsilon", 1e-4)
    if NORMALISATION[scale] == "batch":
        reader.set("advantage.population", "all")
        reader.convert(
            "scale_rewards", "TRL divides by the std of the rewards, here of the centred advantages"
        )
    masked = reader.take("mask_truncated_completions", default=False)
    reader.set("filter.truncated", "drop" if masked else "keep")
    reader.set("filter.zero_variance", "keep")
    reader.set("curriculum.name", "uniform")
    reader.set_float("loss.kl_coefficient", "beta", default=0.0)
    if not reader.changes["loss.kl_coefficient"]:
        reader.left.pop("use_bias_correction_kl", None)


def _optimiser(reader: Reader) -> None:
    # Defaults here and below are TRL's: a config has only the keys that were changed.
    reader.set_float("optimiser.lr", "learning_rate", default=1e-6)
    reader.set_float("optimiser.weight_decay", "weight_decay", default=0.0)
    reader.set_float("optimiser.eps", "adam_epsilon", default=1e-8)
    first, second = reader.number("adam_beta1", default=0.9), reader.number("adam_beta2")
    reader.set("optimiser.betas", [float(first), float(0.999 if second is None else second)])
    reader.set_float("optimiser.grad_clip", "max_grad_norm", default=1.0)
    steps = reader.whole("max_steps", default=-1)
    warmup, ratio = reader.number("warmup_steps", default=0), reader.number("warmup_ratio")
    # Newer versions of Transformers read a warmup_steps below 1 as a share.
    share = ratio if ratio else warmup if 0 < warmup < 1 else None
    if share is not None and steps <= 0:
        reader.drop("warmup_ratio" if ratio else "warmup_steps", "a share of an unknown number")
        warmup = 0
    elif share is not None:
        warmup = round(share * steps)
    reader.set("optimiser.warmup_steps", int(warmup))
    optim = str(reader.take("optim", default="adamw_torch"))
    if not optim.removeprefix("paged_").startswith("adamw"):
        reader.drop("optim", "only AdamW here")
    _decay(reader, steps)
    if steps > 0:
        reader.set("budget.steps", steps)
        reader.left.pop("num_train_epochs", None)
    else:
        reader.drop("num_train_epochs", "a budget here is in steps, GPU-hours or minutes")


def _decay(reader: Reader, steps: int) -> None:
    shape = str(reader.take("lr_scheduler_type", default="linear"))
    if shape in ("constant", "constant_with_warmup"):
        return
    if shape not in DECAYS:
        decays = ", ".join(DECAYS)
        reader.drop("lr_scheduler_type", f"the rate here is constant, or one of {decays}")
    elif steps <= 0:
        reader.drop("lr_scheduler_type", "a decay here needs max_steps, its end")
    elif steps <= reader.changes["optimiser.warmup_steps"]:
        return  # the run ends before the decay begins
    else:
        reader.set("optimiser.decay", DECAYS[shape])
        if shape == "cosine_with_min_lr":
            home = "lr_scheduler_kwargs."
            floor, lr = reader.number(f"{home}min_lr"), reader.changes["optimiser.lr"]
            share = reader.number(f"{home}min_lr_rate", default=0.0)
            reader.set("optimiser.min_lr_ratio", floor / lr if floor and lr else float(share))


def _rest(reader: Reader) -> None:
    reader.set("seed", reader.whole("seed", default=42))
    every = reader.number("eval_steps")
    if reader.take("eval_strategy", default="no") == "steps" and every and every >= 1:
        reader.set("validation.every", int(every))
    reader.set("validation.k", reader.whole("num_generations_eval"))
    reader.drop_given("rewards are code in TRL; choose a task here", "reward_funcs")


def _housekeeping(key: str) -> bool:
    return key.partition(".")[0] in HOUSEKEEPING.split() or key.startswith(HOUSEKEEPING_PREFIXES)
