"""scalerl doctor on runs that are healthy, stopped, killed, finished, damaged, or garbage."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from scalerl.cli import doctor, main, parser
from scalerl.cli.doctor import Findings, diagnose
from scalerl.pipeline import checkpoints
from scalerl.processes import Process, sample_processes
from scalerl.runs.lines import EventLine, Status, StepLine
from scalerl.runs.lock import RunLock
from scalerl.runs.store import RunStore

LIMIT = 300.0


@pytest.fixture
def out(tmp_path):
    """The record of a run of 30 steps with checkpoints at 20 and 30; nobody writes it."""
    store = RunStore(tmp_path)
    store.write_recipe('name = "scalerl+tiny"\n')
    for step in range(1, 31):
        line = {"step": step, "compute": {"minutes": 0.8 * step / 60}}
        store.append(StepLine.from_dict(line))
    store.status(Status(30, "2 more groups", under_way=9, writing=4, checking=3,
                        pids={"main": 999_999_991, "trainer": 999_999_992,
                              "generator 0": 999_999_993},
                        silent_seconds={"trainer": 0.2, "generator 0": 0.1}))  # fmt: skip
    for step in (20, 30):
        with checkpoints.writing(tmp_path, step) as folder:
            (folder / "run.json").write_text("{}")
    return tmp_path


def run(capsys, *arguments):
    code = main(["doctor", *map(str, arguments)])
    return code, capsys.readouterr().out


def event(out, event, step=30, **more):
    RunStore(out, resume=True).append(EventLine(step, event, **more))


def test_a_finished_run_is_well(capsys, out):
    event(out, "end", reason="budget of 30 steps")
    code, text = run(capsys, out)
    assert code == 0
    assert "diagnosis   ended at step 30: budget of 30 steps" in text
    assert "(usually one every 0.8 s)" in text and "newest complete one: step_30" in text


def test_processes_of_a_finished_run_are_not_listed_unless_one_is_left(capsys, out):
    event(out, "end", reason="budget of 30 steps")
    assert "gone" not in run(capsys, out)[1]
    status = RunStore(out, resume=True).read_status()
    RunStore(out, resume=True).status(replace(status, pids=status.pids | {"trainer": os.getpid()}))
    lines = run(capsys, out)[1].splitlines()
    assert [x for x in lines if x.startswith(("main ", "generator"))] == []
    assert [x for x in lines if x.startswith("trainer") and str(os.getpid()) in x]


def test_an_interrupted_run_is_well_and_can_be_resumed(capsys, out):
    event(out, "end", reason="interrupted")
    code, text = run(capsys, out)
    assert code == 0 and f"to do       scalerl train --resume {out}" in text


def test_a_dead_run_is_resumed_from_its_newest_whole_checkpoint(capsys, out):
    event(out, "resume", step=20)
    (out / "checkpoints" / "step_30" / "run.json").write_text("[]")
    code, text = run(capsys, out)
    assert code == 1
    assert "the run died at step 30 without an error" in text
    assert f"continue from step 20: scalerl train --resume {out}" in text
    assert "checkpoint step_30 is damaged (the content of run.json has changed)" in text


def test_without_a_whole_checkpoint_it_says_so(capsys, out):
    for path in (out / "checkpoints").glob("*/manifest.json"):
        path.unlink()
    code, text = run(capsys, out)
    assert code == 1 and "start again: there is no complete checkpoint" in text


def test_a_failure_is_told_with_its_reason(capsys, out):
    event(out, "failed", why="generator 0 died: exit code 1")
    code, text = run(capsys, out)
    assert code == 1 and "failed at step 30: generator 0 died: exit code 1" in text


def test_advice_is_commands_that_work_when_pasted(capsys, out):
    run_dir = out.rename(out.parent / "it's my run")
    event(run_dir, "failed", why="the gradient is not finite")
    with checkpoints.writing(run_dir, 31, healthy=False) as folder:
        (folder / "run.json").write_text("{}")
    _, text = run(capsys, run_dir)
    found = [line.split("scalerl ", 1)[1] for line in text.splitlines() if "to do" in line]
    asked = [parser().parse_args(shlex.split(words)) for words in found]
    assert [(a.resume, a.from_step) for a in asked] == [(str(run_dir), None), (str(run_dir), 30)]
    event(run_dir, "end", reason="budget of 30 steps")
    _, text = run(capsys, run_dir)
    (words,) = [line.split("scalerl ", 1)[1] for line in text.splitlines() if "to do" in line]
    assert parser().parse_args(shlex.split(words)).source == [str(run_dir)]


def test_json_has_everything(capsys, out):
    event(out, "lost", why="generator 0 died: killed by signal 9")
    code, text = run(capsys, out, "--json")
    found = json.loads(text)
    assert code == 1 and found["state"] == "dead" and found["locked"] is False
    assert found["checkpoint"] == 30 and found["damaged"] == {}
    assert [p["state"] for p in found["processes"]] == ["gone"] * 3
    assert found["events"][-1]["event"] == "lost" and found["to_do"]
    assert found["groups"] == {"writing": 4, "checking": 3, "waiting": 2}


def test_groups_that_are_being_checked_are_told(capsys, out):
    expected = "groups      4 being written, 3 being checked, 2 waiting for the trainer"
    assert expected in run(capsys, out)[1]


def test_a_run_in_an_environment_is_described_as_one(capsys, out):
    store = RunStore(out, resume=True)
    play = {"turns": 2.5, "tool_calls": 1.5, "failed": 0.5, "environment_seconds": 0.25}
    filtered = {"unscored": 1, "rollouts": 2}
    store.append(StepLine.from_dict({"step": 31, "play": play, "filtered": filtered}))
    _, text = run(capsys, out)
    assert "episodes    means of the last step: turns 2.5, tool calls 1.5, failed 0.50" in text
    assert "3 in their environments" in text and "repair the environment: " in text
    assert json.loads(run(capsys, out, "--json")[1])["play"]["turns"] == 2.5


def test_no_run_is_one_line_and_exit_code_2(capsys, tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        assert main(["doctor", str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("scalerl: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe\x00", b"[]", b"7", b'{"pids": [1]}',
                                     b'{"pids": {"main": "x", "trainer": -1}}',
                                     b'{"step": "x", "event": 3, "ledger": 1}\n{"st'])  # fmt: skip
@pytest.mark.parametrize("name", ["status.json", "steps.jsonl", "events.jsonl", "recipe.toml",
                                  "checkpoints/step_30/manifest.json", "lock"])  # fmt: skip
def test_garbage_in_any_file_is_survived(capsys, out, name, garbage):
    (out / name).write_bytes(garbage)
    code, text = run(capsys, out)
    assert code == 1 and "diagnosis" in text


def living(out, **changes):
    """A run whose lock is held, as `examine` would find it."""
    states = {"main": "sleeping", "trainer": "running", "generator 0": "running"}
    processes = [Process(n, 10 + i, s, 0.1) for i, (n, s) in enumerate(states.items())]
    values = {"status": Status(30, "2 more groups"), "status_age": 0.5,
              "processes": processes, "step": 30, "step_age": 1.0, "pace": 0.7}  # fmt: skip
    return Findings(out, locked=True, **(values | changes))


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "healthy", "it waits for 2 more groups"),
        ({"processes": [], "status": None, "status_age": None}, "healthy", "starting"),
        ({"status": Status(30, "x", starting=(0,))}, "healthy", "starting"),
        ({"status_age": 90.0}, "stuck", "a slow disk, or too little memory"),
        ({"status": Status(30, "x", stopping=True)}, "healthy", "ending, with a checkpoint"),
        ({"status_age": 90.0, "saving": True}, "healthy", "a checkpoint is being written"),
        ({"step_age": 400.0}, "stuck", "no step for 400 s, usually 0.7 s; the run waits for 2"),
        ({"step_age": 400.0, "pace": 60.0}, "healthy", "is training"),
        ({"processes": [Process("main", 7, "stopped", 0.0)]}, "stuck", "main process 7 is stopped"),
        ({"processes": [Process("main", 7, "sleeping", 0.0), Process("trainer", 8, "stopped")]},
         "stuck", "trainer is stopped"),
        ({"processes": [Process("main", 7, "sleeping", 0.0), Process("trainer", 8, "dead")]},
         "wrong", "trainer (process 8) is gone"),
    ],
)  # fmt: skip
def test_the_diagnosis_of_a_living_run(tmp_path, changes, state, words):
    diagnosis = diagnose(living(tmp_path, **changes))
    assert diagnosis.state == state and words in diagnosis.line
    assert diagnosis.good == (state == "healthy")


def test_processes_left_behind_are_named(tmp_path):
    found = living(tmp_path)
    found.locked = False
    diagnosis = diagnose(found)
    assert diagnosis.state == "wrong" and diagnosis.advice[0] == "kill 11 12"


def test_a_disk_that_is_nearly_full_is_told(tmp_path):
    found = living(tmp_path, free=1_500_000, checkpoint_size=1_000_000)
    assert diagnose(found).advice == (
        "free some disk: 2 MB are left, a checkpoint takes 1 MB",
    )  # fmt: skip


def test_the_lock_decides_who_lives(capsys, out):
    with RunLock(out):
        assert doctor.examine(out).locked
    assert not doctor.examine(out).locked


def test_processes_are_seen_as_they_are():
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.kill(sleeper.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 600
        while True:
            found = {
                p.name: p
                for p in sample_processes({"a": sleeper.pid, "b": busy.pid, "c": 999_999_999})
            }
            if found["a"].stopped and (found["b"].cpu or 0) > 0:
                break
            assert time.monotonic() < deadline, found
        assert found["c"].state == "gone" and not found["c"].alive
        assert found["a"].cpu == 0.0
    finally:
        for process in (sleeper, busy):
            process.kill()
            process.wait()


def test_it_needs_no_torch(out):
    code = f"import sys; from scalerl.cli import main; main(['doctor', {str(out)!r}]); "
    code += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=600)


def test_a_real_run_from_its_start_to_its_violent_end(capsys, tmp_path):
    """Healthy; stopped and let go on; killed."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", "batch.prompts=4",
               "batch.generations=4", "validation.prompts=8", "validation.k=1",
               "task.options.prompts=4000", "checkpoint.every=2", "filter.empty_steps=0",
               "--out", str(out)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (out / "status.json").exists())
        assert run(capsys, out)[0] == 0
        wait_for(lambda: len(RunStore(out, resume=True).read(StepLine)) >= 3)
        wait_for(lambda: "the run is training" in run(capsys, out)[1])
        code, text = run(capsys, out)
        assert code == 0 and f"process {process.pid}" in text
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: "main process" in run(capsys, out)[1])
        code, text = run(capsys, out)
        assert code == 1 and f"to do       kill -CONT {process.pid}" in text
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: run(capsys, out)[0] == 0)
    finally:
        process.kill()
        process.wait()
    pids = json.loads((out / "status.json").read_text())["pids"].values()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    code, text = run(capsys, out)
    assert code == 1 and "died at step" in text and f"scalerl train --resume {out}" in text


def wait_for(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_compute_is_told_by_kind_of_device_with_what_was_idle_and_lost():
    from scalerl.cli.doctor import _compute
    from scalerl.runs.compute import DeviceSeconds, LedgerLine

    ledger = LedgerLine(device_seconds=7200.0, by_kind={"H100": 5400.0, "A100": 1800.0},
                        lost_device_seconds=360.0,
                        spent=DeviceSeconds(generate_wait=1000.0, train_wait=800.0))  # fmt: skip
    assert _compute(ledger) == "1.5 h of H100, 0.5 h of A100; 25% idle; 0.1 h lost"
