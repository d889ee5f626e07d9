"""A run read on from where one was is the run that the importer reads whole."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from scalerl import load_run, load_runs
from scalerl.runs.follow import parsed
from scalerl.runs.followed import FollowedRun

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from made_records import made_run


def same(a, b):
    assert np.array_equal(a.compute, b.compute) and np.array_equal(a.score, b.score)
    assert np.array_equal(a.n_eval, b.n_eval)
    assert a.signs.keys() == b.signs.keys()
    for name in a.signs:
        np.testing.assert_allclose(a.signs[name], b.signs[name], rtol=1e-12)
    for name in ("name", "group", "x_kind", "x_name", "y_name", "score_kind", "source", "notes"):
        assert getattr(a, name) == getattr(b, name), name


@pytest.fixture
def whole(tmp_path):
    return made_run(tmp_path / "whole", n=21, steps=100)


def test_in_pieces_of_any_size_it_is_the_run_that_the_importer_reads(whole, tmp_path):
    grown = tmp_path / "grown" / "whole"
    grown.mkdir(parents=True)
    (grown / "recipe.toml").write_bytes((whole / "recipe.toml").read_bytes())
    followed = FollowedRun(grown)
    left = {n: (whole / n).read_bytes() for n in ("evals.jsonl", "steps.jsonl", "events.jsonl")}
    rng = np.random.default_rng(0)
    while any(left.values()):
        for name in left:
            cut = int(rng.integers(0, 9000))  # in the middle of a line, most times
            with (grown / name).open("ab") as file:
                file.write(left[name][:cut])
            left[name] = left[name][cut:]
        followed.look()
    (found,) = load_runs([followed.table()])
    expected = load_run(whole)
    same(expected.replace(source=""), found.replace(source=""))
    assert followed.step == 100 and followed.ended.reason == "budget of 100 steps"
    assert followed.warnings == 1
    for axis in ("flops", "steps"):
        a, b = load_run(whole, x=axis), load_runs([followed.table()], x=axis)[0]
        same(a.replace(source=""), b.replace(source=""))


def test_a_look_reads_what_is_new_and_no_more(whole):
    followed = FollowedRun(whole)
    assert followed.look() and not followed.look()
    before = followed._steps.bytes_read + followed._evals.bytes_read
    line = (whole / "steps.jsonl").read_bytes().split(b"\n")[-2] + b"\n"
    with (whole / "steps.jsonl").open("ab") as file:
        file.write(line)
    assert followed.look()
    assert followed._steps.bytes_read + followed._evals.bytes_read - before < len(line) + 4096


def test_a_resumed_run_that_cut_its_record_is_read_from_the_start(whole):
    followed = FollowedRun(whole)
    followed.look()
    for name in ("evals.jsonl", "steps.jsonl"):
        kept = [x for x in (whole / name).read_bytes().split(b"\n") if x]
        kept = [x for x in kept if json.loads(x)["step"] <= 50]
        (whole / f"{name}.tmp").write_bytes(b"\n".join(kept) + b"\n")
        (whole / f"{name}.tmp").replace(whole / name)
    assert followed.look()
    assert followed.step == 50
    same(load_run(whole), load_runs([followed.table()])[0])


def test_a_long_record_takes_little_memory(whole, monkeypatch):
    """Looks are of bounded size, and of a step only a few numbers are kept."""
    monkeypatch.setattr("scalerl.runs.followed.MOST", 10_000)
    followed = FollowedRun(whole)
    followed.look()
    same(load_run(whole), load_runs([followed.table()])[0])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"a": NaN, "b": -Infinity, "c": 123456789012345678901}', {"b": float("-inf")}),
        (b'{"a": "half a pair: \\ud800"}', {"a": "half a pair: \ud800"}),
        (b'{"a": "half of \xc3"}', {"a": "half of \ufffd"}),
        (b'{"a": 1, "b": ', None),
        (b"[1, 2]", None),
        (b"[" * 100_000, None),
    ],
)
def test_lines_are_read_as_python_reads_them(line, found):
    read = parsed(line)
    assert (read is None) == (found is None)
    assert read is None or read == read | found


@pytest.mark.parametrize("sparse", [True, False])
def test_a_file_of_zeros_is_read_once_and_what_follows_is_read(whole, sparse):
    followed = FollowedRun(whole)
    followed.look()
    steps = whole / "steps.jsonl"
    line = json.loads(steps.read_bytes().split(b"\n")[0])
    before = followed._steps.bytes_read
    with steps.open("ab") as file:
        if sparse:
            file.truncate(file.tell() + 200_000_000)
        else:
            file.write(bytes(20_000_000))
    assert followed.look()
    cost = followed._steps.bytes_read - before
    assert cost < 6_000_000 if sparse else 20_000_000 <= cost < 21_000_000
    assert followed.problems == ["steps.jsonl: 1 line longer than 4 MB: skipped"]
    assert not followed.look() and followed._steps.bytes_read - before == cost
    with steps.open("ab") as file:
        file.write(b"\n" + json.dumps(line | {"step": 101}).encode() + b"\n")
    assert followed.look() and followed.step == 101
    assert followed._steps.bytes_read - before < cost + 10_000


def test_a_long_record_takes_several_looks(whole, monkeypatch):
    monkeypatch.setattr("scalerl.runs.followed.MOST", 10_000)
    monkeypatch.setattr("scalerl.runs.followed.MAX_LOOK", 20_000)
    followed, looks = FollowedRun(whole), 0
    while followed.look():
        looks += 1
        assert followed._steps.bytes_read < looks * 80_000
    assert looks > 3
    same(load_run(whole), load_runs([followed.table()])[0])


def test_the_first_look_has_the_status_and_the_recipe_too(whole):
    (whole / "status.json").write_text('{"step": 7}')
    (whole / "recipe.json").write_text('{"recipe": {"name": "mine"}}')
    followed = FollowedRun(whole)
    assert followed.look()
    assert followed.status.step == 7 and followed.recipe == {"name": "mine"}
