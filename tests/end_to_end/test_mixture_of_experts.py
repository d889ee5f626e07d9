"""A mixture of experts through the whole system: the public command, its record, its checkpoint."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from scalerl.algorithm.length import Limit
from scalerl.algorithm.options import options_from_recipe
from scalerl.engine.interface import Request, Sampling
from scalerl.engine.local import LocalEngine
from scalerl.models.tiny.tokenizer import POSITIONS, VOCABULARY, make_tokenizer
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.local import LocalTrainer

#: The options of the default recipe, but for rollouts that are cut off: here all of them are.
SCALERL = replace(options_from_recipe(Recipe()), truncated="keep")
#: What a trainer is made with, where a test says nothing else.
TRAINER = {"head_precision": "fp32", "temperature": 1.0, "token_budget": 8192}

#: Random weights never solve a sum: a reward that varies comes from a function of our own.
REWARD = """
def digits(prompts, completions, **columns):
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]
"""
MAX_GAP = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model's directory: four experts, two for a token, and the embedded task's tokenizer."""
    tokenizer = make_tokenizer()
    config = Qwen3MoeConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, intermediate_size=64, moe_intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, initializer_range=0.2,
        max_position_embeddings=POSITIONS, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("experts") / "model"
    Qwen3MoeForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def trained(folder):
    return run(folder)


@pytest.fixture(scope="module")
def replayed(folder):
    return run(folder, "precision.routing=replay")


def run(folder, *changes):
    """Three steps: where the run is, what it said, its steps."""
    home = folder.parent
    (home / "own_reward.py").write_text(REWARD)
    rows = [json.dumps({"prompt": f"a{i // 10}b{i % 10}="}) for i in range(100)]
    (home / "prompts.jsonl").write_text("\n".join(rows))
    out = home / ("run" + "-replayed" * bool(changes))
    paths = os.pathsep.join(filter(None, [str(home), os.getenv("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", f"model.path={folder}",
         "task.name=function:own_reward:digits", f"task.dataset={home / 'prompts.jsonl'}",
         "task.options.items_min=", "task.options.items_max=", "task.options.prompts=",
         "task.options.held_out_share=0.2", "batch.prompts=4", "batch.generations=4",
         "length.think_tokens_min=16", "length.think_tokens_max=24", "validation.prompts=8",
         "validation.k=1", "filter.truncated=keep", "optimiser.lr=1e-3",
         "optimiser.warmup_steps=0", *changes, "--steps", "3", "--out", str(out)],
        capture_output=True, text=True, timeout=1800,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    return out, done.stdout, steps


def test_a_mixture_of_experts_trains_with_finite_numbers(trained):
    _, _, steps = trained
    assert len(steps) == 3
    for s in steps:
        assert math.isfinite(s["loss"]) and math.isfinite(s["reward"]) and s["non_finite"] == 0
        assert math.isfinite(s["grad_norm"]) and s["grad_norm"] > 0


def test_generator_and_trainer_agree_on_a_mixture_of_experts(trained):
    _, text, steps = trained
    found = re.search(r"log-prob gap before training: mean (\S+), max (\S+)", text)
    assert found is not None
    assert float(found[1]) < MAX_GAP and float(found[2]) < MAX_GAP
    assert steps[0]["staleness"]["max"] == 0 and steps[0]["logprob_gap"]["max"] < MAX_GAP


def test_the_gate_says_who_chooses_the_experts(trained, replayed):
    words = "each side chooses them by itself"
    assert words in trained[1] and words not in replayed[1]


def test_experts_are_replayed_through_the_whole_system(replayed):
    """Across versions, too: what was recorded is asked, whatever the router would choose by now."""
    _, text, steps = replayed
    found = re.search(r"log-prob gap before training: mean (\S+), max (\S+)", text)
    assert found is not None and float(found[2]) < MAX_GAP
    assert len(steps) == 3 and steps[0]["logprob_gap"]["max"] < MAX_GAP
    assert all(math.isfinite(s["grad_norm"]) and s["grad_norm"] > 0 for s in steps)


def test_the_checkpoint_is_a_mixture_of_experts_whose_experts_have_learnt(trained, folder):
    out, _, _ = trained
    saved = out / "checkpoints" / "step_3"
    after, before = (AutoModelForCausalLM.from_pretrained(p) for p in (saved, folder))
    assert type(after) is Qwen3MoeForCausalLM
    assert (
        AutoTokenizer.from_pretrained(saved)("a7=")["input_ids"]
        == make_tokenizer()("a7=")["input_ids"]
    )
    old = dict(before.named_parameters())
    moved = {name for name, p in after.named_parameters() if not torch.equal(p, old[name])}
    assert moved == set(old)  # router and every expert's matrices among them
    assert any("expert" in name for name in moved)


def test_a_trainer_goes_on_from_the_checkpoint_of_a_mixture_of_experts(trained, folder):
    """On disk Transformers writes each expert by itself, in memory they are one tensor."""
    out, _, _ = trained
    saved = out / "checkpoints" / "step_3"
    model = AutoModelForCausalLM.from_pretrained(folder)
    trainer = LocalTrainer(model, SCALERL, OptimiserSection(), **TRAINER)
    trainer.load(saved)
    assert trainer.version == 3
    expected = dict(AutoModelForCausalLM.from_pretrained(saved).named_parameters())
    assert all(torch.equal(value, expected[name]) for name, value in trainer.weights().items())


def test_the_engine_writes_what_generate_writes_for_the_trained_experts(trained):
    out, _, _ = trained
    model = AutoModelForCausalLM.from_pretrained(out / "checkpoints" / "step_3").eval()
    prompts = {f"r{i}": tuple(range(5, 7 + i)) for i in range(6)}
    engine = LocalEngine(model, slots=3, columns=64)
    engine.submit(
        Request(key, p, Limit(12 + i), {0: i}, Sampling(temperature=0.0))
        for i, (key, p) in enumerate(prompts.items())
    )
    done = {}
    while len(done) < len(prompts):
        done |= {w.request: w.turn for w in engine.step().written}
    for i, (key, prompt) in enumerate(prompts.items()):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12 + i, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert done[key].token_ids.tolist() == expected[0, len(prompt) :].tolist()
