"""`scalerl eval` on real models: the run's own numbers, answers, going on, one clear line."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from scalerl import load_runs
from scalerl.cli import main
from scalerl.errors import InputError
from scalerl.evaluation.evaluate import evaluate
from scalerl.evaluation.options import EvaluationOptions
from scalerl.evaluation.subjects import subjects
from scalerl.tasks.registry import make_task

ENV = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
SMALL = ["batch.prompts=4", "batch.generations=4", "validation.prompts=16", "validation.k=2",
         "task.options.prompts=200", "validation.every=1", "checkpoint.every=1",
         "checkpoint.keep=9"]  # fmt: skip


def command(*arguments):
    return [sys.executable, "-m", "scalerl", "eval", *map(str, arguments)]


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Five steps, each with a checkpoint and a validation."""
    out = tmp_path_factory.mktemp("runs") / "first"
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", *SMALL, "--steps", "5",
         "--out", str(out)],
        capture_output=True, text=True, timeout=1800, env=ENV,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def evaluated(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("evals")
    return evaluate(run, out=out), out


def test_a_run_is_scored_as_its_validations_were(run, evaluated):
    found, out = evaluated
    theirs = {line["step"]: line for line in lines(run / "evals.jsonl")}
    assert [each.step for each in found] == [1, 2, 3, 4, 5]
    for each, line in zip(found, lines(out / "first" / "evals.jsonl"), strict=True):
        same = ("pass_rate", "stderr", "n_prompts", "k", "truncated", "tasks", "scored", "compute")
        assert {key: line[key] for key in same} == {key: theirs[each.step][key] for key in same}
        assert each.mean == line["pass_rate"] and each.interval[0] <= each.mean
        assert each.pass_at[1] == pytest.approx(each.mean)
    sets = [json.loads((d / "evals" / "step_5.json").read_text())["sets"][""]
            for d in (run, out / "first")]  # fmt: skip
    assert sets[0] == sets[1]


def test_its_output_is_a_curve_that_other_commands_read(run, evaluated):
    _, out = evaluated
    [ours], [theirs] = load_runs(out), load_runs(run)
    assert ours.name == "first" and ours.x_kind == theirs.x_kind
    assert ours.compute.tolist() == theirs.compute.tolist()[1:]
    assert ours.score.tolist() == theirs.score.tolist()[1:]


def test_every_answer_is_kept(evaluated):
    found, _ = evaluated
    kept = lines(found[-1].answers)
    assert len(kept) == 16 * 2
    assert {"prompt", "answer", "reward", "tokens", "truncated", "correct", "why"} <= set(kept[0])
    assert sum(line["correct"] for line in kept) / 32 == pytest.approx(found[-1].mean)
    assert all(line["reward"] == (1.0 if line["correct"] else -1.0) for line in kept)


@pytest.mark.faults
def test_answers_of_several_turns_show_them_and_what_happened(tmp_path, capsys):
    task = ("--task", "environment:tiny-tools", "--prompts", "6", "--k", "4")
    assert main(["eval", "tiny-tools", *task, "-o", str(tmp_path)]) == 0
    assert "tool failures" in capsys.readouterr().out
    found = lines(tmp_path / "tiny-tools" / "answers" / "step_0.jsonl")
    assert all(one["play"]["turns"] >= 1 and one["finish"] == "stop" for one in found)
    long = [one for one in found if one["play"]["turns"] > 1]
    assert long and all(
        one["answer"].count("assistant: ") == one["play"]["turns"]
        and one["answer"].count("\nenvironment: ") == one["play"]["turns"] - 1
        for one in long
    )
    [line] = lines(tmp_path / "tiny-tools" / "evals.jsonl")
    assert line["play"]["turns"] == pytest.approx(sum(o["play"]["turns"] for o in found) / 24)


def test_finished_prompts_are_not_written_again_after_a_kill(tmp_path):
    asked = ["tiny", "--task", "running-sums", "--prompts", "40", "--k", "8", "--json"]
    file = tmp_path / "tiny" / "answers" / "step_0.jsonl"
    process = subprocess.Popen(command(*asked, "-o", tmp_path), stdout=subprocess.DEVNULL, env=ENV)
    deadline = time.monotonic() + 600
    while not (file.exists() and file.stat().st_size > 1000) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = file.read_bytes()[: file.read_bytes().rfind(b"\n") + 1]
    assert 0 < before.count(b"\n") < 40 * 8, "killed in the middle"
    file.write_bytes(before + before[:100])  # and a line cut short
    again = subprocess.run(
        command(*asked, "-o", tmp_path), capture_output=True, timeout=1800, env=ENV
    )
    assert again.returncode == 0, again.stderr
    # Whole prompts stay where they are; the kill may have come within the lines of the last.
    stays = before.split(b"\n")[: before.count(b"\n") // 8 * 8]
    assert file.read_bytes().startswith(b"\n".join(stays))
    answers = [(line["prompt"], line["n"]) for line in lines(file)]
    assert len(answers) == len(set(answers)) == 40 * 8
    [one] = json.loads(again.stdout)
    [two] = evaluate("tiny", task="running-sums", prompts=40, k=8, out=tmp_path / "whole")
    assert {k: one[k] for k in ("mean", "interval", "pass_at")} == {
        k: two.to_dict()[k] for k in ("mean", "interval", "pass_at")
    }
    rows = {"model", "task", "n_prompts", "k", "mean", "interval", "pass_at"}
    assert rows <= set(one) and set(one["pass_at"]) == {"1", "2", "4", "8"}


def test_other_questions_or_weights_do_not_mix_with_what_is_there(run, evaluated):
    _, out = evaluated
    with pytest.raises(InputError, match=r"validation.k = 2, not 4: choose another -o"):
        evaluate(run, out=out, k=4)
    manifest = run / "checkpoints" / "step_3" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text + " ")
    try:
        with pytest.raises(InputError, match="other weights for step 3"):
            evaluate(run, out=out)
    finally:
        manifest.write_text(text)
    with pytest.raises(InputError, match="is a run, not an evaluation"):
        evaluate(run, out=run.parent)


def test_a_file_is_asked_whole_unless_the_run_was_trained_on_it(run, tmp_path):
    file = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"a{i}b{j}=<think>", "answer": f"{i + j:02d}"[::-1]}
            for i in range(4) for j in range(4)]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, rows)))
    [found] = evaluate(
        run / "checkpoints" / "step_5",
        task="math",
        dataset=file,
        k=1,
        changes=["task.options.chat=false", 'task.options.instruction=""'],
        out=tmp_path / "out",
    )
    assert (found.n_prompts, found.task, found.model) == (16, "math", "first/step_5")
    [subject] = subjects([run / "checkpoints" / "step_5"])
    trained = replace(subject, recipe=subject.recipe.replace({"task.dataset": str(file)}))
    task = make_task("math", str(file), options={"held_out_share": 0.5})
    asked = EvaluationOptions("math", str(file), prompts=2)
    assert len(EvaluationOptions("math", str(file)).choose(task, subject)) == 16
    assert asked.choose(task, trained) == task.validation_prompts(2)


def test_bad_input_is_one_clear_line_and_leaves_nothing(run, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "recipe.toml").write_text((run / "recipe.toml").read_text())
    out = tmp_path / "out"
    for models, more, said in (
        (["nope"], {"task": "running-sums"}, "no such model, run or checkpoint"),
        ([tmp_path / "x" / "y"], {}, "no such model"),
        ([tmp_path], {}, "neither a run nor a model"),
        ([empty], {}, "no checkpoints"),
        (["tiny"], {}, "give --task NAME"),
        (["tiny"], {"task": "sums"}, "no task 'sums'"),
        (["tiny"], {"task": "math"}, "no prompts"),
        ([run], {"k": 0}, "--k 0: give 1 or more"),
        ([run], {"prompts": 0}, "--prompts 0"),
        ([run], {"temperature": 0.0, "k": 4}, "all answers to a prompt would be the same"),
        ([run], {"task": "math", "dataset": _three(tmp_path), "prompts": 4}, "has 3 prompts, not"),
        ([], {}, "which model"),
    ):
        with pytest.raises(InputError, match=said):
            evaluate(*models, out=out, **more)
    assert not out.exists()


def _three(tmp_path):
    file = tmp_path / "three.jsonl"
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(3)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file
