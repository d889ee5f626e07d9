"""A model in BF16 learns at the paper's learning rate, as its twin in FP32 does."""

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.algorithm.options import options_from_recipe
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer import masters
from scalerl.trainer.interface import NonFiniteGradient
from scalerl.trainer.local import LocalTrainer
from scalerl.trainer.masters import Masters

#: The options of the default recipe.
SCALERL = options_from_recipe(Recipe())
#: What a trainer is made with, where a test says nothing else.
TRAINER = {"head_precision": "fp32", "temperature": 1.0, "token_budget": 8192}

VOCABULARY = 12
#: The paper's rate, from the first step on.
PAPER = OptimiserSection(lr=5e-7, warmup_steps=1)
#: A weight of 2^-7 has BF16 neighbours 2^-14 away (2^-15 below): at 5e-7 a step, 61 steps in one
#: direction bring it half way to the next.
SIZE = 2**-7


@pytest.fixture(autouse=True)
def no_onednn():
    """As in tests/models/conftest.py: BF16 by oneDNN is an illegal instruction on some machines."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def bf16_model(seed=0):
    """Of weights between SIZE and twice that: none so small that 5e-7 would be much to it."""
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8,
                         num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
                         pad_token_id=None, bos_token_id=None, eos_token_id=None)  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.copy_(torch.sign(torch.randn_like(p)) * SIZE * (1 + torch.rand_like(p)))
    return model.bfloat16()


def batch(seed=0):
    rng = np.random.default_rng(seed)

    def episode(prompt, reward):
        n = int(rng.integers(3, 9))
        ids, logprobs = rng.integers(0, VOCABULARY, n), np.full(n, -np.log(VOCABULARY))
        return Episode.from_turn(prompt, Turn.from_lists(ids, logprobs=logprobs)).with_reward(
            reward, None
        )

    prompts = [rng.integers(0, VOCABULARY, 3) for _ in range(4)]
    return [
        Group(f"p{p}", tuple(episode(prompt, reward) for reward in (1.0, -1.0, -1.0)))
        for p, prompt in enumerate(prompts)
    ]


def trainer(model, **changes):
    return LocalTrainer(model, SCALERL, PAPER, **TRAINER | changes)


def flat(tensors):
    return torch.cat([t.detach().double().flatten() for t in tensors])


def test_masters_in_a_bf16_run_move_as_the_weights_of_its_fp32_twin():
    narrow, twin = trainer(bf16_model()), trainer(bf16_model().float())
    start = flat(twin.masters.tensors())
    assert torch.equal(flat(narrow.masters.tensors()), start)
    for seed in range(8):
        norms = [t.step(batch(seed)).grad_norm for t in (narrow, twin)]
        assert norms[0] == pytest.approx(norms[1], rel=0.01)
    ours, theirs = (flat(t.masters.tensors()) - start for t in (narrow, twin))
    assert float(torch.cosine_similarity(ours, theirs, dim=0)) > 0.999
    assert float(ours.norm() / theirs.norm()) == pytest.approx(1.0, abs=0.01)


def test_many_small_steps_reach_the_rounded_weights_and_without_masters_none_does(monkeypatch):
    ours = trainer(bf16_model())
    monkeypatch.setattr(masters, "accumulation_dtype", lambda dtype: dtype)
    plain = trainer(bf16_model())
    assert ours.masters.copied and not plain.masters.copied
    start = bf16_model().state_dict()
    for _ in range(100):
        for t in (ours, plain):
            t.step(batch())
    moved = [not torch.equal(p, start[n]) for n, p in ours.weights().items() if p.dim() == 2]
    assert all(moved)
    changed = flat(ours.weights().values()) != flat(start.values())
    assert changed.double().mean() > 0.8
    for name, p in plain.weights().items():
        assert torch.equal(p, start[name]), "AdamW on BF16 weights moved after all"


def test_the_model_holds_its_masters_rounded():
    t = trainer(bf16_model())
    for seed in range(3):
        t.step(batch(seed))
    for name, p in t.weights().items():
        assert p.dtype == torch.bfloat16 and t.masters.by_name[name].dtype == torch.float32
        assert torch.equal(p, t.masters.by_name[name].bfloat16())
    for state in t.optimiser.state.values():
        assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32


def test_a_bf16_run_continues_bit_for_bit_with_its_masters(tmp_path):
    straight, first = trainer(bf16_model()), trainer(bf16_model())
    for seed in range(3):
        straight.step(batch(seed))
        first.step(batch(seed))
    first.save(tmp_path / "step_3")
    second = trainer(bf16_model(seed=5))
    second.load(tmp_path / "step_3")
    assert torch.equal(flat(second.masters.tensors()), flat(first.masters.tensors()))
    for seed in range(3, 6):
        straight.step(batch(seed))
        second.step(batch(seed))
    assert torch.equal(flat(second.masters.tensors()), flat(straight.masters.tensors()))
    assert torch.equal(flat(second.weights().values()), flat(straight.weights().values()))
    # The masters are what makes it so: the rounded weights alone are something else.
    assert not torch.equal(flat(first.masters.tensors()), flat(first.weights().values()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_checkpoint_of_a_model_that_is_not_fp32_has_masters(tmp_path, dtype):
    t = trainer(bf16_model().to(dtype))
    t.step(batch())
    t.save(tmp_path)
    kinds = {key.partition("/")[0] for key in load_file(tmp_path / "optimiser.safetensors")}
    more = set() if dtype == torch.float32 else {"master"}
    assert kinds == {"step", "exp_avg", "exp_avg_sq"} | more
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    for name, p in loaded.named_parameters():
        assert torch.equal(p, t.weights()[name])


def test_gradients_of_micro_batches_are_summed_in_fp32():
    """256 + 1 is 256 in BF16, however often."""
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    found = Masters(model)
    for value in (256.0, *[1.0] * 8):
        model.weight.grad = torch.full_like(model.weight, value)
        found.collect()
    assert found.by_name["weight"].grad.item() == 264.0
    assert model.weight.grad is None


def test_micro_batches_do_not_change_a_bf16_step():
    few, many = trainer(bf16_model(), token_budget=1), trainer(bf16_model())
    start = flat(many.masters.tensors())
    assert few.step(batch()).micro_batches > many.step(batch()).micro_batches
    moved = [flat(t.masters.tensors()) - start for t in (few, many)]
    assert float(torch.cosine_similarity(*moved, dim=0)) > 0.999


def test_a_refused_step_leaves_masters_and_model_as_they_were():
    t = trainer(bf16_model())
    t.step(batch())
    before = copy.deepcopy(t.masters.tensors()), copy.deepcopy(dict(t.weights()))
    poison = t.model.lm_head.weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(NonFiniteGradient):
        t.step(batch(1))
    poison.remove()
    assert torch.equal(flat(t.masters.tensors()), flat(before[0]))
    assert torch.equal(flat(t.weights().values()), flat(before[1].values()))
    assert t.step(batch(1)).version == 2
