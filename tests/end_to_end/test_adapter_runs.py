"""Whole runs with LoRA adapters: checkpoints, resume, export, evaluation, and a faulty engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from scalerl.cli import main
from scalerl.evaluation.evaluate import evaluate
from scalerl.models.adapter import probe_tokens
from scalerl.models.load import model_path

SMALL = ["batch.prompts=4", "batch.generations=4", "validation.prompts=16", "validation.k=2",
         "task.options.prompts=200", "validation.every=2", "checkpoint.every=2",
         "optimiser.warmup_steps=1", "placement.proof_every=2"]  # fmt: skip
HERE = Path(__file__).parent
ENV = os.environ | {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    # For the engines below, in every process of a run.
    "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "engine"), *sys.path]),
}


def train(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "scalerl", "train", *map(str, arguments)],
        capture_output=True, text=True, timeout=900, env=ENV,
    )  # fmt: skip


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def proofs(run):
    return [e["why"] for e in lines(run / "events.jsonl") if "has proved" in (e.get("why") or "")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four steps, and two more after a resume."""
    out = tmp_path_factory.mktemp("runs") / "lora"
    done = train("scalerl", "tiny", *SMALL, "adapter.rank=4", "--steps", "4", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    done = train("--resume", out, "budget.steps=6")
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@torch.no_grad()
def logprobs(model):
    ids = torch.tensor([probe_tokens(model.config.vocab_size, 100)])
    return torch.log_softmax(model(input_ids=ids).logits[0], -1)


def test_a_run_trains_an_adapter_and_goes_on_from_it(run):
    steps = lines(run / "steps.jsonl")
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[-1]["lr"] == pytest.approx(10 * 2e-4), "optimiser.lr x adapter.lr_factor"
    rate = "learning rate: 0.002 = optimiser.lr 0.0002 x adapter.lr_factor 10 (community: "
    assert sum((e.get("why") or "").startswith(rate) for e in lines(run / "events.jsonl")) == 2
    assert steps[-1]["grad_norm"] > 0
    names = {path.name for path in (run / "checkpoints" / "step_6").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names
    assert "model.safetensors" not in names


def test_proofs_are_in_the_record_also_after_the_resume(run):
    found = proofs(run)
    assert all(line.startswith("generator 0 has proved that it generates") for line in found)
    assert "version 0:" in found[0]
    assert any("version 4:" in line for line in found), "the first of the resumed run"
    assert len(found) >= 3


def test_an_export_is_an_adapter_or_the_merged_model(run, tmp_path, capsys):
    assert main(["export", str(run), "--to", str(tmp_path / "adapter")]) == 0
    assert "the adapter of step 6" in capsys.readouterr().out
    assert "library_name: peft" in (tmp_path / "adapter" / "README.md").read_text()
    assert main(["export", str(run), "--to", str(tmp_path / "whole"), "--merge"]) == 0
    assert not (tmp_path / "whole" / "adapter_config.json").exists()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").eval()
    base = AutoModelForCausalLM.from_pretrained(model_path("tiny")).eval()
    assert float((logprobs(merged) - logprobs(base)).abs().max()) > 1e-3
    peft = pytest.importorskip("peft")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(logprobs(theirs), logprobs(merged), rtol=1e-5, atol=1e-5)


def test_merging_all_weights_is_one_line(tmp_path, capsys):
    done = train("scalerl", "tiny", *SMALL, "--steps", "1", "--out", tmp_path / "full")
    assert done.returncode == 0, done.stdout + done.stderr
    arguments = ["export", str(tmp_path / "full"), "--to", str(tmp_path / "out"), "--merge"]
    assert main(arguments) == 2
    assert "holds all weights and no adapter: leave --merge out" in capsys.readouterr().err


def test_an_adapter_is_evaluated_as_it_was_validated(run, tmp_path):
    evaluate(run, out=tmp_path)
    found = {line["step"]: line for line in lines(tmp_path / "lora" / "evals.jsonl")}
    theirs = {line["step"]: line for line in lines(run / "evals.jsonl")}
    assert found[6]["pass_rate"] == theirs[6]["pass_rate"]


def test_a_run_that_was_trained_otherwise_is_not_resumed(run):
    done = train("--resume", run, "adapter.rank=8")
    assert done.returncode == 2
    assert "adapter.rank cannot change from 4 to 8" in done.stderr


def swapped_engine(spec):
    """A local engine that exchanges gate and up projections, as some loaders have."""
    from adapter_bench import gate_and_up_swapped, with_fault

    from scalerl.engine.local import LocalEngine

    return with_fault(LocalEngine.from_spec(spec), gate_and_up_swapped)


def test_a_run_with_a_faulty_engine_ends_at_its_first_publish_in_one_line(tmp_path):
    out = tmp_path / "run"
    engine = "placement.engine=test_adapter_runs:swapped_engine"
    done = train("scalerl", "tiny", *SMALL, engine, "adapter.rank=4", "--steps", "4", "--out", out)
    assert done.returncode == 1
    last = (done.stdout + done.stderr).strip().splitlines()[-1]
    assert "generator 0: the generator does not have the trainer's adapter" in last
    assert "gate_proj and up_proj are exchanged" in last
    assert not (out / "steps.jsonl").exists() or not lines(out / "steps.jsonl")
