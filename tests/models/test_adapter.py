"""LoRA adapters: merged and unmerged weights, names, PEFT's files."""

import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3MoeConfig,
)

from scalerl.errors import InputError
from scalerl.models import adapter_files
from scalerl.models.adapter import (
    AdapterSpec,
    Merged,
    Unmerged,
    check_names,
    initial,
    probe_tokens,
    rehearsal,
    shapes_of,
    targets_of,
)

WORDS = 50
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
#: Without these, Transformers names tokens outside so small a vocabulary.
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
CONFIGS = {
    "llama": LlamaConfig(**SMALL, **NO_TOKENS),
    "qwen2": Qwen2Config(**SMALL, **NO_TOKENS),
    "gemma2": Gemma2Config(**SMALL, **NO_TOKENS, head_dim=8),
    "qwen3-moe": Qwen3MoeConfig(
        **SMALL, **NO_TOKENS, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2
    ),
    "gpt-oss": GptOssConfig(
        **SMALL, **NO_TOKENS, head_dim=8, num_local_experts=4, num_experts_per_tok=2
    ),
}
TOKENS = probe_tokens(WORDS, 100)
DENSE = ("llama", "qwen2", "gemma2")
MIXTURES = ("qwen3-moe", "gpt-oss")


def model_of(name="llama"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name]).eval()


@torch.no_grad()
def logprobs(model):
    logits = model(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0]
    return torch.log_softmax(logits, -1)


def spec_of(**more):
    return AdapterSpec(rank=4, alpha=12.0, **more)


def adapted(name, spec, tensors=None):
    """Log-probs of a model with an adapter: the rehearsal, or these tensors."""
    model = model_of(name)
    targets = targets_of(model, spec)
    kind = Merged(dict(model.named_parameters()), targets, spec) if spec.merged else None
    applied = kind or Unmerged(model, targets, spec)
    applied.write(rehearsal(targets, spec) if tensors is None else tensors)
    return logprobs(model), applied, model


@pytest.mark.parametrize("name", DENSE)
def test_merged_and_unmerged_models_agree(name):
    one, _, _ = adapted(name, spec_of())
    other, _, _ = adapted(name, spec_of(merged=False))
    assert float((one - logprobs(model_of(name))).abs().max()) > 0.1
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("merged", [True, False])
def test_the_base_comes_back_bit_for_bit_after_many_adapters(merged):
    before = logprobs(model_of())
    _, applied, model = adapted("llama", spec_of(merged=merged))
    for _ in range(50):
        applied.write(rehearsal(applied.targets, applied.spec))
    applied.write_base()
    assert torch.equal(logprobs(model), before)


def test_the_first_adapter_changes_nothing_and_the_rehearsal_shows_every_tensor():
    spec = spec_of()
    model = model_of()
    targets = targets_of(model, spec)
    base, _, _ = adapted("llama", spec, initial(targets, spec))
    assert torch.equal(base, logprobs(model))
    whole = rehearsal(targets, spec)
    full, _, _ = adapted("llama", spec)
    for t in targets:
        without, _, _ = adapted("llama", spec, {**whole, t.b: torch.zeros_like(whole[t.b])})
        # Far beyond what the proof allows in FP32.
        assert float((full - without).abs().mean()) > 2e-3, t.weight


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_have_adapters_by_choice(name):
    model = model_of(name)
    plain = targets_of(model, spec_of())
    assert all(len(t.shape) == 2 and "experts" not in t.weight for t in plain)
    with_experts = targets_of(model, spec_of(experts=True))
    assert {t.weight for t in with_experts} > {t.weight for t in plain}
    found, _, _ = adapted(name, spec_of(experts=True))
    assert float((found - adapted(name, spec_of())[0]).abs().max()) > 0.05
    with pytest.raises(InputError, match=r"adapter\.mode=unmerged adapts linear layers only"):
        adapted(name, spec_of(experts=True, merged=False))


def test_what_a_model_does_not_have_is_refused():
    model = model_of()
    with pytest.raises(InputError, match=r"names wqkv.*choose from down_proj, gate_proj"):
        targets_of(model, spec_of(targets=("q_proj", "wqkv")))
    with pytest.raises(InputError, match="has none: leave it out"):
        targets_of(model, spec_of(experts=True))
    model.lm_head.weight = model.model.embed_tokens.weight
    with pytest.raises(InputError, match="tied weights"):
        targets_of(model, spec_of(head=True))


def test_targets_are_chosen_by_their_last_names():
    found = targets_of(model_of(), spec_of(targets=("q_proj", "up_proj"), head=True))
    assert {t.home.rpartition(".")[2] for t in found} == {"q_proj", "up_proj", "lm_head"}
    assert len(found) == 5


def test_missing_and_foreign_tensors_are_named():
    targets = targets_of(model_of(), spec_of())
    tensors, shapes = rehearsal(targets, spec_of()), shapes_of(targets, 4)
    check_names(tensors, shapes)
    half = dict(list(tensors.items())[: len(tensors) // 2])
    with pytest.raises(InputError, match="14 of 28 tensors of the adapter are missing"):
        check_names(half, shapes)
    with pytest.raises(InputError, match="of another model"):
        check_names({**tensors, targets[0].a: torch.zeros(3, 32)}, shapes)


@pytest.mark.parametrize(
    ("name", "more"),
    [(n, {}) for n in DENSE]
    + [(n, {"experts": True}) for n in MIXTURES]
    + [("llama", {"head": True})],
)
def test_peft_loads_the_files_and_computes_the_same(name, more, tmp_path):
    peft = pytest.importorskip("peft")
    spec = spec_of(**more)
    ours, applied, _ = adapted(name, spec)
    model_of(name).save_pretrained(tmp_path / "base")
    folder = tmp_path / "adapter"
    folder.mkdir()
    tensors = rehearsal(applied.targets, spec)
    adapter_files.save(folder, tensors, applied.targets, spec, str(tmp_path / "base"))
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(base, folder).eval()
    torch.testing.assert_close(logprobs(theirs), ours, rtol=0, atol=2e-5)
    back = adapter_files.load(folder, applied.targets, spec.rank)
    assert all(torch.equal(back[n], tensors[n]) for n in tensors)


def test_the_config_names_what_peft_needs(tmp_path):
    spec = spec_of()
    targets = targets_of(model_of(), spec)
    adapter_files.save(tmp_path, rehearsal(targets, spec), targets, spec, "org/base")
    config = json.loads((tmp_path / adapter_files.CONFIG_FILE).read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 12.0)
    assert config["base_model_name_or_path"] == "org/base"
    assert "up_proj" in config["target_modules"]
