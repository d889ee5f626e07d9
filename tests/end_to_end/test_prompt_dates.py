"""A chat template that writes the date into prompts: a run keeps the date of its first day."""

import datetime
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from scalerl.models.load import model_path
from scalerl.pipeline import checkpoints
from scalerl.recipe import Recipe
from scalerl.training import train

#: The form of Llama 3.2's template, with shorter headers: the tiny model reads 512 tokens.
LLAMA = """\
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- for message in messages %}
    {{- message['content'] | trim }}
{%- endfor %}
"""
#: Imported by every Python process that has its folder in PYTHONPATH: the date is what DAY says.
ANOTHER_DAY = """
import datetime, os

day = datetime.date.fromisoformat(os.environ["DAY"])

class Date(datetime.date):
    @classmethod
    def today(cls):
        return day

class DateTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(day.year, day.month, day.day, 12, tzinfo=tz)

datetime.date, datetime.datetime = Date, DateTime
"""
SMALL = ["batch.prompts=4", "batch.generations=4", "validation.prompts=8", "validation.k=2",
         "validation.every=2", "validation.also_temperatures=[]", "checkpoint.every=2",
         "checkpoint.keep=9", "task.options.prompts=200", "sampling.max_prompt_tokens=160",
         "filter.zero_variance=keep"]  # fmt: skip
FIRST, SECOND = "2026-11-18", "2026-12-31"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model with such a template."""
    folder = shutil.copytree(model_path("tiny"), tmp_path_factory.mktemp("dated") / "model")
    (folder / "chat_template.jinja").write_text(LLAMA)
    return folder


def on(day, folder, *arguments):
    """Run `scalerl` on this day."""
    (folder / "sitecustomize.py").write_text(ANOTHER_DAY)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", *map(str, arguments)],
        capture_output=True, text=True, timeout=600,
        env=os.environ | {"DAY": day, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def days_of(run, model):
    """The days in the prompts of every checkpoint, and how many prompts there are."""
    from scalerl.models.load import load_tokenizer

    tokenizer, days, prompts = load_tokenizer(str(model)), set(), 0
    for path in checkpoints.list_checkpoints(run):
        with np.load(path / "groups.npz") as file:
            tokens = file["token_ids"]
        at = 0
        for item in json.loads((path / "groups.json").read_text()):
            text = tokenizer.decode(tokens[at : at + item["prompt_tokens"]].tolist())
            days |= {day for day in (FIRST, SECOND) if written(day, tokenizer) in text}
            prompts += 1
            rows = [row for episode in item["episodes"] for row in episode["rows"]]
            at += item["prompt_tokens"] + sum(segment[1] for row in rows for segment in row)
    return days, prompts


def written(day, tokenizer):
    """A day as the tiny tokenizer reads the template's words."""
    text = datetime.date.fromisoformat(day).strftime("%d %b %Y")
    return tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_run_that_goes_on_another_day_asks_as_on_its_first(model, tmp_path):
    run, evals = tmp_path / "run", tmp_path / "evals"
    on(FIRST, tmp_path, "train", "scalerl", "tiny", f"model.path={model}", *SMALL, "--steps", 4,
       "--out", run)  # fmt: skip
    assert Recipe.load(run / "recipe.toml").model.chat_date == FIRST
    said = on(SECOND, tmp_path, "train", "--resume", run, "--steps", 8)
    assert "does not hold the tokens of its prompts" not in said
    assert Recipe.load(run / "recipe.toml").model.chat_date == FIRST
    days, prompts = days_of(run, model)
    assert days == {FIRST} and prompts >= 4
    on(SECOND, tmp_path, "eval", run, "-o", evals)
    for step in (2, 4, 6, 8):
        theirs, ours = (
            json.loads((folder / "evals" / f"step_{step}.json").read_text())["sets"][""]
            for folder in (run, evals / "run")
        )
        assert theirs == ours


def old(run):
    """Make the last checkpoint of a run one of version 0.1: completions without their prompts."""
    path = checkpoints.list_checkpoints(run)[-1]
    about = json.loads((path / "groups.json").read_text())
    with np.load(path / "groups.npz") as file:
        tokens, logprobs = file["token_ids"], file["logprobs"]
    arrays = {"token_ids": [], "logprobs": [], "versions": [], "forced": []}
    at = 0
    for item in about:
        at += item.pop("prompt_tokens")
        item["rollouts"] = []
        for e in item.pop("episodes"):
            (prompt, *written), end = e["rows"][0], at + sum(s[1] for s in e["rows"][0])
            arrays["token_ids"].append(tokens[at + prompt[1] : end])
            arrays["logprobs"].append(logprobs[at + prompt[1] : end])
            arrays["versions"] += [np.repeat(*zip(*s[2], strict=True)) for s in written]
            arrays["forced"] += [np.full(s[1], s[0] == "forced") for s in written]
            length = end - at - prompt[1]
            item["rollouts"].append([length, e["finish"], e["reward"], e["correct"]])
            at = end
    (path / "groups.json").write_text(json.dumps(about))
    np.savez(path / "groups.npz", **{name: np.concatenate(v) for name, v in arrays.items()})
    # Seal it again, under its old name.
    kept = shutil.copytree(path, run / "kept")
    (kept / checkpoints.MANIFEST).unlink()
    step = checkpoints.step_of(path)
    with checkpoints.writing(run, step) as folder:
        shutil.copytree(kept, folder, dirs_exist_ok=True)
    return any(item["rollouts"] for item in about)


@pytest.mark.parametrize("template", [True, False])
def test_a_checkpoint_of_an_earlier_version_goes_on_with_one_warning(model, tmp_path, template):
    """The warning is for templates that write a date: others render a prompt the same every day."""
    run = tmp_path / "run"
    recipe = ["scalerl", "tiny", *SMALL, "placement.deterministic=true", "placement.backend=inline"]
    recipe += [f"model.path={model}"] if template else []
    train([*recipe, "budget.steps=4"], run)
    held = old(run)
    assert held, "the checkpoint holds rollouts"
    end = train([*recipe, "budget.steps=6"], run, resume=True)
    assert end.steps == 6
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    warned = [
        e for e in events if "does not hold the tokens of its prompts" in (e.get("why") or "")
    ]
    assert len(warned) == template
