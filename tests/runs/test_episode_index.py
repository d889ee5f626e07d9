"""The index of recorded episodes: from the file beside, from the lines, and from both."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from made_episodes import episode, made_episodes

from scalerl.files import MAX_LINE
from scalerl.runs.episode_entries import ENTRY_BYTES, entry_of, index_path, name_hash
from scalerl.runs.episode_index import EpisodeIndex, EpisodesChanged
from scalerl.runs.lines import EpisodeLine
from scalerl.runs.store import encode


@pytest.fixture
def path(tmp_path):
    made_episodes(tmp_path / "run")
    return tmp_path / "run" / EpisodeLine.FILE


def columns(index):
    """Everything that an index says, but for `check`."""
    names = [name for name in index.entries.dtype.names if name != "check"]
    return [index.entries[name].tolist() for name in names]


def indexed(path):
    found = EpisodeIndex(path)
    assert found.refresh()
    return found


def from_lines(path):
    """The index that is made without the file beside."""
    beside = index_path(path)
    there = beside.read_bytes() if beside.exists() else None
    beside.unlink(missing_ok=True)
    found = indexed(path)
    if there is not None:
        beside.write_bytes(there)
    return found


def test_an_index_says_what_the_lines_say(path):
    index = indexed(path)
    assert index._reader.bytes_read == 0, "no line was parsed"
    assert len(index) == 80
    for n in (0, 7, 41, 79):
        line, entry = episode(n), index.entries[n]
        assert json.loads(index.line(n)) == json.loads(encode(line))
        assert (entry["step"], entry["length"]) == (line.step, line.rows[0][1].tokens)
        assert entry["prompt"] == name_hash(line.prompt) and entry["task"] == name_hash(line.task)
        assert entry["turns"] == line.play.turns
        assert np.isnan(entry["reward"]) if line.reward is None else entry["reward"] == line.reward


def test_the_same_follows_from_the_lines_alone(path):
    assert repr(columns(from_lines(path))) == repr(columns(indexed(path)))


@pytest.mark.parametrize("kept", [0, 1, 100, 10 * ENTRY_BYTES, 79 * ENTRY_BYTES + 5])
def test_a_short_index_is_completed_from_the_lines(path, kept):
    whole = columns(indexed(path))
    index_path(path).write_bytes(index_path(path).read_bytes()[:kept])
    assert repr(columns(indexed(path))) == repr(whole)


@pytest.mark.parametrize("at", [0, 30 * ENTRY_BYTES + 9, 80 * ENTRY_BYTES - 1])
def test_a_damaged_entry_is_made_again_from_its_line(path, at):
    whole = columns(indexed(path))
    data = bytearray(index_path(path).read_bytes())
    data[at] ^= 0x40
    index_path(path).write_bytes(data)
    assert repr(columns(indexed(path))) == repr(whole)


@pytest.mark.parametrize("size", [0, 7, 5600, 20_000])
def test_an_index_of_zeros_or_of_noise_is_not_used(path, size):
    whole = columns(from_lines(path))
    for data in (bytes(size), os.urandom(size)):
        index_path(path).write_bytes(data)
        assert repr(columns(indexed(path))) == repr(whole)


def test_an_index_of_other_lines_is_not_used(path, tmp_path):
    made_episodes(tmp_path / "other", training=60)
    other = index_path(tmp_path / "other" / EpisodeLine.FILE).read_bytes()
    # An edit by hand moves all lines behind it.
    path.write_bytes(path.read_bytes().replace(b"answer 3", b"an answer 3"))
    for data in (other, index_path(path).read_bytes()):
        index_path(path).write_bytes(data)
        assert repr(columns(indexed(path))) == repr(columns(from_lines(path)))


def test_entries_that_lead_out_of_the_file_are_left_out(path):
    bad = entry_of({"step": 1}, b"x" * 100, 2**63)
    far = entry_of({"step": 1}, b"x" * 100, 10**9)
    whole = columns(indexed(path))
    with index_path(path).open("ab") as file:
        file.write(bad + far)
    assert repr(columns(indexed(path))) == repr(whole)


def test_a_growing_file_is_followed(path):
    run = path.parent.parent
    index = indexed(path)
    store = made_episodes(run, training=0, validation=0)
    store.append_episodes([encode(episode(n)) for n in (80, 81)], 10**9)
    assert index.refresh() and len(index) == 82 and index._reader.bytes_read == 0
    # Lines that another program appends have no entries.
    with path.open("ab") as file:
        file.write(encode(episode(82)) + b'{"step": 9, "half')
    assert index.refresh() and len(index) == 83
    with path.open("ab") as file:
        file.write(b'": 1}\n')
    assert index.refresh() and index.entries["step"][-1] == 9
    store.append_episodes([encode(episode(84))], 10**9)
    assert index.refresh() and len(index) == 85
    assert repr(columns(index)) == repr(columns(from_lines(path)))


def test_a_run_that_goes_back_is_indexed_again(path):
    store = made_episodes(path.parent.parent, training=0, validation=0)
    index = indexed(path)
    store.cut_after(EpisodeLine, 4)
    assert index_path(path).stat().st_size == 40 * ENTRY_BYTES
    store.append_episodes([encode(episode(n, why="again")) for n in (40, 41)], 10**9)
    assert index.refresh() and len(index) == 42 and index.generation == 1
    assert json.loads(index.line(40))["why"] == "again" and index._reader.bytes_read == 0


def test_a_line_that_is_not_the_indexed_one_is_noticed(path):
    index = indexed(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"because of 17", b"because of 71"))
    with pytest.raises(EpisodesChanged):
        index.line(17)
    assert index.line(16)


def test_damaged_and_long_lines_are_left_out(path):
    with path.open("ab") as file:
        file.write(b"\x00\xff{\n[1]\n{}\n" + b'{"step": true}\n')
        file.write(b'{"step": 1, "why": "' + b"x" * 10_000_000 + b'"}\n')
        file.write(b'{"step": 1e400}\n{"step": 7.0, "rows": 3, "reward": "x", "play": []}\n')
        file.write(b'{"step": 99999999999999999999, "reward": 1e300}\n')
    index = indexed(path)
    assert len(index) == 82 and index.entries["step"][80:].tolist() == [7, 2**31 - 1]
    assert np.isnan(index.entries["reward"][80:]).all()


def test_a_file_that_is_not_there_or_is_none_has_no_episodes(tmp_path):
    assert indexed(tmp_path / "training.jsonl").entries.size == 0
    os.mkfifo(tmp_path / "pipe.jsonl")
    index = indexed(tmp_path / "pipe.jsonl")
    assert index.problem == "pipe.jsonl: not a regular file: not read"


def test_an_index_may_be_built_in_parts(path, monkeypatch):
    monkeypatch.setattr("scalerl.runs.episode_index.PART_BYTES", 3000)
    index_path(path).unlink()
    index = EpisodeIndex(path)
    sizes = []
    while not index.refresh(seconds=0.0):
        sizes.append(len(index))
    assert len(sizes) > 3 and len(index) == 80 and index.complete
    assert max(map(len, path.read_bytes().split(b"\n"))) < MAX_LINE


def test_a_torn_index_of_a_killed_run_goes_on_behind_a_whole_entry(path):
    store = made_episodes(path.parent.parent, training=0, validation=0)
    with index_path(path).open("ab") as file:
        file.write(b"torn")
    store.append_episodes([encode(episode(80))], 10**9)
    assert index_path(path).stat().st_size == 81 * ENTRY_BYTES
    assert isinstance(path, Path) and len(indexed(path)) == 81
