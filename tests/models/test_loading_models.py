"""Models by name, devices by name, and what is known of a model before its weights are."""

import json
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MixtralConfig

from scalerl.errors import InputError
from scalerl.models.llama.decode import LlamaDecoder
from scalerl.models.load import load_model, load_tokenizer, model_path, resolve_device
from scalerl.models.shape import cache_bytes, context_length, matmul_parameters, meta_model

TINY = model_path("tiny")
SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": None,
         "bos_token_id": None, "eos_token_id": None}  # fmt: skip


def saved(config, path):
    config.save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tiny_is_a_model_that_comes_with_the_package(dtype):
    model, tokenizer = load_model(TINY, dtype, "cpu"), load_tokenizer(TINY)
    assert all(p.dtype == getattr(torch, dtype) for p in model.parameters())
    assert model.config.vocab_size == len(tokenizer)


def test_a_model_that_is_not_there_is_one_line(tmp_path):
    for load in (lambda p: load_model(p, "float32", "cpu"), load_tokenizer,
                 lambda p: meta_model(p, "float32")):  # fmt: skip
        with pytest.raises(InputError, match="nowhere") as problem:
            load(str(tmp_path / "nowhere"))
        assert "\n" not in str(problem.value)


def test_code_that_a_model_brings_along_is_never_run(tmp_path):
    """A model that wants to be made by a module of its own, which would leave a trace."""
    trace = tmp_path / "ran"
    bad = tmp_path / "bad"
    bad.mkdir()
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model",
             "AutoTokenizer": ["evil.Tokenizer", None]}  # fmt: skip
    (bad / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": names}))
    (bad / "tokenizer_config.json").write_text(json.dumps({"auto_map": names}))
    (bad / "evil.py").write_text(f"open({str(trace)!r}, 'w')\n")
    for load in (lambda p: load_model(p, "float32", "cpu"), load_tokenizer,
                 lambda p: meta_model(p, "float32")):  # fmt: skip
        with pytest.raises(InputError):
            load(str(bad))
    assert not trace.exists()


def test_auto_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [resolve_device(n) for n in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [resolve_device(n) for n in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(InputError, match=r"no GPU here: set placement.device=auto"):
        resolve_device("cuda")


def test_a_meta_model_has_the_names_and_shapes_of_the_real_one():
    meta, real = meta_model(TINY, "bfloat16"), load_model(TINY, "bfloat16", "cpu")
    assert {n: (p.shape, p.dtype) for n, p in meta.named_parameters()} == {
        n: (p.shape, p.dtype) for n, p in real.named_parameters()
    }
    assert all(p.device.type == "meta" for p in meta.parameters())


def test_parameters_in_products_leave_out_what_is_looked_up_and_who_is_not_asked(tmp_path):
    def count(config):
        model = meta_model(saved(config, tmp_path), "float32")
        return matmul_parameters(model), sum(p.numel() for p in model.parameters()), model

    found, every, _ = count(LlamaConfig(**SMALL))
    assert found == every - 50 * 16
    found, every, _ = count(LlamaConfig(**SMALL, tie_word_embeddings=True))
    assert found == every
    found, every, model = count(MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2))
    experts = sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)
    assert experts == 2 * 4 * 3 * 16 * 24
    assert found == every - 50 * 16 - experts // 2


def test_cache_bytes_are_those_the_decoder_allocates():
    model = load_model(TINY, "float32", "cpu")
    decoder = LlamaDecoder.of(model, rows_max=3, columns=7)
    decoder.join([(1, 2)], [0])
    held = sum(t.nbytes for t in (*decoder.keys, *decoder.values))
    assert held == 3 * 7 * cache_bytes(model.config)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LlamaConfig(**SMALL), 2 * 4 * 2 * 2 * 4),
        (LlamaConfig(**SMALL, head_dim=6), 2 * 4 * 2 * 2 * 6),
        (GPT2Config(n_embd=32, n_layer=3, n_head=4), 2 * 4 * 3 * 4 * 8),
    ],
)
def test_cache_bytes_of_a_token_by_hand(config, expected):
    assert cache_bytes(config) == expected


def test_context_length_is_known_where_the_model_says_it():
    assert context_length(GPT2Config(n_positions=77)) == 77
    assert context_length(LlamaConfig(**SMALL, max_position_embeddings=33)) == 33
    assert context_length(object()) is None


def test_the_checkpoint_is_inside_the_package():
    import scalerl

    assert Path(TINY).is_relative_to(Path(scalerl.__file__).parent)
    assert (Path(TINY) / "model.safetensors").exists()
