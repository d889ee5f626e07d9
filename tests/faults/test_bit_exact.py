"""With placement.deterministic one seed is one run, bit for bit, whatever is killed on the way."""

import hashlib
import json
import random

import pytest

from faults import LIMIT, Victim, gone, kill, lines

STEPS, EVERY = 13, 3
SMALL = [
    "batch.prompts=4", "batch.generations=8", "validation.prompts=16", "validation.k=2",
    "validation.every=5", "task.options.prompts=2000", f"checkpoint.every={EVERY}",
    "placement.deterministic=true",
]  # fmt: skip
PIPELINE = ["schedule.name=pipeline", "schedule.k=3", "placement.generators=2"]
OFF_POLICY = ["schedule.name=off-policy", "schedule.k=2", "placement.generators=1"]


def begun(out, schedule):
    run = Victim(out, [*SMALL, *schedule])
    run.start("scalerl", "tiny", *run.settings, "--steps", str(STEPS), "--out", str(out))
    return run


def finished(run):
    code = run.process.wait(LIMIT)
    assert code == 0, run.out.with_suffix(".log").read_text()[-2000:]
    return facts(run.out)


def facts(out):
    """All of a run that is not a measurement of time."""
    last = out / "checkpoints" / f"step_{STEPS}"
    state = json.loads((last / "run.json").read_text())
    return {
        "steps": [timeless(s) for s in lines(out / "steps.jsonl")],
        "evals": [timeless(e) for e in lines(out / "evals.jsonl")],
        "state": timeless(state),
        "groups": json.loads((last / "groups.json").read_text()),
        **{
            name: hashlib.sha256((last / name).read_bytes()).hexdigest()
            for name in ("model.safetensors", "optimiser.safetensors")
        },
    }


def timeless(record):
    clocks = ("seconds", "device_hours", "device_seconds", "validation_seconds", "spent",
              "lost_device_seconds", "validation_hours")  # fmt: skip
    return {
        key: timeless(value) if isinstance(value, dict) else value
        for key, value in record.items()
        if key not in clocks
    }


def same(found, reference):
    assert [s["step"] for s in found["steps"]] == list(range(1, STEPS + 1))
    for name in reference:
        assert found[name] == reference[name], name


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """An uninterrupted run."""
    return finished(begun(tmp_path_factory.mktemp("pipeline") / "run", PIPELINE))


@pytest.fixture(scope="module")
def off_policy(tmp_path_factory):
    """An uninterrupted run."""
    return finished(begun(tmp_path_factory.mktemp("off-policy") / "run", OFF_POLICY))


def killed_twice(out, schedule, seed):
    """A run whose main process is killed at two random moments after its first checkpoint."""
    rng = random.Random(seed)
    run = begun(out, schedule)
    for first in (EVERY, 2 * EVERY):
        moment = first + rng.randrange(1, EVERY + 1)
        run.wait(lambda moment=moment: run.step >= moment, f"step {moment}", pause=0.001)
        kill(run.process.pid)
        run.process.wait(LIMIT)
        gone(run)
        run.resume()
    return run


def test_two_runs_with_one_seed_are_equal(pipeline, tmp_path):
    same(finished(begun(tmp_path / "run", PIPELINE)), pipeline)


def test_a_pipeline_run_that_was_killed_and_resumed_is_equal(pipeline, tmp_path):
    run = killed_twice(tmp_path / "run", PIPELINE, seed=0)
    same(finished(run), pipeline)
    assert len(run.resumes) == 2


def test_an_off_policy_run_that_was_killed_and_resumed_is_equal(off_policy, tmp_path):
    run = killed_twice(tmp_path / "run", OFF_POLICY, seed=1)
    same(finished(run), off_policy)
    assert len(run.resumes) == 2


def test_a_run_whose_trainer_was_killed_recovers_to_the_same_bits(pipeline, tmp_path):
    run = begun(tmp_path / "run", PIPELINE)
    run.wait(lambda: run.step >= 2 * EVERY + 1, "the second checkpoint", pause=0.001)
    kill(run.pid("trainer"))
    same(finished(run), pipeline)
    assert run.resumes == [2 * EVERY]
