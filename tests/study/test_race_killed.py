"""A real race, killed at random moments: the same members get the same chunks."""

import json
import os
import random
import signal
import subprocess
from contextlib import suppress

import pytest
from test_whole_studies import LIMIT, SMALL, alive, ended, lines, start

from scalerl import Study
from scalerl.runs.lock import is_locked

#: One at a time, so that who is chosen next does not depend on who was done first.
RACE = ["scalerl", "tiny", *SMALL, "--sweep", "loss.ratio_cap=4", "--seeds", "2", "--steps", "8",
        "--race", "--jobs", "1"]  # fmt: skip


def raced(study):
    """Member → the budgets that it was given, each once, and its validations."""
    found = {}
    for member in study.members:
        if not member.path.exists():  # the race did without it
            continue
        steps, evals = (lines(member.path / f"{name}.jsonl") for name in ("steps", "evals"))
        assert [s["step"] for s in steps] == list(range(1, len(steps) + 1)), "nothing run twice"
        assert [e["step"] for e in evals] == list(range(len(steps) + 1))
        assert not is_locked(member.path)
        ends = [e["reason"] for e in lines(member.path / "events.jsonl") if e["event"] == "end"]
        chunks = [reason for reason in ends if reason.startswith("budget")]
        scores = [(e["pass_rate"], e["compute"]["flops"], e["compute"]["samples"]) for e in evals]
        found[member.name] = chunks, scores
    return found


def struck(folder, rng, strikes):
    """The race run to its end through kills of it and of its members. (Never three of a member in
    one start: a member that is killed so often without getting on is given up for that start, and
    the race rightly goes elsewhere.)"""
    done = 0
    while True:
        study, members = start(folder, *RACE, "--json"), 0
        while done < strikes and study.poll() is None:
            try:
                study.wait(rng.uniform(0.2, 4.0))  # a start takes three
            except subprocess.TimeoutExpired:
                others = alive(folder, but=study.pid) if members < 2 else []
                victim = rng.choice([study.pid, *others])
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    done += 1
                    members += victim != study.pid
        said, errors = study.communicate(timeout=LIMIT)
        assert "Traceback" not in errors
        if study.returncode == 0:
            return json.loads(said), done
        assert study.returncode == -signal.SIGKILL, errors


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A race that nobody disturbs, and its JSON."""
    folder = tmp_path_factory.mktemp("race") / "calm"
    return folder, json.loads(ended(start(folder, *RACE, "--json"))[0])


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(2))
def test_ten_kills_of_a_race_at_random_moments_change_nothing(calm, tmp_path, seed):
    undisturbed, expected = calm
    folder = tmp_path / "killed"
    found, done = struck(folder, random.Random(seed), strikes=10)
    assert done == 10
    assert [m["name"] for m in found["members"]] == [m["name"] for m in expected["members"]]
    assert raced(Study(folder)) == raced(Study(undisturbed)), "the same chunks, and each once"
    assert found["table"] == expected["table"] and found["race"] == expected["race"]
