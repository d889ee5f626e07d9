"""Wrong environments, tools, templates and drivers: one line each, from the command line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scalerl.models.load import model_path

ENVIRONMENTS = Path(__file__).parents[1] / "environments"
PATHS = os.pathsep.join([str(ENVIRONMENTS), os.environ.get("PYTHONPATH", "")])
ENV = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": PATHS}
SMALL = ["batch.prompts=4", "batch.generations=4", "validation.prompts=4", "validation.k=1",
         "validation.also_temperatures=[]", "task.options.prompt_count=200",
         "filter.zero_variance=keep", "placement.backend=inline"]  # fmt: skip


def train(out, name, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny-tools", *SMALL, "--plain",
         f"task.name=environment:{name}", "--steps", "2", "--out", str(out), *arguments],
        capture_output=True, text=True, timeout=1800, env=ENV, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_tool_without_type_hints_is_refused_before_the_run(tmp_path):
    done = train(tmp_path / "run", "shapes:NoHints")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines() == [
        "scalerl: environment shapes:NoHints: tool look has no type hint for where: write "
        "`where: str` or another type"
    ]
    assert not (tmp_path / "run").exists()


def test_a_template_without_a_generation_prompt_is_refused_before_the_run(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model_path("tiny-tools"), folder)
    template = "{% for m in messages %}{{ m.content }}<eos>{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    done = train(tmp_path / "run", "tiny-tools", f"model.path={folder}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines() == [
        f"scalerl: the chat template of {folder} has no generation prompt (it ignores "
        "add_generation_prompt): take a template that opens the assistant's turn at the end"
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "settings", "problem"),
    [
        ("shapes:Returns", ['task.options.settings={what="bytes",where="text"}'],
         "step returned bytes, not text or messages"),
        ("drivers:asks_for_another_model", [],
         "reset failed: the driver raised HTTPStatusError when a request was refused: there is no "
         "model 'gpt-4o' here: ask for 'policy'"),
    ],
)  # fmt: skip
def test_an_environment_that_never_works_ends_the_run_with_its_reason(
    tmp_path, name, settings, problem
):
    done = train(tmp_path / "run", name, *settings)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == ""
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("scalerl:")]
    assert line == (
        "scalerl: not one of 4 answers of the first validation could be scored: environment "
        f"{name}: {problem}; repair the environment (task.name, task.options), then --resume"
    )


def test_an_environment_that_works_at_times_costs_its_own_episodes(tmp_path):
    done = train(tmp_path / "run", "shapes:SometimesBytes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "environment shapes:SometimesBytes: step returned bytes" in done.stdout
    steps = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").open()]
    failed = [step["play"]["failed"] for step in steps]
    assert 0 < sum(failed) < len(failed)
