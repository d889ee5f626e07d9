"""Models and tokenizers without Transformers: what Transformers itself computes and writes."""

import itertools
import json
import shutil
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config

from scalerl.errors import InputError
from scalerl.models.bare_tokenizer import BareTokenizer
from scalerl.models.cpu.bare import BareConfig, BareLlama
from scalerl.models.cpu.decode import LlamaDecoder
from scalerl.models.cpu.packed import PackedLlama
from scalerl.models.head import final_hidden, head_of, use_head_precision
from scalerl.models.load import (
    load_model,
    load_model_fast,
    load_tokenizer,
    load_tokenizer_fast,
    meta_model_fast,
    model_path,
)
from scalerl.models.meta_model import matmul_parameters, meta_model
from scalerl.models.tokens import hidden_tokens, stop_tokens, token_pieces
from scalerl.trainer.checkpoint import load_weights

TINY = model_path("tiny")
SIZES = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
         "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.3,
         "pad_token_id": None, "bos_token_id": None, "eos_token_id": 3}  # fmt: skip
KINDS = {
    "plain": {},
    "grouped": {"num_key_value_heads": 2},
    "tied": {"tie_word_embeddings": True},
    "heads of another size": {"head_dim": 10, "num_key_value_heads": 1},
    "another rotation": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
}


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**(SIZES | KINDS[request.param])))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)  # norms too are not all alike
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def both(folder):
    return load_model_fast(str(folder), "float32", "cpu"), load_model(str(folder), "float32", "cpu")


def test_names_order_sizes_and_weights_are_those_of_transformers(folder):
    bare, theirs = both(folder)
    assert isinstance(bare, BareLlama)
    ours, expected = dict(bare.named_parameters()), dict(theirs.named_parameters())
    assert list(ours) == list(expected)
    assert all(torch.equal(ours[n], expected[n]) and ours[n].requires_grad for n in ours)
    shape = meta_model_fast(str(folder), "bfloat16")
    meta = meta_model(str(folder), "bfloat16")
    assert [(n, p.shape, p.dtype, p.device) for n, p in shape.named_parameters()] == [
        (n, p.shape, p.dtype, p.device) for n, p in meta.named_parameters()
    ]
    assert matmul_parameters(shape) == matmul_parameters(meta)


def test_logits_and_gradients_are_those_of_transformers_with_padding_too(folder):
    bare, theirs = both(folder)
    ids = torch.randint(50, (3, 17))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    mask[2, :4] = 0  # on the left, too: there the causal mask alone would not do
    grads = []
    for model in (bare, theirs):
        logits = model(input_ids=ids, use_cache=False).logits
        hidden = final_hidden(model, ids, attention_mask=mask)
        (hidden[mask.bool()].square().sum() + logits.logsumexp(-1).sum()).backward()
        grads.append([p.grad for p in model.parameters()])
        kept = hidden[mask.bool()]
        if model is bare:
            first = logits, kept
    torch.testing.assert_close(first[0], logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(first[1], kept, rtol=1e-5, atol=1e-5)
    for ours, expected in zip(*grads, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    positions = torch.arange(64)[None]
    for a, b in zip(bare.model.rotary_emb(torch.zeros(1), positions),
                    theirs.model.rotary_emb(torch.zeros(1), positions), strict=True):  # fmt: skip
        assert torch.equal(a, b)  # bit for bit: the fast passes are made of it


def test_the_fast_passes_take_it(folder):
    bare = load_model_fast(str(folder), "float32", "cpu")
    assert head_of(bare, "fp32").weight is bare.lm_head.weight
    use_head_precision(bare, "bf16-emulated")
    assert LlamaDecoder.from_model(bare, 2, 32) is not None
    assert PackedLlama.from_model(bare) is not None


def test_what_it_writes_is_read_by_transformers_and_by_itself(folder, tmp_path):
    bare, _ = both(folder)
    with torch.no_grad():
        for p in bare.parameters():
            p.mul_(1.5)
    (tmp_path / "out").mkdir()
    bare.save_pretrained(tmp_path / "out")
    back, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    want = dict(bare.named_parameters())
    assert all(torch.equal(p, want[n]) for n, p in back.named_parameters())
    again = load_weights(tmp_path / "out", bare)
    assert all(torch.equal(again[n], p) for n, p in want.items())


def test_weights_in_several_files(tmp_path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert not (tmp_path / "model.safetensors").exists()
    bare = load_model_fast(str(tmp_path), "float32", "cpu")
    assert isinstance(bare, BareLlama)
    assert torch.equal(bare.model.norm.weight, model.model.norm.weight)


OTHERS = {
    "another kind": lambda: Qwen2Config(**SIZES),
    "bias": lambda: LlamaConfig(**SIZES, attention_bias=True),
    "activation": lambda: LlamaConfig(**SIZES, hidden_act="gelu"),
    "rotation": lambda: LlamaConfig(**SIZES, rope_parameters={
        "rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_plain_is_left_to_transformers(name, tmp_path):
    model = AutoModelForCausalLM.from_config(OTHERS[name]())
    model.save_pretrained(tmp_path)
    assert BareConfig.from_directory(str(tmp_path)) is None
    assert not isinstance(load_model_fast(str(tmp_path), "float32", "cpu"), BareLlama)


def test_another_dtype_or_code_of_its_own_is_left_to_transformers_and_ruins_are_one_line(tmp_path):
    assert not isinstance(load_model_fast(TINY, "bfloat16", "cpu"), BareLlama)
    shutil.copytree(TINY, tmp_path / "own")
    said = json.loads((tmp_path / "own" / "config.json").read_text())
    (tmp_path / "own" / "config.json").write_text(json.dumps(said | {"auto_map": {"a": "b.C"}}))
    assert BareConfig.from_directory(str(tmp_path / "own")) is None
    shutil.copytree(TINY, tmp_path / "cut")
    whole = (tmp_path / "cut" / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[:5000])
    with pytest.raises(InputError, match="cut off after 5,000 bytes"):
        load_model_fast(str(tmp_path / "cut"), "float32", "cpu")
    shutil.copytree(TINY, tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text(json.dumps(said | {"hidden_size": 32}))
    with pytest.raises(InputError, match="another model"):
        BareLlama.load(BareConfig.from_directory(str(tmp_path / "other")))


def test_an_index_does_not_lead_out_of_its_directory(tmp_path):
    shutil.copytree(TINY, tmp_path / "in")
    secret = tmp_path / "model.safetensors"
    (tmp_path / "in" / "model.safetensors").rename(secret)
    index = {"weight_map": {"lm_head.weight": "../model.safetensors"}}
    (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="no whole checkpoint"):
        BareLlama.load(BareConfig.from_directory(str(tmp_path / "in")))


def test_the_tokenizer_says_what_that_of_transformers_says(tmp_path):
    bare, theirs = load_tokenizer_fast(TINY), load_tokenizer(TINY)
    assert isinstance(bare, BareTokenizer)
    for text in ("", "3 4 5=", "a7</think>12<eos>", "  x!</think>", "\u00e9\n<pad>"):
        for special, split in itertools.product((True, False), repeat=2):
            how = {"add_special_tokens": special, "split_special_tokens": split}
            ids = bare(text, **how)["input_ids"]
            assert ids == theirs(text, **how)["input_ids"]
        for skip in (True, False):
            assert bare.decode(ids, skip_special_tokens=skip) == theirs.decode(
                ids, skip_special_tokens=skip
            )
    hidden = hidden_tokens(theirs, ("</think>",))
    assert hidden_tokens(bare, ("</think>",)) == hidden
    assert token_pieces(bare, hidden) == token_pieces(theirs, hidden)
    assert stop_tokens(bare) == stop_tokens(theirs)
    bare.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).get_vocab() == theirs.get_vocab()


@pytest.mark.parametrize(
    "change", [{"chat_template": "{{ messages }}"}, {"tokenizer_class": "LlamaTokenizer"},
               {"additional_special_tokens": ["<x>"]}, {"clean_up_tokenization_spaces": True},
               {"eos_token": "<nowhere>"}]
)  # fmt: skip
def test_a_tokenizer_with_more_to_it_is_left_to_transformers(change, tmp_path):
    shutil.copytree(TINY, tmp_path / "model")
    file = tmp_path / "model" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert BareTokenizer.from_directory(str(tmp_path / "model")) is None


def test_a_run_of_the_shipped_model_does_without_transformers():
    code = """
import sys
from scalerl import Recipe
from scalerl.pipeline.setup import RunSetup
import scalerl.pipeline.loop, scalerl.placement.processes
from scalerl.placement import forkserver_preload
from scalerl.placement.specs import Specs
setup = RunSetup.from_recipe(Recipe.load("scalerl", "tiny"))
specs = Specs.from_setup(setup, None, default_channel="direct")
specs.make_engine(specs.engine)
trainer = specs.make_trainer(specs.trainer)
trainer.model.lm_head.weight.grad = trainer.model.lm_head.weight.detach().clone()
trainer.optimiser.step()
trainer.optimiser.load_state_dict(trainer.optimiser.state_dict())
print([m for m in ("transformers", "torch._dynamo", "sympy") if m in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
