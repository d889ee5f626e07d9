"""What only shows in a real run: downstream sets, mixtures, KL, refill, trackers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalerl.tasks.running_sums import RunningSums

SMALL = ["batch.prompts=4", "batch.generations=4", "validation.prompts=12", "validation.k=2",
         "task.options.running-sums.prompts=200", "validation.every=2"]  # fmt: skip
REWARD = """
import asyncio

from scalerl.tasks.running_sums import Sum, score_answer

def right(prompts, completions, **columns):
    return [1.0 if score_answer(Sum.parse(p), c)[0] else -1.0 for p, c in zip(prompts, completions)]

async def brief(prompts, completions, completion_ids, trainer_state, log_metric, **columns):
    await asyncio.sleep(0.001)
    log_metric("step", trainer_state.global_step)
    return [1.0 / len(ids) for ids in completion_ids]
"""


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """One run with a mixture of two tasks, a downstream set, refill, a KL term, two generators,
    validation counted as compute, and a tracker."""
    folder = tmp_path_factory.mktemp("options")
    (folder / "rewards.py").write_text(REWARD)
    pool = [str(p.question) for p in RunningSums(prompts=300).train_prompts(7)]
    for name, questions in {"rows": pool[:200], "further": pool[200:220]}.items():
        rows = "".join(json.dumps({"prompt": q, "answer": ""}) + "\n" for q in questions)
        (folder / f"{name}.jsonl").write_text(rows)
    (folder / "mix.toml").write_text(f"""
[task]
name = "running-sums+function:rewards:right,rewards:brief"
weights = [0.5, 0.5]

[task.options."function:rewards:right,rewards:brief"]
reward_weights = [1.0, 0.5]
dataset = "{folder}/rows.jsonl"
held_out_share = 0.3
downstream = {{further = "{folder}/further.jsonl"}}

[filter]
zero_variance = "refill"

[loss]
kl_coefficient = 0.01

[compute]
count_validation = true

[placement]
generators = 2
""")
    out = folder / "run"
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", str(folder / "mix.toml"),
         "--steps", "4", "--track", "tensorboard", "--json", "--out", str(out), *SMALL],
        capture_output=True, text=True, timeout=1800,
        env=os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}",
                          "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


def test_each_task_of_a_mixture_has_its_pass_rate(everything):
    for record in lines(everything[0] / "evals.jsonl"):
        assert set(record["tasks"]) == {"running-sums", "function:rewards:right,rewards:brief"}


def test_several_rewards_one_of_them_async_are_added_and_each_is_in_the_record(everything):
    """An ordinary function, and an async one that asks for the tokens and the step of the run."""
    steps = lines(everything[0] / "steps.jsonl")
    assert all(s["filtered"]["unscored"] == 0 for s in steps)
    told = [s["metrics"] for s in steps if "reward/rewards:brief" in s["metrics"]]
    assert told and all(0 < m["reward/rewards:brief"] <= 1 for m in told)
    assert all(-1 <= m["reward/rewards:right"] <= 1 and m["reward/step"] <= 4 for m in told)


def test_a_downstream_set_has_a_curve_of_its_own_and_is_never_trained_on(everything):
    from scalerl import load_run

    out, _ = everything
    evals = lines(out / "evals.jsonl")
    assert all(e["downstream"]["further"]["n_prompts"] == 20 for e in evals)
    run = load_run(str(out), y="downstream/further/pass_rate")
    assert len(run) == len(evals) == 3
    further = {json.loads(x)["prompt"] for x in (out.parent / "further.jsonl").open()}
    rows = {json.loads(x)["prompt"] for x in (out.parent / "rows.jsonl").open()}
    assert not further & rows


def test_refill_leaves_no_group_without_variance(everything):
    steps = lines(everything[0] / "steps.jsonl")
    assert len(steps) == 4
    assert all(s["zero_variance"] == 0 and len(s["prompts"]) == 4 for s in steps)
    assert steps[-1]["ledger"]["wasted"]["filtered"]["rollouts"] > 0


def test_validation_can_be_counted_as_compute(everything):
    last = lines(everything[0] / "steps.jsonl")[-1]
    counted = last["ledger"]["device_seconds"] + last["ledger"]["validation_seconds"]
    assert last["compute"]["device_hours"] == pytest.approx(counted / 3600, rel=0.05)


def test_the_ledger_adds_up(everything):
    for step in lines(everything[0] / "steps.jsonl"):
        spent = step["ledger"]["spent"]
        kinds = ("generate", "hand_over", "train", "generate_wait", "train_wait")
        total = sum(spent[kind] for kind in kinds)
        assert total == pytest.approx(step["ledger"]["device_seconds"])
        assert spent["check"] > 0 and 0 <= spent["check_wait"] <= spent["train_wait"]
        # Three devices: what each side did cannot exceed its time by more than a report in flight.
        assert spent["generate_wait"] > -1.5 and spent["train_wait"] > -1.5


def test_a_run_is_a_stream_of_json_for_machines(everything):
    out, text = everything
    found = [json.loads(line) for line in text.splitlines()]

    def of(kind):
        return [{k: v for k, v in f.items() if k != "kind"} for f in found if f["kind"] == kind]

    assert of("step") == lines(out / "steps.jsonl")
    assert of("event") == lines(out / "events.jsonl")
    evals = of("validation")
    assert [e.pop("forecast") for e in evals] == [None] * 3
    assert evals == lines(out / "evals.jsonl")
    assert found[0]["kind"] == "begin" and found[-1]["kind"] == "end"
    (ended,) = of("end")
    assert ended["steps"] == 4 and ended["reason"] == "budget of 4 steps"
    assert ended["signal"] is None and ended["path"] == str(out)
    assert ended["validation"] == evals[-1]


def test_a_tracker_is_written_beside_the_record(everything):
    assert list((everything[0] / "tensorboard").iterdir())


def test_python_runs_the_same_thing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
from scalerl import Recipe, train

if __name__ == "__main__":
    small = ["batch.prompts=2", "batch.generations=2", "validation.prompts=4", "validation.k=1",
             "task.options.prompts=50", "budget.steps=2", "schedule.name=off-policy",
             "schedule.k=2"]
    print(train(Recipe.load("scalerl", "tiny", overrides=small), {str(tmp_path / "run")!r}).steps)
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True,
                          timeout=1800)  # fmt: skip
    assert done.stdout.strip() == "2", done.stderr
