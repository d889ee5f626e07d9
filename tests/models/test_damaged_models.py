"""A damaged model ends in one line, soon, and without random weights in place of missing ones."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from scalerl.errors import InputError
from scalerl.models.load import (
    load_model,
    load_model_fast,
    load_tokenizer,
    load_tokenizer_fast,
    meta_model_fast,
    model_path,
)
from scalerl.models.meta_model import meta_model

TINY = model_path("tiny")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def cut(part):
    def damage(folder):
        data = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(data[: int(len(data) * part)])

    return damage


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def sizes(**changes):
    def damage(folder):
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def header(length, content):
    return lambda folder: (folder / WEIGHTS).write_bytes(length.to_bytes(8, "little") + content)


def lying_header(folder):
    about = {UP: {"dtype": "F32", "shape": [1000, 1000], "data_offsets": [0, 8]}}
    data = json.dumps(about).encode()
    header(len(data), data + b"x" * 8)(folder)


def without_a_tensor(folder):
    tensors = load_file(folder / WEIGHTS)
    del tensors[UP]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def with_another_shape(folder):
    tensors = load_file(folder / WEIGHTS)
    tensors[UP] = tensors[UP][:-1].clone()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def in_a_file_that_is_not_there(folder):
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": {UP: "../elsewhere.safetensors"}}))


#: Damage → what the line says.
DAMAGE = {
    "cut": (cut(0.5), "cut off after"),
    "cut in the header": (cut(0.001), "no whole safetensors file"),
    "empty": (cut(0), "no whole safetensors file"),
    "long header": (header(10**15, b"x" * 100), "no whole safetensors file"),
    "no JSON in the header": (header(50, b"x" * 100), "damaged header"),
    "another number of bytes": (lying_header, f"damaged header at {UP}"),
    "damaged index": (text(INDEX, "{nope"), "not valid JSON"),
    "index without a map": (text(INDEX, '{"weight_map": [3]}'), "no weight_map"),
    "missing file": (in_a_file_that_is_not_there, "elsewhere.safetensors: no such file"),
    "missing tensor": (without_a_tensor, f"{UP} (is missing|among them)"),
    "another shape": (with_another_shape, rf"{UP} has the shape \[255, 64\]"),
    "a billion layers": (sizes(num_hidden_layers=10**9), "1,000,000,000, but its weights have 2"),
    "more layers": (sizes(num_hidden_layers=3), "= 3, but its weights have 2"),
    "no layers": (sizes(num_hidden_layers=-1), "at least 1"),
    "a billion labels": (sizes(num_labels=10**9), "num_labels = 1,000,000,000"),
    "a large vocabulary": (sizes(vocab_size=10**19), "vocab_size"),
    "wide layers": (sizes(intermediate_size=10**9), r"shape \[256, 64\], but"),
    "a number as text": (sizes(hidden_size="big"), "hidden_size"),
    "no heads": (sizes(num_attention_heads=0), "zero|shape"),
    "damaged config": (text("config.json", "{nope"), r"config.json is not valid JSON"),
    "config of another kind": (text("config.json", "[1]"), "no JSON object"),
}
LOADERS = {
    "quick model": lambda path: load_model_fast(path, "float32", "cpu"),
    "model": lambda path: load_model(path, "float32", "cpu"),
    "quick shape": lambda path: meta_model_fast(path, "float32"),
    "shape": lambda path: meta_model(path, "float32"),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_model_is_one_line(damage, loader, folder):
    make, message = DAMAGE[damage]
    make(folder)
    with pytest.raises(InputError, match=message) as problem:
        LOADERS[loader](str(folder))
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "there is no tokenizer.json"),
        ("tokenizer.json", "{nope", "tokenizer.json is not valid JSON"),
        ("tokenizer.json", "[]", "tokenizer.json holds no JSON object"),
        ("tokenizer.json", "{}", "tokenizer of"),
        ("tokenizer_config.json", "{nope", "tokenizer_config.json is not valid JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json holds no JSON object"),
    ],
)
@pytest.mark.parametrize("load", [load_tokenizer_fast, load_tokenizer])
def test_a_damaged_tokenizer_is_one_line(load, name, content, message, folder):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match=message) as problem:
        load(str(folder))
    assert "\n" not in str(problem.value)


def test_a_config_alone_has_limits_too(folder):
    (folder / WEIGHTS).unlink()
    sizes(num_hidden_layers=10**9)(folder)
    with pytest.raises(InputError, match="at most 4,096 are built"):
        meta_model(str(folder), "float32")


class Runs:
    """An object whose unpickling runs a command."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


def test_a_pickle_runs_nothing(folder, tmp_path):
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert load_model(str(folder), "float32", "cpu") is not None
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(tmp_path / "ran"), protocol=2))
    with pytest.raises(InputError, match="convert it to safetensors"):
        load_model(str(folder), "float32", "cpu")
    assert not (tmp_path / "ran").exists()


def test_a_billion_layers_cost_no_work(folder):
    """In a process of its own, by processor seconds: importing torch takes a few."""
    sizes(num_hidden_layers=10**9)(folder)
    code = (
        "import resource, sys\n"
        "from scalerl.models.load import meta_model_fast\n"
        "try: meta_model_fast(sys.argv[1], 'float32')\n"
        "except ValueError: print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip
    assert float(made.stdout) < 60
