"""Models by name, devices by name, and what is known of a model before its weights are."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2Config,
    JambaConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MixtralConfig,
    RwkvConfig,
)

from scalerl.errors import InputError
from scalerl.models.cpu.decode import LlamaDecoder
from scalerl.models.load import load_model, load_tokenizer, model_path, resolve_device
from scalerl.models.meta_model import cache_bytes, context_length, matmul_parameters, meta_model

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


def bringing_code(folder, trace):
    """The tiny model, made by a module of its own, which leaves a trace when it runs."""
    shutil.copytree(TINY, folder)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineForCausalLM"}
    config |= {"model_type": "mine", "architectures": ["MineForCausalLM"], "auto_map": names}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(
        f"open({str(trace)!r}, 'a').write('ran')\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class MineConfig(LlamaConfig):\n    model_type = 'mine'\n"
        "class MineForCausalLM(LlamaForCausalLM):\n    config_class = MineConfig\n"
    )
    tokens = json.loads((folder / "tokenizer_config.json").read_text())
    tokens |= {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "tokens.Mine"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    (folder / "tokens.py").write_text(
        f"open({str(trace)!r}, 'a').write('ran')\n"
        "from transformers import PreTrainedTokenizerFast\n"
        "class Mine(PreTrainedTokenizerFast):\n    pass\n"
    )
    return str(folder)


LOADERS = {
    "model": lambda path, **more: load_model(path, "float32", "cpu", **more),
    "shape": lambda path, **more: meta_model(path, "float32", **more),
    "tokenizer": load_tokenizer,
}


@pytest.mark.parametrize("what", LOADERS)
def test_code_that_a_model_brings_along_runs_only_where_it_is_trusted(what, tmp_path, monkeypatch):
    """Nobody is asked: a question on standard input would raise here."""
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    trace = tmp_path / "ran"
    folder = bringing_code(tmp_path / "mine", trace)
    with pytest.raises(InputError, match=r"set model.trust_remote_code=true") as problem:
        LOADERS[what](folder)
    assert "\n" not in str(problem.value)
    assert not trace.exists()
    assert LOADERS[what](folder, trust_remote_code=True) is not None
    assert trace.exists()


def test_trusted_code_that_fails_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    folder = bringing_code(tmp_path / "mine", tmp_path / "ran")
    (tmp_path / "mine" / "mine.py").write_text("1 / 0\n")
    with pytest.raises(InputError, match="division by zero"):
        load_model(folder, "float32", "cpu", trust_remote_code=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_checkpoint_with_a_number_that_is_not_finite_is_refused_by_name(value, tmp_path):
    shutil.copytree(TINY, tmp_path / "broken")
    file = tmp_path / "broken" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"model.layers.1.mlp.up_proj.weight holds numbers"):
        load_model(str(tmp_path / "broken"), "float32", "cpu")


RECURRENT = {
    "MambaForCausalLM": MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=50),
    "Mamba2ForCausalLM": Mamba2Config(
        hidden_size=16, num_hidden_layers=2, vocab_size=50, num_heads=4, head_dim=8, n_groups=1
    ),
    "RwkvForCausalLM": RwkvConfig(hidden_size=16, num_hidden_layers=2, vocab_size=50),
    "JambaForCausalLM": JambaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, vocab_size=50, num_experts=1,
        num_attention_heads=4, num_key_value_heads=2, use_mamba_kernels=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
def test_a_model_with_a_recurrent_state_is_refused_by_name(name, tmp_path):
    with pytest.raises(InputError, match=f"is a {name}, which keeps a recurrent state"):
        meta_model(saved(RECURRENT[name], tmp_path), "float32")


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
    decoder = LlamaDecoder.from_model(model, rows_max=3, columns=7)
    decoder.prefill([(1, 2)], [0])
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
