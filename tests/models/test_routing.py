"""A mixture's routing: written down by the sampler, taken again by the trainer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen3MoeConfig,
)

from scalerl.algorithm.episode import Episode, Group
from scalerl.algorithm.length import Limit
from scalerl.algorithm.options import options_from_recipe
from scalerl.engine.interface import Request
from scalerl.engine.local import LocalEngine
from scalerl.errors import InputError
from scalerl.models.routing import OWN, ExpertRecorder, ExpertReplay, routers_of
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.local import LocalTrainer, enable_recompute

#: The options of the default recipe, but for rollouts that are cut off: here all of them are.
SCALERL = replace(options_from_recipe(Recipe()), truncated="keep")
#: What a trainer is made with, where a test says nothing else.
TRAINER = {"head_precision": "fp32", "temperature": 1.0, "token_budget": 8192}

WORDS, EXPERTS, LAYERS = 30, 8, 3
SIZES = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": LAYERS, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_experts_per_tok": 2, "initializer_range": 0.3,
         "max_position_embeddings": 128}  # fmt: skip
#: Of FP32, over three layers of random weights.
NOISE = 1e-4
#: Weights of the chosen experts are normalised, or are shares of all.
CONFIGS = {
    "qwen3": Qwen3MoeConfig(**SIZES, moe_intermediate_size=24, num_experts=EXPERTS, head_dim=8,
                            norm_topk_prob=True),
    "olmoe": OlmoeConfig(**SIZES, num_experts=EXPERTS, norm_topk_prob=False),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=EXPERTS, sliding_window=None),
}  # fmt: skip


@pytest.fixture(params=CONFIGS)
def model(request):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[request.param])


def lost(model, seed=0):
    """A model whose routers choose at random, as no rounding ever would."""
    generator = torch.Generator().manual_seed(seed)

    def anywhere(router, given, found):
        logits, weights, experts = found
        noise = torch.rand(logits.shape, generator=generator)
        chosen = noise.argsort(-1)[:, : experts.shape[1]]
        fresh = logits.softmax(-1).gather(-1, chosen)
        if torch.allclose(weights.sum(-1), torch.ones(len(weights)), atol=1e-5):
            fresh = fresh / fresh.sum(-1, keepdim=True)
        return logits, fresh, chosen

    for router in routers_of(model):
        router.register_forward_hook(anywhere)
    return model


def written(model, *, routing=True, slots=4):
    """Three groups, more rollouts than there are slots, a validation in between."""
    engine = LocalEngine(model, slots=slots, validation_slots=2, columns=64, record_routing=routing)
    prompts = {f"q{i}": tuple(range(3 + i, 7 + 3 * i)) for i in range(3)}
    engine.submit(Request(k, p, Limit(9 + len(p)), {0: 1, 1: 2, 2: 3}) for k, p in prompts.items())
    found, steps = {k: {} for k in prompts}, 0
    while engine.health().busy:
        step = engine.step()
        steps += 1
        if steps == 4:
            engine.submit([Request("v", (5, 6), Limit(5), {0: 9, 1: 8})], "validate")
        for w in step.written:
            if step.lane == "train":
                found[w.request][w.row] = w.turn
    return [
        Group(k, tuple(Episode.from_turn(prompts[k], turn).with_reward(float(i % 2), None)
                       for i, turn in sorted(rows.items())))
        for k, rows in found.items()
    ]  # fmt: skip


def copy_of(model):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(model.config)


def gap(trainer, groups):
    scored = trainer.score(groups)
    rows = [(s, e.rows[0].logprobs[-len(e) :]) for rows, g in zip(scored, groups, strict=True)
            for s, e in zip(rows, g.episodes, strict=True)]  # fmt: skip
    return max(float(np.abs(s - r).max()) for s, r in rows)


def trainer_of(model, **options):
    return LocalTrainer(
        model, SCALERL, OptimiserSection(lr=1e-2), **TRAINER | {"token_budget": 80} | options
    )


def test_every_token_but_the_last_says_its_experts(model):
    for group in written(model):
        for r in group.episodes:
            n = len(r.rows[0]) - 1
            assert r.experts.shape == (n, LAYERS, 2) and r.experts.dtype == np.int16
            assert r.experts.min() >= 0 and r.experts.max() < EXPERTS
            assert (r.experts[..., 0] != r.experts[..., 1]).all()


def test_what_is_recorded_is_what_a_plain_pass_chooses(model):
    groups = written(model)
    recorder = ExpertRecorder(model)
    for group in groups:
        for r in group.episodes:
            with torch.no_grad():
                model(torch.from_numpy(r.rows[0].token_ids[:-1])[None])
            np.testing.assert_array_equal(np.sort(recorder.last(), -1), np.sort(r.experts, -1))


def test_with_replay_the_sides_agree_however_the_sampler_routes(model):
    groups = written(lost(copy_of(model)))
    assert gap(trainer_of(copy_of(model)), groups) > 0.1
    assert gap(trainer_of(copy_of(model), replay=True), groups) < NOISE


def test_replay_is_exact_without_any_difference_and_own_where_nothing_was_recorded(model):
    groups = written(copy_of(model))
    assert gap(trainer_of(copy_of(model), replay=True), groups) < NOISE
    bare = [
        replace(g, episodes=tuple(replace(e, experts=None) for e in g.episodes)) for g in groups
    ]
    assert gap(trainer_of(copy_of(model), replay=True), bare) < NOISE


@pytest.mark.parametrize("again", [False, True])
def test_a_step_sends_its_gradient_through_the_recorded_experts_and_the_router(model, again):
    groups = written(lost(copy_of(model)))
    learner = copy_of(model)
    if again:
        enable_recompute(learner)
    trainer = trainer_of(learner, replay=True)
    before = {n: p.detach().clone() for n, p in learner.named_parameters()}
    report = trainer.step(groups)
    assert np.isfinite(report.loss) and report.grad_norm > 0
    # Of the same version: the ratio of every token is 1.
    assert report.diagnostics.gap_max < NOISE
    routers = [n for n, m in learner.named_modules() if any(m is r for r in routers_of(learner))]
    after = dict(learner.named_parameters())
    assert all(not torch.equal(before[f"{n}.weight"], after[f"{n}.weight"]) for n in routers)


def test_a_model_without_routers_and_a_router_of_another_kind_are_one_line(model):
    plain = AutoModelForCausalLM.from_config(LlamaConfig(**{
        k: v for k, v in SIZES.items() if k != "num_experts_per_tok"}))  # fmt: skip
    with pytest.raises(InputError, match="no router was found in a LlamaForCausalLM"):
        LocalEngine(plain, slots=2, columns=32, record_routing=True)

    class SigmoidRouter(nn.Module):
        def forward(self, x):
            return x, torch.sigmoid(x).topk(2).values, x.topk(2).indices

    odd = nn.ModuleList([SigmoidRouter()])
    ExpertReplay(odd)
    with pytest.raises(InputError, match="does not know how a SigmoidRouter weighs its experts"):
        odd[0](torch.randn(4, EXPERTS))


def test_rows_of_one_pass_may_be_recorded_or_not():
    class PlainRouter(nn.Module):
        def forward(self, x):
            found = x.softmax(-1).topk(2)
            return x, found.values, found.indices

    router = PlainRouter()
    replay = ExpertReplay(nn.ModuleList([router]))
    given = np.array([[[6, 7]], [[5, 0]]], dtype=np.int16)
    replay.give([given, None], 3, torch.device("cpu"))
    x = torch.zeros(6, EXPERTS)
    x[:, 2], x[:, 1] = 2.0, 1.0
    _, weights, experts = router(x)
    own = [2, 1]
    assert experts.tolist() == [[6, 7], [5, 0], own, own, own, own]
    assert weights[0].tolist() == pytest.approx(x.softmax(-1)[0, [6, 7]].tolist())
    assert OWN < 0
