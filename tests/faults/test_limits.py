"""Limits that a machine sets to a real run: a directory that cannot be written, no memory, no room
on the disk, a clock that is set forward and back."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults import LIMIT, MARK, Victim, gone, lines
from scalerl.errors import PipelineError
from scalerl.pipeline import checkpoints
from scalerl.pipeline.supervisor import MAX_DEATHS
from scalerl.recipe import Recipe
from scalerl.runs.listener import Listener
from scalerl.runs.store import RunStore
from scalerl.training import RunAttempts

SMALL = ["batch.prompts=4", "batch.generations=4", "validation.prompts=8", "validation.k=1",
         "validation.every=2", "validation.also_temperatures=[]", "task.options.prompts=20000",
         "checkpoint.every=2", "filter.empty_steps=0"]  # fmt: skip
#: Mounts of our own, which end with the process that made them.
OWN_MOUNTS = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-r", "-m"]
TRAIN = f"{sys.executable} -m scalerl train"
NEW = " ".join([TRAIN, "scalerl", "tiny", *map(repr, SMALL), "--plain"])


def in_own_mounts(folder, script):
    """Run a script of sh in a folder, with two words for waiting."""
    waits = """
        until_true() { i=0; while ! eval "$1"; do
            i=$((i + 1)); [ $i -gt 6000 ] && { echo "waited in vain for $1"; exit 97; }
            sleep 0.1; done; }
        whole_lines() { [ -f "$1" ] && [ "$(grep -c '^{.*}$' "$1")" -ge "$2" ]; }
    """
    done = subprocess.run(
        [*OWN_MOUNTS, "sh", "-c", waits + script],
        capture_output=True, text=True, timeout=3 * LIMIT, check=False, cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", MARK: str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def one_line(text):
    assert text.count("\n") == 1 and text.startswith("scalerl: "), text
    return text


# -- read-only directories ------------------------------------------------------------------------


@pytest.mark.faults
def test_a_run_into_a_read_only_directory_is_one_line_and_exit_code_2(tmp_path):
    (tmp_path / "disk").mkdir()
    in_own_mounts(
        tmp_path,
        f"""
        mount -t tmpfs -o ro tmpfs disk || exit 99
        {NEW} --steps 2 --out disk/run > said 2> error
        echo $? > code
    """,
    )
    assert (tmp_path / "code").read_text().strip() == "2"
    assert "disk/run: Read-only file system: choose" in one_line((tmp_path / "error").read_text())
    assert (tmp_path / "said").read_text() == ""


@pytest.mark.faults
def test_a_directory_that_becomes_read_only_ends_the_run_with_one_line(tmp_path):
    """And once it can be written again, the run goes on."""
    (tmp_path / "run").mkdir()
    in_own_mounts(
        tmp_path,
        f"""
        {NEW} --steps 1000000 --out run > said 2> error & run=$!
        until_true 'whole_lines run/steps.jsonl 3'
        mount -t tmpfs -o ro tmpfs run || exit 99
        wait $run; echo $? > code
        umount run || exit 98
        last=$(tail -n 1 run/steps.jsonl | sed 's/.*"step": \\([0-9]*\\).*/\\1/')
        {TRAIN} --resume run --steps $((last + 2)) --plain > again 2>&1 || exit 96
    """,
    )
    assert (tmp_path / "code").read_text().strip() == "2"
    error = one_line((tmp_path / "error").read_text())
    # Mounted in the middle of a checkpoint, the empty file system hides what is half written.
    reasons = ("Read-only file system", "No such file or directory")
    assert any(reason in error for reason in reasons) and "--resume" in error
    steps = [s["step"] for s in lines(tmp_path / "run" / "steps.jsonl")]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 4
    gone(Victim(tmp_path, []))


# -- full disks -----------------------------------------------------------------------------------


@pytest.mark.faults
def test_kill_9_while_the_disk_is_full_loses_no_line_of_the_record(tmp_path):
    """Four times: the disk is filled, the run is killed soon after, room is made, it goes on."""
    rng = random.Random(0)
    (tmp_path / "disk").mkdir()
    rounds = ""
    for i in range(4):
        rounds += f"""
            until_true 'whole_lines disk/run/steps.jsonl $((last + 3))'
            dd if=/dev/zero of=disk/full bs=1k 2> /dev/null
            sleep {rng.uniform(0.0, 1.0):.2f}
            kill -9 $run; wait $run 2> /dev/null
            cp -r disk/run full_{i}
            dd if=/dev/zero of=disk/fuller bs=1k 2> /dev/null
            {TRAIN} --resume disk/run > said_{i} 2> error_{i}; echo $? > code_{i}
            cmp disk/run/steps.jsonl full_{i}/steps.jsonl || exit 95
            cmp disk/run/evals.jsonl full_{i}/evals.jsonl || exit 95
            rm disk/full disk/fuller
            last=$(grep -c '^{{.*}}$' disk/run/steps.jsonl)
            {TRAIN} --resume disk/run --plain >> said 2>> error & run=$!
        """
    in_own_mounts(
        tmp_path,
        f"""
        mount -t tmpfs -o size=60m tmpfs disk || exit 99
        last=0
        {NEW} --steps 1000000 --out disk/run >> said 2>> error & run=$!
        {rounds}
        until_true 'whole_lines disk/run/steps.jsonl $((last + 3))'
        kill -INT $run; wait $run
        cp -r disk/run last
    """,
    )
    assert "Traceback" not in (tmp_path / "error").read_text()
    for i in range(4):
        assert (tmp_path / f"code_{i}").read_text().strip() == "2"
        assert "No space left on device" in one_line((tmp_path / f"error_{i}").read_text())
    last = {name: whole(tmp_path / "last" / name) for name in ("steps.jsonl", "evals.jsonl")}
    steps = [s["step"] for s in last["steps.jsonl"]]
    assert steps == list(range(1, len(steps) + 1))
    evals, due = [e["step"] for e in last["evals.jsonl"]], list(range(0, steps[-1] + 1, 2))
    # The signal may have come while the validation of the last step was under way.
    assert evals in (due, due[:-1])
    for i in range(4):
        before = tmp_path / f"full_{i}"
        newest = checkpoints.latest(before, pytest.fail)
        until = checkpoints.step_of(newest)
        for name, kept in last.items():
            sure = [s for s in lines_that_are_whole(before / name) if s["step"] <= until]
            assert sure == [s for s in kept if s["step"] <= until], (i, name)


def whole(path):
    """Every line of a file, none of which may be damaged."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def lines_that_are_whole(path):
    """The last one may be cut short by the full disk."""
    found = []
    for line in path.read_text().split("\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


# -- memory ---------------------------------------------------------------------------------------


#: Its cache takes arrays of 61 MB each; what a new process may allocate altogether.
LARGE = ["batch.prompts=32", "batch.generations=16", "sampling.max_prompt_tokens=400"]
ROOM = 32 << 20


def children(pid):
    """Processes that this one has started, by /proc."""
    found = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found |= {int(each) for each in path.read_text().split()}
    return found


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def ended_by_one_line(run):
    """What the run said last; it has ended by itself, with exit code 1, and nothing is left."""
    assert run.process.wait(LIMIT) == 1, run.out.with_suffix(".log").read_text()[-2000:]
    said = run.out.with_suffix(".log").read_text()
    assert "Traceback" not in said
    gone(run)
    [line] = [line for line in said.splitlines() if line.startswith("scalerl: ")]
    failed = lines(run.out / "events.jsonl")[-1]
    assert failed["event"] == "failed" and failed["why"] == line.removeprefix("scalerl: ")
    return line


def begun(tmp_path, *settings):
    run = Victim(tmp_path / "run", [])
    run.start("scalerl", "tiny", *SMALL, *settings, "--steps", "1000000", "--out", str(run.out))
    run.wait(lambda: run.step >= 1, "the first step")
    return run


@pytest.mark.faults
def test_a_generator_without_memory_ends_the_run_with_its_name_and_what_to_reduce(tmp_path):
    """The fork server gets little more address space than it has, and its forks inherit the limit:
    the generator that replaces a killed one starts, and cannot allocate its cache."""
    run = begun(tmp_path, *LARGE)
    pid = run.pid("generator 0")
    server = parent(pid)
    status = Path(f"/proc/{server}/status").read_text()
    limit = (int(status.split("VmSize:")[1].split()[0]) << 10) + ROOM
    resource.prlimit(server, resource.RLIMIT_AS, (limit, limit))
    os.kill(pid, signal.SIGKILL)
    line = ended_by_one_line(run)
    assert line.startswith("scalerl: generator 0 ") and "memory" in line
    assert "lower placement.generators" in line and "--resume" in line


@pytest.mark.faults
def test_a_generator_that_is_killed_again_and_again_is_not_replaced_for_ever(tmp_path):
    """As the system does it when memory runs out: each successor is killed as soon as it is
    there."""
    run = begun(tmp_path)
    pid = run.pid("generator 0")
    server = parent(pid)
    known, kills = children(server), 0
    while run.process.poll() is None:
        try:
            os.kill(pid, signal.SIGKILL)
            kills += 1
            run.wait(lambda: children(server) - known, "its successor", pause=0.001)
        except (AssertionError, OSError):  # the run has ended meanwhile, and its server with it
            break
        [pid] = children(server) - known
        known.add(pid)
    line = ended_by_one_line(run)
    assert line.startswith("scalerl: generator 0 died: killed by signal 9; it was started 5 times")
    assert "if it ran out of memory: lower placement.generators" in line
    assert kills == MAX_DEATHS + 1


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("can't start new thread"),
              OSError(12, "Cannot allocate memory")],
)  # fmt: skip
def test_a_main_process_without_memory_ends_with_one_line(tmp_path, error):
    def begin(recipe, checkpoint):
        raise error

    store = RunStore(tmp_path / "run")
    run = RunAttempts(Recipe.load("scalerl", "tiny"), store, None, Listener(), False, begin)
    with pytest.raises(PipelineError, match=r"^the main process ran out of memory \(.*: lower"):
        run.run()
    [event] = lines(tmp_path / "run" / "events.jsonl")
    assert event["event"] == "failed" and "ran out of memory" in event["why"]


def test_what_is_no_want_of_memory_is_not_called_so(tmp_path):
    def begin(recipe, checkpoint):
        raise RuntimeError("a defect")

    store = RunStore(tmp_path / "run")
    run = RunAttempts(Recipe.load("scalerl", "tiny"), store, None, Listener(), False, begin)
    with pytest.raises(RuntimeError, match=r"^a defect$"):
        run.run()


# -- clocks ---------------------------------------------------------------------------------------

#: Imported by every Python process that has its folder in PYTHONPATH: the wall clock is set forward
#: and back by hours, at every look.
JUMPS = """
import itertools, time

real, jumps = time.time, itertools.cycle([0.0, 6 * 3600.0, -6 * 3600.0])
time.time = lambda: real() + next(jumps)
time.time_ns = lambda: int(1e9 * time.time())
"""


def test_a_wall_clock_that_is_set_forward_and_back_changes_nothing_in_a_run(tmp_path):
    """Neither its budget in minutes, nor the patience with its processes, nor its compute."""
    (tmp_path / "sitecustomize.py").write_text(JUMPS)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    run = tmp_path / "run"
    done = subprocess.run(
        [*TRAIN.split(), "scalerl", "tiny", *SMALL, "budget.minutes=300", "placement.patience=3600",
         "--steps", "6", "--out", str(run)],
        capture_output=True, text=True, timeout=LIMIT, check=False,
        env=os.environ | {"PYTHONPATH": path, MARK: str(run)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps, evals = lines(run / "steps.jsonl"), lines(run / "evals.jsonl")
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5, 6]
    assert [e["step"] for e in evals] == [0, 2, 4, 6]
    for kind in ("minutes", "device_hours"):
        spent = [s["compute"][kind] for s in steps]
        assert spent == sorted(spent) and 0.0 < spent[-1] < 300.0
        assert spent[-1] < 3.0 or kind == "minutes", "less than half a jump"
    events = lines(run / "events.jsonl")
    assert {e["event"] for e in events} <= {"note", "warning", "end"}
    assert events[-1]["reason"] == "budget of 6 steps"
    # The only time of day in a record is that of the status, which says what is now.
    assert not any("time" in line for line in (*steps, *evals, *events))
    status = run / "status.json"
    if status.exists():  # a run that is over within a second has written none
        assert abs(json.loads(status.read_text())["time"] - time.time()) < 7 * 3600 + LIMIT
