"""Keys of a verl config that have no counterpart in a recipe: those that do not change what is
learned, and those of things that are off."""

from __future__ import annotations

from typing import Any

from scalerl.recipe.importers.result import Reader

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
#: Keys below a prefix of housekeeping that do change what is learned.
LEARNING = (
    *("lora_rank", "custom_cls.path", "sampler.class_path", "datagen.path", "multi_turn.enable"),
    *("gen_batch_size", "repetition_penalty", "ignore_eos", "critic_warmup", "over_sample_rate"),
)
#: Settings of things that are off: prefix → the switch.
CONDITIONAL = {
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


def leave_out_what_is_off(reader: Reader) -> None:
    """Leave out keys of things that are off, and those at a value that changes nothing."""
    for key, neutral in NEUTRAL.items():
        if reader.left.get(key) == neutral:
            del reader.left[key]
    for prefix, switch in CONDITIONAL.items():
        if not reader.config.get(switch):
            for key in [key for key in reader.left if key.startswith(prefix)]:
                del reader.left[key]
    # The estimators that have a counterpart need no critic, and the constants of losses that have
    # none are not used.
    unused = ("critic.", f"{ACTOR}policy_loss.")
    for key in [key for key in reader.left if key.startswith(unused) or key.endswith("_target_")]:
        del reader.left[key]


def is_housekeeping(key: str) -> bool:
    """Whether a key is about loading, placing, logging or saving, not about learning."""
    return key.startswith(HOUSEKEEPING_PREFIXES) and not key.endswith(LEARNING)
