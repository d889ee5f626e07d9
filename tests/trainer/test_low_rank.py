"""Training of LoRA adapters: gradients, ranks, checkpoints."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rank_pool import RankPool
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.algorithm.options import options_from_recipe
from scalerl.errors import InputError
from scalerl.models import adapter_files
from scalerl.models.adapter import AdapterSpec, probe_tokens
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.interface import TrainerSpec
from scalerl.trainer.registry import TRAINERS

SCALERL = options_from_recipe(Recipe())
WORDS = 30
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "mixtral": MixtralConfig(
        **SMALL, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
    ),
}
ADAPTER = AdapterSpec(rank=4, alpha=8.0, probe=probe_tokens(WORDS, 100))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(2)
    yield pool
    pool.close()


def spec_of(model, adapter=ADAPTER, **changes):
    given = {"model": str(model), "dtype": "float32", "head": "fp32", "options": SCALERL,
             # The first step of Adam is a sign, rounding and all: not with this eps.
             "optimiser": OptimiserSection(lr=1e-1, warmup_steps=1, eps=1e-2), "temperature": 0.8,
             "token_budget": 40, "device": "cpu", "trust_remote_code": False,
             "adapter": adapter}  # fmt: skip
    return TrainerSpec(**given | changes)


def batch(seed=0, prompts=4, generations=4):
    rng = np.random.default_rng(seed)
    groups = []
    for p in range(prompts):
        prompt = rng.integers(0, WORDS, int(rng.integers(1, 6)))
        episodes = []
        for _ in range(generations):
            n = int(rng.integers(1, 14))
            turn = Turn.from_lists(rng.integers(0, WORDS, n), logprobs=rng.normal(-3.0, 0.5, n))
            episodes.append(
                Episode.from_turn(prompt, turn).with_reward(float(rng.standard_normal()), None)
            )
        groups.append(Group(f"p{p}", tuple(episodes)))
    return groups


def steps(t, n=3):
    """The reports of some steps, and the adapter and log-probs that they led to."""
    reports = [t.step(batch(seed)) for seed in range(n)]
    weights = {name: tensor.clone() for name, tensor in t.weights().items()}
    return reports, weights, t.probe(ADAPTER.probe)


def apart(found, expected):
    """Largest difference of any tensor, relative to its largest element."""
    assert found.keys() == expected.keys()
    return max(float((found[n] - t).abs().max() / t.abs().max()) for n, t in expected.items())


def one_and_more(t):
    """The adapter after one step; and reports, adapter and probe after three."""
    reports, first, _ = steps(t, 1)
    reports += [t.step(batch(seed)) for seed in (1, 2)]
    weights = {name: tensor.clone() for name, tensor in t.weights().items()}
    return first, reports, weights, t.probe(ADAPTER.probe)


def on_rank(place, spec):
    return one_and_more(TRAINERS["fsdp"](replace(spec, ranks=place)))


UNMERGED = replace(ADAPTER, merged=False)
EXPERTS = replace(ADAPTER, experts=True)
HEAD = replace(ADAPTER, head=True)


@pytest.mark.parametrize(
    ("name", "adapter"),
    [("llama", HEAD), ("tied", ADAPTER), ("tied", UNMERGED), ("mixtral", EXPERTS)],
    ids=["head", "tied", "unmerged", "experts"],
)
def test_two_ranks_train_as_one_process(ranks, models, name, adapter):
    # A KL term as well: the model without its adapter is the reference.
    options = replace(SCALERL, kl_coefficient=0.3)
    spec = spec_of(models / name, adapter, options=options)
    first, reports, weights, probe = one_and_more(TRAINERS["local"](spec))
    assert apart(weights, first) > 0.01, "it moves"
    assert reports[-1].kl > 1e-6
    for theirs_first, theirs, found, probed in ranks.run(2, on_rank, spec):
        for mine, yours in ((theirs_first, first), (found, weights)):
            assert all(float((mine[n] - t).abs().max()) < 1e-6 for n, t in yours.items())
            # B is a thousand times smaller than A, and the first gradient of A nearly cancels.
            assert apart(mine, yours) < 3e-6
        for ours, other in zip(reports, theirs, strict=True):
            assert other.grad_norm == pytest.approx(ours.grad_norm, rel=1e-6)
            assert other.kl == pytest.approx(ours.kl, rel=1e-4, abs=1e-7)
        for mine, yours in (("current",) * 2, ("base",) * 2, ("rehearsal",) * 2):
            assert getattr(probed, mine) == pytest.approx(getattr(probe, yours), abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_merged_and_unmerged_training_are_the_same(models, name):
    one = steps(TRAINERS["local"](spec_of(models / name)))
    other = steps(TRAINERS["local"](spec_of(models / name, UNMERGED)))
    assert apart(other[1], one[1]) < 1e-5
    assert other[2].current == pytest.approx(one[2].current, abs=1e-5)
    assert max(abs(a - b) for a, b in zip(one[2].current, one[2].base, strict=True)) > 1e-3


def peft_gradients(folder, adapter, tensors, options, groups):
    """Gradients of the same loss by real PEFT."""
    peft = pytest.importorskip("peft")
    from scalerl.trainer.local import LocalTrainer

    model = AutoModelForCausalLM.from_pretrained(folder)
    lora = peft.LoraConfig(r=adapter.rank, lora_alpha=adapter.alpha, target_modules="all-linear")
    wrapped = peft.get_peft_model(model, lora)
    own = dict(wrapped.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[_peft_name(name)].copy_(tensor)
    inner = wrapped.base_model.model
    given = {"head_precision": "fp32", "temperature": 0.8, "token_budget": 40}
    t = LocalTrainer(inner, options, OptimiserSection(), **given)
    seen = {}
    t._clip_to = lambda longest: (
        seen.update({n: own[_peft_name(n)].grad.clone() for n in tensors}) or float("inf")
    )
    with pytest.raises(RuntimeError):
        t.step(groups)
    return seen


def _peft_name(name):
    home, _, leaf = name.removesuffix(".weight").rpartition(".")
    return f"base_model.model.{home}.{leaf}.default.weight"


@pytest.mark.parametrize("merged", [True, False])
def test_gradients_are_pefts(models, merged):
    pytest.importorskip("peft")
    adapter = replace(ADAPTER, merged=merged)
    t = TRAINERS["local"](spec_of(models / "llama", adapter))
    t.step(batch(7))  # B is no longer 0
    tensors = {name: tensor.clone() for name, tensor in t.weights().items()}
    ours = {}
    clip = t._clip_to
    t._clip_to = lambda longest: (
        ours.update({n: m.grad.clone() for n, m in t.masters.by_name.items()}) or clip(longest)
    )
    t.step(batch(1))
    theirs = peft_gradients(models / "llama", adapter, tensors, SCALERL, batch(1))
    assert apart(ours, theirs) < 1e-5


def test_the_optimiser_has_the_state_of_the_adapter_only(models):
    t = TRAINERS["local"](spec_of(models / "llama"))
    t.step(batch())
    held = sum(v.numel() for s in t.optimiser.state.values() for v in s.values())
    adapter = sum(tensor.numel() for tensor in t.weights().values())
    assert held <= 2 * adapter + len(t.weights())
    assert all(m.dtype == torch.float32 for m in t.masters.tensors())


def test_small_steps_of_a_bf16_model_are_not_lost(models):
    """Masters are FP32, and the model has base + B A rounded once."""
    slow = OptimiserSection(lr=1e-4, warmup_steps=1, eps=1e-8)
    t = TRAINERS["local"](spec_of(models / "llama", dtype="bfloat16", optimiser=slow))
    for seed in range(3):
        t.step(batch(seed))
    for target in t.masters.targets:
        a, b = t.masters.by_name[target.a], t.masters.by_name[target.b]
        assert (b != 0).float().mean() > 0.9
        exact = t.masters.applied.base[target.weight].float() + 2.0 * (b @ a)
        weight = dict(t.model.named_parameters())[target.weight]
        assert torch.equal(weight, exact.to(torch.bfloat16))


@pytest.mark.parametrize("adapter", [ADAPTER, UNMERGED], ids=["merged", "unmerged"])
def test_a_resumed_trainer_continues_bit_for_bit(models, adapter, tmp_path):
    spec = spec_of(models / "llama", adapter)
    t = TRAINERS["local"](spec)
    t.step(batch(0))
    t.save(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    again = TRAINERS["local"](replace(spec, checkpoint=str(tmp_path)))
    assert again.version == 1
    for trainer in (t, again):
        trainer.step(batch(1))
    for name, tensor in t.weights().items():
        assert torch.equal(again.weights()[name], tensor), name


def save_and_go_on(place, spec, path):
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    t.step(batch(0))
    t.save(path)
    t.step(batch(1))
    return {name: tensor.clone() for name, tensor in t.weights().items()}


def test_one_process_resumes_what_two_ranks_saved(ranks, models, tmp_path):
    spec = spec_of(models / "mixtral", EXPERTS)
    (expected, _) = ranks.run(2, save_and_go_on, spec, tmp_path)
    one = TRAINERS["local"](replace(spec, checkpoint=str(tmp_path)))
    one.step(batch(1))
    assert apart(dict(one.weights()), expected) < 1e-6
    both = ranks.run(2, go_on, replace(spec, checkpoint=str(tmp_path)))
    assert all(apart(found, expected) < 1e-6 for found in both)


def go_on(place, spec):
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    t.step(batch(1))
    return {name: tensor.clone() for name, tensor in t.weights().items()}


def test_peft_loads_a_checkpoint_with_the_trainers_logprobs(models, tmp_path):
    peft = pytest.importorskip("peft")
    t = TRAINERS["local"](spec_of(models / "llama"))
    steps(t)
    t.save(tmp_path)
    base = json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(base)
    theirs = peft.PeftModel.from_pretrained(model, tmp_path).eval()
    ids = torch.tensor([ADAPTER.probe])
    with torch.no_grad():
        logits = theirs(input_ids=ids).logits[0, :-1]
    found = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
    assert found.tolist() == pytest.approx(t.probe(ADAPTER.probe).current, abs=1e-5)


def test_an_adapter_is_not_continued_on_another_model(models, tmp_path):
    t = TRAINERS["local"](spec_of(models / "llama"))
    t.step(batch())
    t.save(tmp_path)
    with pytest.raises(InputError, match="but the model there is another one now"):
        TRAINERS["local"](spec_of(models / "tied", checkpoint=str(tmp_path)))
    (tmp_path / adapter_files.WEIGHTS_FILE).write_bytes(b"")
    with pytest.raises(InputError, match="is no whole checkpoint"):
        TRAINERS["local"](spec_of(models / "llama", checkpoint=str(tmp_path)))
