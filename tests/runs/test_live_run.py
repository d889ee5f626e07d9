"""A run read on from where one was is the run that the importer reads whole."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from scalerl import load_run, load_runs
from scalerl.runs.live_run import LiveRun
from scalerl.runs.tail import parse_line

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
    live = LiveRun(grown)
    left = {n: (whole / n).read_bytes() for n in ("evals.jsonl", "steps.jsonl", "events.jsonl")}
    rng = np.random.default_rng(0)
    while any(left.values()):
        for name in left:
            cut = int(rng.integers(0, 9000))  # in the middle of a line, most times
            with (grown / name).open("ab") as file:
                file.write(left[name][:cut])
            left[name] = left[name][cut:]
        live.refresh()
    (found,) = load_runs([live.table()])
    expected = load_run(whole)
    same(expected.replace(source=""), found.replace(source=""))
    assert live.step == 100 and live.ended.reason == "budget of 100 steps"
    assert live.warnings == 1
    for axis in ("flops", "steps"):
        a, b = load_run(whole, x=axis), load_runs([live.table()], x=axis)[0]
        same(a.replace(source=""), b.replace(source=""))


def test_a_refresh_reads_what_is_new_and_no_more(whole):
    live = LiveRun(whole)
    assert live.refresh() and not live.refresh()
    before = live._steps.bytes_read + live._evals.bytes_read
    line = (whole / "steps.jsonl").read_bytes().split(b"\n")[-2] + b"\n"
    with (whole / "steps.jsonl").open("ab") as file:
        file.write(line)
    assert live.refresh()
    assert live._steps.bytes_read + live._evals.bytes_read - before < len(line) + 4096


def test_a_resumed_run_that_cut_its_record_is_read_from_the_start(whole):
    live = LiveRun(whole)
    live.refresh()
    for name in ("evals.jsonl", "steps.jsonl"):
        kept = [x for x in (whole / name).read_bytes().split(b"\n") if x]
        kept = [x for x in kept if json.loads(x)["step"] <= 50]
        (whole / f"{name}.tmp").write_bytes(b"\n".join(kept) + b"\n")
        (whole / f"{name}.tmp").replace(whole / name)
    assert live.refresh()
    assert live.step == 50
    same(load_run(whole), load_runs([live.table()])[0])


def test_a_long_record_takes_little_memory(whole, monkeypatch):
    """Looks are of bounded size, and of a step only a few numbers are kept."""
    monkeypatch.setattr("scalerl.runs.live_run.BLOCK_BYTES", 10_000)
    live = LiveRun(whole)
    live.refresh()
    same(load_run(whole), load_runs([live.table()])[0])


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
    read = parse_line(line)
    assert (read is None) == (found is None)
    assert read is None or read == read | found


@pytest.mark.parametrize("sparse", [True, False])
def test_a_file_of_zeros_is_read_once_and_what_follows_is_read(whole, sparse):
    live = LiveRun(whole)
    live.refresh()
    steps = whole / "steps.jsonl"
    line = json.loads(steps.read_bytes().split(b"\n")[0])
    before = live._steps.bytes_read
    with steps.open("ab") as file:
        if sparse:
            file.truncate(file.tell() + 200_000_000)
        else:
            file.write(bytes(20_000_000))
    assert live.refresh()
    cost = live._steps.bytes_read - before
    assert cost < 6_000_000 if sparse else 20_000_000 <= cost < 21_000_000
    assert live.problems == ["steps.jsonl: 1 line longer than 4 MB: skipped"]
    assert not live.refresh() and live._steps.bytes_read - before == cost
    with steps.open("ab") as file:
        file.write(b"\n" + json.dumps(line | {"step": 101}).encode() + b"\n")
    assert live.refresh() and live.step == 101
    assert live._steps.bytes_read - before < cost + 10_000


def test_a_long_record_takes_several_refreshes(whole, monkeypatch):
    monkeypatch.setattr("scalerl.runs.live_run.BLOCK_BYTES", 10_000)
    monkeypatch.setattr("scalerl.runs.live_run.MAX_REFRESH_BYTES", 20_000)
    live, refreshes = LiveRun(whole), 0
    while live.refresh():
        refreshes += 1
        assert live._steps.bytes_read < refreshes * 80_000
    assert refreshes > 3
    same(load_run(whole), load_runs([live.table()])[0])


def test_the_first_refresh_has_the_status_and_the_recipe_too(whole):
    (whole / "status.json").write_text('{"step": 7}')
    (whole / "recipe.json").write_text('{"recipe": {"name": "mine"}}')
    live = LiveRun(whole)
    assert live.refresh()
    assert live.status.step == 7 and live.recipe == {"name": "mine"}
