"""Rollouts of other frameworks, read as our own episodes are."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.runs.episode_filter import EpisodeFilter
from scalerl.runs.episode_sources import open_episodes
from scalerl.runs.episode_view import detail, list_episodes
from scalerl.runs.sources import find_logs

FIXTURES = Path(__file__).parents[1] / "fixtures" / "rollouts"


def opened(path):
    log = open_episodes(path)
    log.refresh(None)
    assert log.problems == []
    return log


def listed(log, **wanted):
    return list_episodes(log, EpisodeFilter(**wanted), "oldest", 500).episodes


def test_verl_has_a_file_for_each_step():
    log = opened(FIXTURES / "verl")
    found = listed(log)
    assert [e["step"] for e in found] == [1] * 4 + [2] * 4
    assert {e["correct"] for e in found} == {True, False} and log.length_unit == "characters"
    right = listed(log, correct="true", step_from=2)
    assert [e["reward"] for e in right] == [1.0, 1.0]
    one = detail(log, log.number_of(right[0]["id"]))
    assert [s["source"] for s in one["rows"][0]] == ["context", "policy"]
    assert one["why"] == "expected 2" and one["rows"][0][1]["text"] == "#### 2"
    # Answers to the same question are a group, though verl does not name its prompts.
    assert len(listed(log, prompt=one["prompt"])) == 4


def test_files_of_later_steps_are_taken_in(tmp_path, monkeypatch):
    monkeypatch.setattr("scalerl.runs.rollout_episodes.LOOK_SECONDS", 0.0)
    # Two folders further down: the name of this test's own folder begins as that of a validation.
    tmp_path = tmp_path / "run" / "rollouts"
    tmp_path.mkdir(parents=True)
    for step in (1, 3):
        (tmp_path / f"{step}.jsonl").write_text((FIXTURES / "verl" / "1.jsonl").read_text())
    log = opened(tmp_path)
    generation = log.sources["training"].generation
    (tmp_path / "4.jsonl").write_text((FIXTURES / "verl" / "2.jsonl").read_text())
    log.refresh(None)
    assert len(log.entries) == 12 and log.sources["training"].generation == generation
    # A file in between moves the numbers of those behind it.
    (tmp_path / "2.jsonl").write_text((FIXTURES / "verl" / "2.jsonl").read_text())
    log.refresh(None)
    assert len(log.entries) == 16 and log.sources["training"].generation > generation
    assert log.entries["step"].tolist() == [1] * 4 + [2] * 4 + [1] * 4 + [2] * 4


def test_verifiers_results_are_conversations():
    log = opened(FIXTURES / "verifiers" / "results.jsonl")
    found = listed(log)
    assert [e["finish"] for e in found] == ["stop", "turns", "length"]
    assert {e["prompt"] for e in found} == {"wordle/0", "wordle/1"}
    one = detail(log, 0)
    texts = [(s["source"], s["text"]) for s in one["rows"][0]]
    assert texts[1] == ("context", "user: Guess a word.") and texts[3] == ("context", "tool: GYXXX")
    assert texts[2][0] == "policy" and '"name": "guess"' in texts[2][1]
    assert texts[4] == ("policy", "<guess>cloud</guess>")
    assert one["turns"] == 2 and one["tool_calls"] == 1 and one["correct"] is True


def test_traces_of_prime_rl_have_their_tokens():
    log = opened(FIXTURES / "prime-rl")
    assert [e["step"] for e in listed(log)] == [3, 3] and log.length_unit == "tokens"
    one = detail(log, 1)
    assert one["reward"] == 1.0 and one["correct"] is True and one["prompt"] == "add/7"
    assert len(one["rows"]) == 2, "two leaves of the message graph"
    answer = one["rows"][0][-1]
    assert answer["token_ids"] == [4, 5] and answer["logprobs"] == [-0.5, -0.1]
    assert answer["entropies"] == [0.7, 0.2] and answer["tokens"] is None
    assert one["tokens"] == 3 and one["rows"][1][-1]["text"] == "Let me think."


def test_completions_of_trl(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "out" / "completions"
    folder.mkdir(parents=True)
    for step in (5, 10):
        messages = [[{"role": "assistant", "content": f"answer {step}"}]] * 3
        table = {"step": [step] * 3, "prompt": [[{"role": "user", "content": "Say it."}]] * 3,
                 "completion": messages, "accuracy_reward": [1.0, 0.0, None],
                 "format_reward": [0.5, 0.5, 0.5], "advantage": [0.7, -0.7, 0.0]}  # fmt: skip
        parquet.write_table(pa.table(table), folder / f"completions_{step:05d}.parquet")
    log = opened(tmp_path / "out")
    assert [(e["step"], e["reward"]) for e in listed(log)][:3] == [(5, 1.5), (5, 0.5), (5, 0.5)]
    (found,) = listed(log, text="ANSWER 10", reward_min=1.0)
    assert found["why"] == "accuracy_reward 1, format_reward 0.5, advantage 0.7"
    assert detail(log, log.number_of(found["id"]))["question"] == "user: Say it."
    # A file that is being replaced has no episodes meanwhile.
    (folder / "completions_00010.parquet").write_bytes(b"PAR1 damaged")
    log.refresh(None)
    assert len(log.entries) == 3 and "not a readable Parquet file" in log.problems[0]


def test_traces_of_trackio(tmp_path):
    path = tmp_path / "project.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, "
                   "step INTEGER, metrics TEXT)")  # fmt: skip
        db.execute("CREATE TABLE traces (id TEXT PRIMARY KEY, run_id TEXT, timestamp TEXT, "
                   "run_name TEXT, step INTEGER, key TEXT, trace_index INTEGER, messages TEXT, "
                   "metadata TEXT, search_text TEXT)")  # fmt: skip
        for step in range(3):
            messages = [{"role": "user", "content": "2+2?"},
                        {"role": "assistant", "content": f"{step + 2}"}]  # fmt: skip
            metadata = {"reward": float(step == 2), "prompt_id": "p1"}
            db.execute(
                "INSERT INTO traces VALUES (?, 'r', 't', 'run', ?, 'rollout', 0, ?, ?, '')",
                (f"r:{step}", step, json.dumps(messages), json.dumps(metadata).encode()),
            )
    # trackio 0.43 keeps each trace a second time, in a file of its own: these are no further runs.
    copies = tmp_path / "traces" / "project" / "run"
    copies.mkdir(parents=True)
    for i in range(3):
        (copies / f"{i}-rollout.jsonl").write_text('{"type": "session", "version": 3}\n')
    assert [where for where, _ in find_logs(tmp_path)] == [str(path)]
    log = opened(tmp_path)
    assert [(e["step"], e["correct"]) for e in listed(log)] == [(0, False), (1, False), (2, True)]
    assert {(e["prompt"], e["task"]) for e in listed(log)} == {("p1", "rollout")}


def test_a_file_that_grows_is_followed(tmp_path):
    path = tmp_path / "results.jsonl"
    lines = (FIXTURES / "verifiers" / "results.jsonl").read_text().splitlines(keepends=True)
    path.write_text(lines[0])
    log = opened(path)
    with path.open("a") as file:
        file.writelines(lines[1:])
    log.refresh(None)
    assert len(log.entries) == 3 and detail(log, 2)["finish"] == "length"


OWN = """
from scalerl.cli import main
from scalerl.runs.rollouts import ROLLOUTS, RolloutFormat
from scalerl.runs.rollouts.messages import text_episode

def convert(record, path):
    return text_episode(step=record["i"], question=record["q"], answer=record["a"], reward=1)

ROLLOUTS.add("mine", RolloutFormat(convert, sniff=lambda path, head: float(b'"q"' in head)))
main(["episodes", "own.jsonl"])
"""


def test_a_format_of_ones_own_is_one_file_and_one_line(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"i": 7, "q": "why", "a": "because"}\n')
    done = subprocess.run(
        [sys.executable, "-c", OWN], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "step 7" in done.stdout and "policy  │ because" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 100, b'{"a": 1}\n', b"SQLite format 3\x00", b"PAR1", b"[1, 2"]
)
def test_files_that_are_no_rollouts_are_refused(tmp_path, content):
    path = tmp_path / "completions.jsonl"
    path.write_bytes(content)
    try:
        log = open_episodes(path)
    except InputError as error:
        assert "holds no episodes" in str(error)
    else:
        log.refresh(None)
        assert len(log.entries) == 0 and log.problems
