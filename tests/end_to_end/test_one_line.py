"""What goes wrong with models, numbers and scripts ends a real run with one line, and nothing
hangs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MambaConfig

from scalerl.models.load import model_path

SMALL = ["batch.prompts=2", "batch.generations=4", "validation.prompts=4", "validation.k=1",
         "task.options.prompts=100", "optimiser.warmup_steps=0",
         "filter.zero_variance=keep"]  # fmt: skip
ENV = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def train(out, *arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", *SMALL, "--plain",
         "--out", str(out), *arguments],
        capture_output=True, text=True, timeout=1800, env=ENV | env, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def events(out):
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


def changed(folder, change):
    """The tiny model with its tensors changed."""
    shutil.copytree(model_path("tiny"), folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return f"model.path={folder}"


def test_a_checkpoint_with_nan_weights_is_named(tmp_path):
    def spoil(tensors):
        tensors["model.norm.weight"][0] = torch.nan

    done = train(tmp_path / "run", changed(tmp_path / "model", spoil), "--steps", "1")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the weight model.norm.weight holds numbers that are not finite" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists(), "a refused start is no run"


def test_logits_that_are_not_finite_are_named_before_anything_is_drawn_from_them(tmp_path):
    """Finite weights, whose products are not."""

    def spoil(tensors):
        tensors["lm_head.weight"] *= 1e38

    done = train(tmp_path / "run", changed(tmp_path / "model", spoil), "--steps", "1")
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "logits" in done.stdout + done.stderr
    assert "not finite (NaN or inf)" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "index" not in done.stdout + done.stderr


def test_a_learning_rate_that_ruins_the_weights_is_named_and_nobody_gets_them(tmp_path):
    out = tmp_path / "run"
    done = train(out, "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    again = subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "--resume", str(out), "optimiser.lr=1e30",
         "--steps", "20", "--plain"],
        capture_output=True, text=True, timeout=1800, env=ENV,
    )  # fmt: skip
    assert again.returncode == 1, again.stdout + again.stderr
    said = [line for line in again.stdout.splitlines() if line.startswith("scalerl:")]
    assert len(said) == 1
    named = re.search(
        r"step (\d+), with a learning rate of 1e\+30, made the weights useless", said[0]
    )
    assert named is not None, said[0]
    assert "Traceback" not in again.stderr
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step_2"]  # the last good one
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    # (A step whose prompts all earned the same changes nothing, and is none the worse for it.)
    assert [s["step"] for s in steps] == list(range(1, int(named[1])))


def test_code_of_a_model_runs_where_the_recipe_says_so_and_the_record_says_it_too(tmp_path):
    folder, trace = tmp_path / "mine", tmp_path / "ran"
    shutil.copytree(model_path("tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineForCausalLM"}
    config |= {"model_type": "mine", "architectures": ["MineForCausalLM"], "auto_map": names}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(
        f"open({str(trace)!r}, 'w')\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class MineConfig(LlamaConfig):\n    model_type = 'mine'\n"
        "class MineForCausalLM(LlamaForCausalLM):\n    config_class = MineConfig\n"
    )
    cache = {"HF_MODULES_CACHE": str(tmp_path / "hf")}
    refused = train(tmp_path / "no", f"model.path={folder}", "--steps", "1", **cache)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    last = refused.stderr.splitlines()[-1]
    assert "set model.trust_remote_code=true" in last
    assert "Traceback" not in refused.stderr
    assert not trace.exists()
    out = tmp_path / "yes"
    done = train(
        out, f"model.path={folder}", "model.trust_remote_code=true", "--steps", "1", **cache
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert trace.exists()
    assert "trust_remote_code = true" in (out / "recipe.toml").read_text()
    assert "warning: model.trust_remote_code = true: Python code that comes with" in done.stdout
    told = [e for e in events(out) if e["event"] == "warning"]
    assert any("model.trust_remote_code" in e["why"] for e in told)
    notes = [e["why"] for e in events(out) if e["event"] == "note"]
    assert notes == ["rollouts end at <eos> (1)"]


def test_a_state_space_model_is_refused_by_name(tmp_path):
    folder = tmp_path / "mamba"
    shutil.copytree(model_path("tiny"), folder)
    MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=44).save_pretrained(folder)
    done = train(tmp_path / "run", f"model.path={folder}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "is a MambaForCausalLM, which keeps a recurrent state" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_one_line(tmp_path):
    done = train(tmp_path / "run", "placement.device=cuda")
    assert done.returncode == 2
    assert done.stderr.startswith("scalerl: placement.device=cuda, but torch finds no GPU here")
    assert len(done.stderr.splitlines()) == 1


def test_a_script_without_the_main_guard_ends_with_one_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from scalerl import Recipe, train\n"
        f"train(Recipe.load('scalerl', 'tiny', overrides={SMALL!r}), {str(tmp_path / 'run')!r})\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=1800, env=ENV
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines() == [
        'scalerl: put the call of train() or evaluate() under `if __name__ == "__main__":`, '
        "for it starts processes"
    ]
    assert not list(Path(tmp_path / "run").glob("checkpoints/*"))
