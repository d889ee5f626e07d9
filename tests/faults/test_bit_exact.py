"""With placement.deterministic one seed is one run, bit for bit, whatever is killed on the way."""

import hashlib
import json
import random

import pytest

from faults import LIMIT, Victim, gone, kill, lines

STEPS, EVERY = 14, 3
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
    clocks = ("seconds", "device_hours", "minutes", "device_seconds", "validation_seconds",
              "clock_seconds", "generator_seconds", "trainer_seconds", "check_wait", "spent",
              "lost_device_seconds", "validation_hours", "by_kind", "cpu_seconds",
              "publish_seconds", "group_seconds", "row_seconds", "decode", "decoded")  # fmt: skip
    return {
        key: timeless(value) if isinstance(value, dict) else value
        for key, value in record.items()
        if key not in clocks
    }


def same(found, reference):
    assert [s["step"] for s in found["steps"]] == list(range(1, STEPS + 1))
    for name in reference:
        assert found[name] == reference[name], name


def kill_main(run, rng):
    """At a random moment after the next checkpoint; then go on with --resume."""
    moment = run.step // EVERY * EVERY + EVERY + rng.randrange(1, EVERY)
    run.wait(lambda: run.step >= moment, f"step {moment}", pause=0.001)
    kill(run.process.pid)
    run.process.wait(LIMIT)
    gone(run)
    before = len(run.resumes)
    run.resume()
    run.wait(lambda: len(run.resumes) > before, "the way back")


def test_two_runs_with_one_seed_are_equal(tmp_path):
    runs = [begun(tmp_path / name, [*PIPELINE[:2], "placement.generators=1"]) for name in "ab"]
    first, second = map(finished, runs)
    same(first, second)


@pytest.mark.faults
def test_a_pipeline_run_is_equal_whether_or_not_its_processes_were_killed(tmp_path):
    """The trainer (the run recovers by itself), then twice the main process."""
    rng = random.Random(0)
    reference = begun(tmp_path / "reference", PIPELINE)
    run = begun(tmp_path / "run", PIPELINE)
    run.wait(lambda: run.step >= EVERY + 1, "the first checkpoint", pause=0.001)
    kill(run.pid("trainer"))
    run.wait(lambda: len(run.resumes) == 1, "the way back")
    kill_main(run, rng)
    kill_main(run, rng)
    same(finished(run), finished(reference))
    assert len(run.resumes) == 3 and run.resumes[0] >= EVERY


@pytest.mark.faults
def test_an_off_policy_run_is_equal_whether_or_not_it_was_killed(tmp_path):
    rng = random.Random(1)
    reference = begun(tmp_path / "reference", OFF_POLICY)
    run = begun(tmp_path / "run", OFF_POLICY)
    run.wait(lambda: run.step >= 1, "the first step")
    kill_main(run, rng)
    kill_main(run, rng)
    same(finished(run), finished(reference))
    assert len(run.resumes) == 2 and run.resumes[0] >= EVERY
