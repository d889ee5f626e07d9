"""vLLM writes, FSDP2 learns, Ray places them: a whole tiny run (`make vllm`)."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.vllm]
SETTINGS = ["placement.backend=ray", "placement.engine=vllm", "placement.trainers=2",
            "placement.generators=1", "placement.checkers=1", "placement.patience=900",
            "batch.prompts=16", "batch.generations=8", "optimiser.lr=6e-4",
            "optimiser.warmup_steps=3", "validation.prompts=60", "validation.k=4",
            "validation.every=12", "validation.also_temperatures=[]"]  # fmt: skip
STEPS = 24


def test_a_run_with_all_three_learns(tmp_path):
    command = [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", *SETTINGS]
    done = subprocess.run(
        [*command, "--steps", str(STEPS), "--out", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=1800, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").open()]
    assert [s["step"] for s in steps] == list(range(1, STEPS + 1))
    assert any(s["mixed_versions"] > 0 for s in steps), "weights change in flight"
    # Tokens of the present version: the engine and the trainer have the same weights.
    fresh = [s for s in steps if s["staleness"]["max"] == 0]
    assert fresh and all(s["logprob_gap"]["max"] < 1e-3 for s in fresh)
    evals = [json.loads(line) for line in (tmp_path / "run" / "evals.jsonl").open()]
    first, last = evals[0], evals[-1]
    # From .1 to .3 on one machine, with the local engine and trainer.
    assert last["pass_rate"] - first["pass_rate"] > 3 * (first["stderr"] + last["stderr"]) / 2
