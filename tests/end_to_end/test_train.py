"""Real runs of the whole system on this machine: processes, weights in flight, record, resume."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalerl import fit, load_run

#: Small enough for seconds, large enough for every part to act.
SMALL = ["batch.prompts=4", "batch.generations=4", "validation.prompts=16", "validation.k=2",
         "task.options.prompts=200"]  # fmt: skip
ENV = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def command(*arguments):
    return [sys.executable, "-m", "scalerl", "train", *arguments]


def train(*arguments, timeout=1800):
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=timeout, env=ENV
    )


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A pipeline-2 run of ten steps, validated at every second."""
    out = tmp_path_factory.mktemp("runs") / "first"
    done = train("scalerl", "tiny", *SMALL, "schedule.k=2", "validation.every=2", "--steps", "10",
                 "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


def test_the_record_has_the_promised_fields(finished):
    out, _ = finished
    evals, steps = lines(out / "evals.jsonl"), lines(out / "steps.jsonl")
    assert [e["step"] for e in evals] == [0, 2, 4, 6, 8, 10]
    assert [s["step"] for s in steps] == list(range(1, 11))
    assert {"pass_rate", "stderr", "n_prompts", "k", "version", "compute"} <= set(evals[0])
    kinds = {"device_hours", "flops", "generated_tokens", "trained_tokens", "samples", "steps",
             "minutes"}  # fmt: skip
    assert set(evals[-1]["compute"]) == kinds
    assert {"loss", "reward", "truncated", "zero_variance", "staleness", "ratio", "logprob_gap",
            "grad_norm", "seconds", "ledger"} <= set(steps[0])  # fmt: skip
    assert (out / "recipe.toml").exists()
    assert (out / "checkpoints" / "step_10" / "model.safetensors").exists()


def test_compute_only_grows_and_samples_add_up(finished):
    out, _ = finished
    for kind in lines(out / "evals.jsonl")[0]["compute"]:
        values = [e["compute"][kind] for e in lines(out / "evals.jsonl")]
        assert values == sorted(values) and values[0] <= values[1]
    assert lines(out / "steps.jsonl")[-1]["compute"]["samples"] == 10 * 4 * 4


def test_asynchrony_is_real_and_bounded(finished):
    """Weights change while rollouts are in flight; no token is more than k versions old."""
    steps = lines(finished[0] / "steps.jsonl")
    assert max(s["staleness"]["max"] for s in steps) <= 2
    assert max(s["staleness"]["max"] for s in steps) >= 1
    assert any(s["mixed_versions"] > 0 for s in steps)


def test_no_prompt_is_asked_twice_in_an_epoch(finished):
    asked = [p for s in lines(finished[0] / "steps.jsonl") for p in s["prompts"]]
    assert len(asked) == 40 and len(set(asked)) == 40


def test_trainer_and_generator_agree(finished):
    """Tokens of the trainer's own version differ by kernels only."""
    _, text = finished
    assert "log-prob gap before training: mean" in text
    gap = float(text.split("mean ")[1].split(",")[0])
    assert gap < 1e-4


def test_the_forecasting_half_reads_the_run(finished):
    out, text = finished
    run = load_run(str(out))
    assert run.x_kind == "flops" and len(run) == 6
    assert len(fit(run).points) == 6
    assert "forecast: ceiling" in text


def test_the_checkpoint_is_a_hugging_face_model(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = finished[0] / "checkpoints" / "step_10"
    assert AutoTokenizer.from_pretrained(folder).decode([5]) is not None
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == 2


def test_a_run_directory_is_never_overwritten(finished):
    done = train("scalerl", "tiny", "--steps", "1", "--out", str(finished[0]))
    assert done.returncode == 2
    assert "holds a run already" in done.stderr and done.stderr.count("\n") == 1


def test_ctrl_c_checkpoints_and_resume_goes_on(tmp_path):
    out = tmp_path / "run"
    # Enough steps that a run on idle cores does not end between two looks at its record.
    arguments = ["scalerl", "tiny", *SMALL, "task.options.prompts=1000", "validation.every=40",
                 "--steps", "120", "--out", str(out)]  # fmt: skip
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENV
    )
    deadline = time.monotonic() + 1800
    while time.monotonic() < deadline:
        if (out / "steps.jsonl").exists() and len(lines(out / "steps.jsonl")) >= 4:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 130, text
    reached = len(lines(out / "steps.jsonl"))
    assert 4 <= reached < 120
    done = train("--resume", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    steps = lines(out / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(1, 121))
    asked = [p for s in steps for p in s["prompts"]]
    assert len(asked) == len(set(asked)) == 480  # none lost, none twice
    hours = [s["compute"]["device_hours"] for s in steps]
    assert hours == sorted(hours)


def test_dry_run_prints_the_resolved_recipe():
    done = train("scalerl", "tiny", "loss.ratio_cap=4", "--dry-run")
    assert done.returncode == 0 and "ratio_cap = 4" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [[], ["scalerl", "tiny"], ["scalerl", "--out", "x"], ["nonsense", "--out", "x"],
     ["--resume", "no-such-run"], ["scalerl", "tiny", "--out", "x", "--stop-when", "bored"]],
)  # fmt: skip
def test_bad_command_lines_are_one_line(arguments, tmp_path):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, env=ENV,
                          cwd=tmp_path, timeout=600)  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("scalerl: ") and done.stderr.count("\n") == 1
