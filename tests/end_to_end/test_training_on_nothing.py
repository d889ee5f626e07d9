"""Runs whose rewards never differ, in real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REWARDS = """
def never(completions, **columns):
    return [-1.0] * len(completions)

def always(completions, **columns):
    return [1.0] * len(completions)
"""
SMALL = ["batch.prompts=4", "batch.generations=4", "validation.prompts=8", "validation.k=1",
         "validation.every=1000", "checkpoint.every=1", "checkpoint.keep=9",
         "curriculum.name=uniform", "task.options.items_min=", "task.options.items_max=",
         "task.options.prompts=", "task.options.held_out_share=0.2"]  # fmt: skip


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.parametrize(
    ("reward", "advice"), [("never", "the pass rate is 0"), ("always", "the pass rate is 1")]
)
def test_a_run_that_learns_nothing_warns_at_once_and_ends_with_what_to_change(
    tmp_path, reward, advice
):
    (tmp_path / "rewards_that_agree.py").write_text(REWARDS)
    rows = "".join(json.dumps({"prompt": f"{i}+{i}="}) + "\n" for i in range(60))
    (tmp_path / "rows.jsonl").write_text(rows)
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", *SMALL,
         f"task.name=function:rewards_that_agree:{reward}",
         f"task.dataset={tmp_path / 'rows.jsonl'}", "filter.empty_steps=3",
         "optimiser.weight_decay=0.5", "--steps", "50", "--out", str(run)],
        capture_output=True, text=True, timeout=600,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said
    assert f"warning: step 1 taught nothing: {advice}" in said
    last = [line for line in said.splitlines() if line.startswith("scalerl: ")]
    assert len(last) == 1 and f"the last 3 steps taught nothing: {advice}" in last[0]
    assert [s["step"] for s in lines(run / "steps.jsonl")] == [1, 2, 3]
    events = [e for e in lines(run / "events.jsonl") if "taught nothing" in (e.get("why") or "")]
    assert [(e["event"], e["step"]) for e in events] == [("warning", 1), ("failed", 3)]
    weights = {(run / "checkpoints" / f"step_{i}" / "model.safetensors").read_bytes()
               for i in (1, 2)}  # fmt: skip
    assert len(weights) == 1, "weight decay moved the weights"
