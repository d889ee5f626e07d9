"""Real studies, run and killed: members are processes of `scalerl train`, on the virtual clock so
that they take seconds."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from faults import MARK, marked
from scalerl import Study
from scalerl.runs.lock import is_locked

SMALL = ["placement.backend=inline", "placement.deterministic=true", "batch.prompts=2",
         "batch.generations=2", "validation.prompts=4", "validation.k=1", "validation.every=1",
         "validation.also_temperatures=[]", "checkpoint.every=1", "schedule.k=1",
         "task.options.prompts=200", "filter.empty_steps=0"]  # fmt: skip
ASKED = ["scalerl", "tiny", *SMALL, "--sweep", "loss.ratio_cap=4", "--steps", "6", "--screen",
         "0.5", "--jobs", "2"]  # fmt: skip
#: Seconds after which a study that has not ended hangs.
LIMIT = 600


def start(*words):
    """`scalerl study`; it and all that it starts carry the mark of its directory."""
    folder = words[words[0] == "commands"]
    return subprocess.Popen(
        [sys.executable, "-m", "scalerl", "study", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, MARK: str(folder)},
    )  # fmt: skip


def ended(process, code=0):
    said, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == code, f"{said}\n{errors}"
    assert "Traceback" not in errors
    return said, errors


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def alive(folder, but=None):
    """Processes of the study in this directory."""
    return [pid for pid in marked(folder) if pid != but]


def curves(study):
    """What must not depend on who was killed when."""
    return {
        m.name: [
            (e["step"], e["pass_rate"], e["compute"]["flops"], e["compute"]["samples"])
            for e in lines(m.path / "evals.jsonl")
        ]
        for m in study.members
    }


def whole(study, steps):
    """Every member has every step and every validation once."""
    for member in study.members:
        assert [s["step"] for s in lines(member.path / "steps.jsonl")] == list(range(1, steps + 1))
        assert [e["step"] for e in lines(member.path / "evals.jsonl")] == list(range(steps + 1))
        assert not is_locked(member.path)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A study that nobody disturbs, and its JSON."""
    folder = tmp_path_factory.mktemp("a study") / "calm"
    said, _ = ended(start(folder, *ASKED, "--json"))
    return folder, json.loads(said)


def test_members_are_screened_extended_and_compared(calm):
    folder, found = calm
    study = Study(folder)
    whole(study, 6)
    assert [m["status"] for m in found["members"]] == ["done", "done"]
    for member in found["members"]:
        assert {"name", "variant", "seed", "recipe", "differs", "status", "stability",
                "fit"} <= set(member)  # fmt: skip
        assert member["stability"]["state"] == "undecided" and member["fit"]["n_points"] == 7
    assert [row["variant"] for row in found["table"]] == ["scalerl+tiny", "ratio_cap-4"]
    for row in found["table"]:
        assert {"variant", "seeds", "A", "B", "C_mid", "intervals", "verdict", "winner",
                "stability"} <= set(row)  # fmt: skip
        assert (
            row["seeds"] == 1 and row["intervals"]["A"][0] <= row["A"] <= row["intervals"]["A"][1]
        )
    assert found["table"][0]["verdict"] == "reference"
    assert [knob["variant"] for knob in found["knobs"]] == ["ratio_cap-4"]
    events = lines(study.members[0].path / "events.jsonl")
    assert [e["reason"] for e in events if e["event"] == "end"] == [
        "budget of 3 steps", "budget of 6 steps"]  # fmt: skip


def test_a_finished_study_does_nothing_twice(calm):
    folder, found = calm
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.jsonl")}
    said, _ = ended(start(folder, "--json"))
    assert json.loads(said) == found
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*.jsonl")} == before


def struck(folder, rng, strikes):
    """Run a study to its end through kills of it and of its members, each at a random moment: what
    it says at its end, and how many kills there were."""
    done = 0
    while True:
        study = start(folder, *ASKED, "--json")
        while done < strikes and study.poll() is None:
            try:
                study.wait(rng.uniform(0.2, 4.0))  # a start takes three
            except subprocess.TimeoutExpired:
                victims = [study.pid, *alive(folder, but=study.pid)]
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(victims), signal.SIGKILL)
                    done += 1
        said, errors = study.communicate(timeout=LIMIT)
        assert "Traceback" not in errors
        if study.returncode == 0:
            return json.loads(said), done
        assert study.returncode in (-signal.SIGKILL, 1), "killed, or members were too often"


def same_as(calm, folder, found):
    undisturbed, expected = calm
    whole(Study(folder), 6)
    assert curves(Study(folder)) == curves(Study(undisturbed))
    assert found["table"] == expected["table"]
    assert [m["name"] for m in found["members"]] == [m["name"] for m in expected["members"]]


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(3))
def test_ten_kills_at_random_moments_change_nothing(calm, tmp_path, seed):
    folder = tmp_path / "killed"
    found, done = struck(folder, random.Random(seed), strikes=10)
    assert done == 10
    same_as(calm, folder, found)


def until_begun(study, folder, rng):
    """A random moment after the first step of a member."""
    while not list(folder.glob("runs/*/steps.jsonl")):
        assert study.poll() is None
        time.sleep(0.05)
    time.sleep(rng.uniform(0.0, 2.0))


@pytest.mark.faults
def test_kills_of_study_and_members_change_nothing(calm, tmp_path):
    folder, rng = tmp_path / "killed", random.Random(5)
    study = start(folder, *ASKED)
    until_begun(study, folder, rng)
    os.kill(study.pid, signal.SIGKILL)
    study.communicate()
    deadline = time.monotonic() + 600
    while alive(folder) and time.monotonic() < deadline:  # or an orphan would be struck below
        time.sleep(0.1)
    study = start(folder, "--json", "--jobs", "2")
    until_begun(study, folder, rng)
    deadline = time.monotonic() + LIMIT
    while not (victims := alive(folder, but=study.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(victims[0], signal.SIGKILL)
    said, errors = ended(study)
    assert "killed (signal 9)" in errors and "starting again" in errors
    same_as(calm, folder, json.loads(said))


@pytest.mark.faults
def test_a_member_ends_soon_after_its_killed_study_and_with_a_checkpoint(tmp_path):
    folder = tmp_path / "s"
    # (A deterministic run goes back to its last checkpoint: it saves none when it is stopped.)
    words = [*SMALL, "placement.deterministic=false", "checkpoint.every=100000",
             "task.options.prompts=100000"]  # fmt: skip
    study = start(folder, "scalerl", "tiny", *words, "--steps", "100000", "--screen", "1")
    until_begun(study, folder, random.Random(2))
    os.kill(study.pid, signal.SIGKILL)
    study.communicate()
    deadline = time.monotonic() + 600
    while alive(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(folder)
    (member,) = Study(folder).members
    assert lines(member.path / "events.jsonl")[-1]["reason"] == "interrupted"
    steps = len(lines(member.path / "steps.jsonl"))
    assert (member.path / "checkpoints" / f"step_{steps}").is_dir(), "nothing is lost"


@pytest.mark.faults
def test_ctrl_c_ends_with_checkpoints_and_says_how_to_go_on(tmp_path):
    folder = tmp_path / "s"
    study = start(folder, *ASKED, "--plain")
    until_begun(study, folder, random.Random(1))
    os.kill(study.pid, signal.SIGINT)
    said, _ = ended(study, 128 + signal.SIGINT)
    assert said.splitlines()[-1] == f"to continue: scalerl study {folder}"
    assert not alive(folder)


def test_a_failing_member_is_reported_and_the_others_go_on(tmp_path):
    folder = tmp_path / "s"
    words = ["scalerl", "tiny", *SMALL, "--sweep", f"model.path={tmp_path}/no-model", "--steps",
             "2", "--screen", "1", "--jobs", "2", "--json"]  # fmt: skip
    said, errors = ended(start(folder, *words), 1)
    found = {m["variant"]: m for m in json.loads(said)["members"]}
    assert found["scalerl+tiny"]["status"] == "done"
    (bad,) = [m for name, m in found.items() if name != "scalerl+tiny"]
    assert bad["status"] == "failed" and "there is no such directory" in bad["why"]
    assert "there is no such directory" in errors
    table = json.loads(said)["table"]
    assert table[1]["seeds"] == 0 and table[1]["A"] is None and table[1]["verdict"] is None


@pytest.mark.faults
def test_members_run_elsewhere_by_the_printed_lines_are_picked_up(calm, tmp_path):
    folder = tmp_path / "it's elsewhere"
    asked = start("commands", folder, *ASKED)
    said, _ = ended(asked)
    jobs = []
    for line in said.splitlines():
        assert shlex.split(line)[:2] == ["scalerl", "train"]
        shell = f"{shlex.quote(sys.executable)} -m {line}"
        jobs.append(subprocess.Popen(shell, shell=True, stdout=subprocess.DEVNULL))
    assert [job.wait(LIMIT) for job in jobs] == [0, 0]
    said, _ = ended(start(folder, "--json"))
    same_as(calm, folder, json.loads(said))
    assert not list((folder / "logs").iterdir()), "nothing was left to run"


def test_a_second_study_of_the_same_directory_is_refused(tmp_path):
    folder = tmp_path / "s"
    first = start(folder, *ASKED)
    while not (folder / "lock").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    _, errors = ended(start(folder), 2)
    assert f"{folder} is being written by process {first.pid}" in errors
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
