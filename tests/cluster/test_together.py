"""vLLM writes, FSDP2 learns, Ray places them: a whole tiny run (`make vllm`)."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.vllm]
SETTINGS = ["placement.backend=ray", "placement.engine=vllm", "placement.trainers=2",
            "placement.generators=1", "placement.checkers=1", "placement.patience=900",
            "batch.prompts=8", "batch.generations=8", "validation.prompts=15", "validation.k=2",
            "validation.every=3", "validation.also_temperatures=[]"]  # fmt: skip


def test_a_run_with_all_three_goes_through_its_steps(tmp_path):
    command = [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", *SETTINGS]
    done = subprocess.run(
        [*command, "--steps", "4", "--out", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=1800, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").open()]
    assert [s["step"] for s in steps] == [1, 2, 3, 4]
    # Tokens of the present version: the engine and the trainer have the same weights.
    fresh = [s for s in steps if s["staleness"]["max"] == 0]
    assert fresh and all(s["logprob_gap"]["max"] < 1e-3 for s in fresh)
