"""Impossible combinations are refused, with the reason."""

import pytest

from scalerl.errors import InputError
from scalerl.recipe import Recipe

PENALTY = ["length.control=penalty", "length.max_tokens=14336"]
CASES = [
    # one-sided FP32, either way
    (["precision.trainer_head=model"], "set both to fp32 or neither"),
    (["precision.generator_head=bf16-emulated"], "set both to fp32 or neither"),
    # every generator has the same share of the k batches of a phase
    (["schedule.name=off-policy", "schedule.k=3", "batch.prompts=50"], "3 x 800 = 2400 cannot be"),
    (["schedule.name=off-policy", "filter.zero_variance=refill"], "none are left to refill"),
    (["schedule.k=0"], "schedule.k must be greater than or equal to 1"),
    # forces that cannot be
    (["forces.sampler_noise=-0.1"], "forces.sampler_noise must be greater than or equal to 0"),
    (
        ["forces.sampler_noise=0.1", "placement.engine=local", "sampling.top_k=1"],
        "sampling.top_k = 1 always takes the likeliest token",
    ),
    (
        ["forces.sampler_noise=0.1", "placement.engine=vllm"],
        'placement.engine = "vllm" adds no forces to its sampler',
    ),
    (["forces.generator_split=0"], "forces.generator_split must be greater than or equal to 1"),
    (
        ["forces.generator_split=4", "placement.engine=local"],
        'precision.generator_head = "fp32" does not round',
    ),
    (["loss.name=sequence-tis", "loss.ratio=median"], 'loss.ratio must be "product" or "mean"'),
    # constants of another loss
    (["loss.clip_high=0.2"], "loss.clip_high is not used by cispo"),
    (["loss.name=dapo", "loss.ratio_cap=5"], "loss.ratio_cap is not used by dapo"),
    (["loss.name=grpo", "loss.clip_high=0.28"], "grpo clips symmetrically"),
    (["loss.name=dr-grpo"], "advantage.normalisation"),
    # a cap that was meant as an epsilon
    (["loss.ratio_cap=0.28"], "absolute cap on the ratio"),
    (["loss.ratio_cap=0"], "absolute cap on the ratio"),
    (["loss.ratio_cap=inf"], "loss.ratio_cap must be a finite number"),
    (["loss.name=nonsense"], "is no loss; choose from cispo"),
    # lengths
    (["length.think_tokens_min=13000"], "is above length.think_tokens_max"),
    (["length.max_tokens=14000"], "length.think_tokens_max and length.answer_tok"),
    (["length.control=none"], "needs length.max_tokens"),
    (
        ["length.control=penalty"],
        "needs length.max_tokens and length.penalty_max and length.penalty_cache",
    ),
    (["length.penalty_max=100"], "length.penalty_max is not used by interruption"),
    (
        [*PENALTY, "length.penalty_max=20000", "length.penalty_cache=100"],
        "it would never act",
    ),
    (
        [*PENALTY, "length.penalty_max=10", "length.penalty_cache=100"],
        "even an empty answer",
    ),
    (["length.truncation_warn=0.2"], "is above length.truncation_critical"),
    # groups, validation, curriculum, rewards, optimiser
    (["batch.generations=1"], "advantage of a single rollout is always 0"),
    (["batch.prompts=0"], "batch.prompts must be greater than 0"),
    (["validation.prompts=0"], "validation.prompts must be greater than 0"),
    (["curriculum.threshold=1.5"], "curriculum.threshold must be less than or equal to 1"),
    (["curriculum.name=uniform", "curriculum.threshold=0.9"], "is not used by uniform"),
    (["task.reward_wrong=1"], "task.reward_correct = 1 must be above"),
    (["optimiser.betas=[0.9, 1.0]"], "give two numbers of 0 or more, below 1"),
    (["optimiser.betas=[0.9]"], "optimiser.betas = [0.9] has the wrong number of values"),
    (["optimiser.betas=[1, 2, 3]"], "has the wrong number of values"),
    # several devices a generator
    (
        ["placement.devices_per_generator=2", "placement.engine=local"],
        "uses one device, but placement.devices_per_generator = 2: set it to 1, or placement.eng",
    ),
    (
        ["placement.devices_per_generator=2", "placement.backend=local"],
        'on GPUs needs placement.backend = "ray"',
    ),
    # a decay of the learning rate
    (["optimiser.decay=linear"], "needs an end: set budget.steps (--steps N), or"),
    (["optimiser.decay=cosine", "budget.gpu_hours=5"], "needs an end"),
    (["optimiser.decay=cosine", "budget.steps=100"], "leaves no step for optimiser.decay"),
    (["optimiser.decay_steps=100"], "optimiser.decay_steps has no effect with optimiser.decay = "),
    (["optimiser.min_lr_ratio=0.1"], "has no effect with"),
    (["optimiser.decay=linear", "optimiser.decay_start=50", "budget.steps=500"], "end of the warm"),
    (["optimiser.decay=linear", "budget.steps=500", "optimiser.min_lr_ratio=2"], "less than or eq"),
    (["optimiser.decay=step"], 'not "step"'),
    (["seed=-1"], "seed must be greater than or equal to 0"),
    (["optimiser.lr=fast"], 'optimiser.lr must be a valid number, not "fast"'),
    (["batch.prompts=true"], "batch.prompts must be a valid integer"),
    (["batch.prompts=48.0"], "batch.prompts must be a valid integer"),
    (["compute.axis=hours"], 'not "hours"'),
    # one device learns, or several do
    (["model.lora_rank=8"], "model.lora_rank is not a key of a recipe; did you mean adapter.rank?"),
    (["model.lora=8"], "LoRA is set by adapter.rank=8"),
    (["adapter.alpha=16"], "adapter.alpha has no effect without adapters: set adapter.rank"),
    (["adapter.rank=8", "adapter.lora_dropout=0.1"], "adapters have no dropout here"),
    (["adapter.rank=-1"], "adapter.rank must be greater than or equal to 0"),
    (["placement.trainer=local"], "uses one device, but placement.trainers = 16"),
    (["placement.checkers=0"], "placement.checkers must be greater than or equal to 1"),
]


@pytest.mark.parametrize(("overrides", "reason"), CASES, ids=lambda case: str(case)[:60])
def test_what_is_impossible_is_refused_with_the_reason(overrides, reason):
    with pytest.raises(InputError) as caught:
        Recipe.load("scalerl", overrides=overrides)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["schedule.name=off-policy", "schedule.k=1"],
        ["schedule.k=3", "batch.prompts=50"],
        ["precision.trainer_head=model", "precision.generator_head=bf16-emulated"],
        ["loss.name=dr-grpo", "loss.aggregation=constant", "advantage.normalisation=none"],
        [*PENALTY, "length.penalty_max=14336", "length.penalty_cache=2048"],
        ["length.control=none", "length.max_tokens=100"],
        ["filter.zero_variance=refill"],
        ["loss.ratio_cap=1"],
    ],
)
def test_what_is_possible_is_allowed(overrides):
    Recipe.load("scalerl", overrides=overrides)


def test_batch_prompts_mean_the_same_under_both_schedules():
    pipeline = Recipe.load("scalerl")
    off_policy = pipeline.replace({"schedule.name": "off-policy"})
    assert off_policy.batch.completions == pipeline.batch.completions == 768
