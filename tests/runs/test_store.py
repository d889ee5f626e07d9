"""The record on disk: kills, full disks and garbage cost at most the line that was being written;
who reads along reads every byte once."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_lines import answer, episode_line, eval_line, step_line

from scalerl.errors import InputError
from scalerl.files import MAX_LINE
from scalerl.runs.lines import EpisodeLine, EvalAnswers, EvalLine, EventLine, Status, StepLine
from scalerl.runs.reader import BLOCK
from scalerl.runs.store import RunStore, encode

#: Mounts of our own, which end with the process that made them.
OWN_MOUNTS = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-r", "-m"]
CUT_SHORT = b'{"step": 2, "eve\xff'


def warning(step, why="x"):
    return EventLine(step, "warning", why)


def spoil(path, content=CUT_SHORT):
    with path.open("ab") as file:
        file.write(content)


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "run")


@pytest.fixture
def steps(store):
    """A store with steps 1 to 5."""
    for step in range(1, 6):
        store.append(step_line(step))
    return store


# -- writing --------------------------------------------------------------------------------------


def test_lines_go_to_the_file_of_their_type_and_come_back(store):
    for line in (step_line(1), eval_line(1), warning(1), step_line(2)):
        store.append(line)
    assert store.read(StepLine) == [step_line(1), step_line(2)]
    assert store.read(EvalLine) == [eval_line(1)]
    assert store.read(EventLine) == [warning(1)]
    assert len((store.path / "steps.jsonl").read_text().splitlines()) == 2


def test_a_run_is_not_written_over(steps):
    with pytest.raises(InputError, match="holds a run already: choose another --out, or --resume"):
        RunStore(steps.path)
    assert len(RunStore(steps.path, resume=True).read(StepLine)) == 5


def test_where_there_is_no_run_none_is_opened(tmp_path):
    with pytest.raises(InputError, match="holds no run: give the directory that --out named"):
        RunStore(tmp_path / "missing", resume=True)
    assert not (tmp_path / "missing").exists()


def test_numbers_that_are_not_finite_are_null_on_disk(store):
    store.append(StepLine.from_dict({"step": 1, "lr": float("inf")}))
    found = json.loads((store.path / "steps.jsonl").read_text())
    assert found["lr"] is None and found["loss"] is None


def test_a_line_is_on_the_disk_when_append_returns(store, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_size))
    store.append(step_line(1))
    assert flushed == [(store.path / "steps.jsonl").stat().st_size]


def test_a_record_on_a_full_device_says_what_to_do(store):
    (store.path / "steps.jsonl").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"No space left on device.*--resume") as error:
        store.append(step_line(1))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("where", ["disk/run", "disk"])
def test_a_read_only_directory_is_one_line(tmp_path, where):
    (tmp_path / "disk").mkdir()
    code = (
        "from pathlib import Path; from scalerl.runs.store import RunStore; "
        "from scalerl.runs.lock import RunLock; from scalerl.errors import InputError\n"
        f"out = Path({str(tmp_path / where)!r})\n"
        "try: RunStore(out), RunLock(out)\n"
        "except InputError as error: print(error)"
    )
    mount = f'mount -t tmpfs -o ro tmpfs {tmp_path}/disk && exec {sys.executable} -c "$CODE"'
    done = subprocess.run(
        [*OWN_MOUNTS, "sh", "-c", mount],
        capture_output=True, text=True, timeout=600, env=os.environ | {"CODE": code}, check=False,
    )  # fmt: skip
    assert done.stdout.count("\n") == 1, done.stderr
    assert "Read-only file system: choose another" in done.stdout


def test_a_line_that_was_cut_short_does_not_spoil_the_next_one(store):
    store.append(warning(1))
    spoil(store.path / "events.jsonl")
    store.append(warning(3))
    assert [e.step for e in store.read(EventLine)] == [1, 3]


def test_the_status_is_replaced_and_dated(store):
    assert store.read_status() is None
    for step in (1, 2):
        store.status(Status(step, "the trainer", checking=3))
    found = store.read_status()
    assert (found.step, found.checking) == (2, 3) and found.time > 1e9
    (store.path / "status.json").write_bytes(b'{"step": 3, "wai\xff')
    assert store.read_status() is None


def test_the_recipe_is_replaced_whole(store):
    store.write_recipe('name = "a much longer first recipe"\n')
    store.write_recipe('name = "é"\n')
    assert (store.path / "recipe.toml").read_text(encoding="utf-8") == 'name = "é"\n'
    assert [p.name for p in store.path.iterdir()] == ["recipe.toml"]


# -- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"", CUT_SHORT, b"\n\n", b"[]\n7\nnull\n", b"\xff\xfe\x00\n",
                                     b'{"step": "x"}\n', b"[" * 100_000 + b"\n"])  # fmt: skip
def test_readers_leave_out_what_is_no_line(steps, garbage):
    spoil(steps.path / "steps.jsonl", garbage)
    assert [line.step for line in steps.read(StepLine)] == [1, 2, 3, 4, 5]
    assert steps.last(StepLine) == step_line(5)
    assert [line.step for line in steps.tail(StepLine, 2)] == [4, 5]


def test_a_file_that_is_not_there_has_no_lines(store):
    assert store.read(StepLine) == [] and store.tail(EvalLine, 3) == []
    assert store.last(EventLine) is None and store.follow(StepLine).new() == []


def test_a_file_shorter_than_the_tail_gives_what_it_has(steps):
    assert [line.step for line in steps.tail(StepLine, 100)] == [1, 2, 3, 4, 5]


def test_the_last_line_is_found_across_blocks(store):
    """Lines longer than what is read at a time."""
    for step in (1, 2):
        store.append(warning(step, "x" * (2 * BLOCK)))
    spoil(store.path / "events.jsonl", b"y" * (BLOCK + 7))
    assert [e.step for e in store.tail(EventLine, 2)] == [1, 2]
    assert len(store.last(EventLine).why) == 2 * BLOCK


class Counted(io.FileIO):
    """A file that counts what is read of it."""

    total = 0

    def read(self, size=-1):
        found = super().read(size)
        Counted.total += len(found)
        return found


def counted(path, buffering):
    return Counted(path)


def test_the_last_line_costs_the_end_of_the_file_only(long, monkeypatch):
    monkeypatch.setattr("scalerl.runs.reader.open_regular", counted)
    monkeypatch.setattr(Counted, "total", 0)
    assert long.last(EventLine).step >= 100_000
    assert 0 < Counted.total <= BLOCK < (long.path / "events.jsonl").stat().st_size / 10


# -- resuming -------------------------------------------------------------------------------------


def test_what_a_resumed_run_will_write_again_is_cut(steps):
    path = steps.path / "steps.jsonl"
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:3])
    spoil(path)
    steps.cut_after(StepLine, 3)
    assert path.read_bytes() == kept
    steps.append(step_line(4))
    assert [line.step for line in steps.read(StepLine)] == [1, 2, 3, 4]


def test_lines_that_are_kept_keep_what_a_later_version_wrote(store):
    path = store.path / "steps.jsonl"
    path.write_text('{"step": 1, "mood": "fine"}\n{"step": 2}\n')
    store.cut_after(StepLine, 1)
    assert path.read_text() == '{"step": 1, "mood": "fine"}\n'


def test_a_cut_to_before_the_start_leaves_nothing(steps):
    steps.cut_after(StepLine, -1)
    assert steps.read(StepLine) == []
    steps.cut_after(EvalLine, -1)
    assert not (steps.path / "evals.jsonl").exists()


def test_a_kill_while_cutting_leaves_the_old_file(steps, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        steps.cut_after(StepLine, 2)
    assert len(steps.read(StepLine)) == 5


# -- answers --------------------------------------------------------------------------------------


def test_each_validation_leaves_its_answers(store):
    for step in (0, 10):
        store.save_answers(
            EvalAnswers.from_answers(step, [answer("a"), answer("b", False, where="aime")])
        )
    assert store.answered() == [0, 10]
    assert store.read_answers(10) == EvalAnswers.from_answers(
        10, [answer("a"), answer("b", False, where="aime")]
    )
    text = (store.path / "evals" / "step_10.json").read_text()
    assert '"sets":{"":{"a":[1,1,1]},"aime":{"b":[0,1,1]}}' in text
    assert store.read_answers(5) is None


def test_answers_beyond_a_cut_are_removed(store):
    for step in (0, 10, 20):
        store.append(eval_line(step))
        store.save_answers(EvalAnswers.from_answers(step, [answer()]))
    store.cut_after(EvalLine, 10)
    assert [line.step for line in store.read(EvalLine)] == [0, 10]
    assert store.answered() == [0, 10]


def test_answers_to_other_names_and_garbage_are_left_alone(store):
    store.save_answers(EvalAnswers.from_answers(10, [answer()]))
    (store.path / "evals" / "step_x.json").write_text("{}")
    (store.path / "evals" / "step_20.json").write_bytes(b'{"step": 20, "se\xff')
    assert store.answered() == [10, 20] and store.read_answers(20) is None


def test_answers_are_no_curve(store):
    """Whoever loads the directory finds the run, and nothing else."""
    from scalerl.runs import load_runs

    for step in (1, 2, 3):
        store.append(eval_line(step))
        store.save_answers(EvalAnswers.from_answers(step, [answer()]))
    assert len(load_runs(store.path.parent)) == 1


# -- following ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A hundred thousand lines."""
    store = RunStore(tmp_path_factory.mktemp("long"))
    with (store.path / "events.jsonl").open("w") as file:
        for step in range(1, 100_001):
            file.write(json.dumps(warning(step).to_dict()) + "\n")
    return store


def test_following_a_long_file_reads_only_what_is_new(long, monkeypatch):
    monkeypatch.setattr("scalerl.runs.tail.open_regular", counted)
    monkeypatch.setattr(Counted, "total", 0)
    path = long.path / "events.jsonl"
    follower = long.follow(EventLine)
    assert len(follower.new()) == 100_000
    assert follower.bytes_read == Counted.total == path.stat().st_size
    for step in (100_001, 100_002):
        line = json.dumps(warning(step).to_dict()).encode() + b"\n"
        with path.open("ab") as file:
            file.write(line)
        before = Counted.total
        assert [e.step for e in follower.new()] == [step]
        assert Counted.total - before == len(line) + 256
    before = Counted.total
    assert follower.new() == [] and Counted.total - before == 256
    assert follower.bytes_read == Counted.total


def test_a_follower_gives_each_line_once(steps):
    follower = steps.follow(StepLine)
    assert [line.step for line in follower.new()] == [1, 2, 3, 4, 5]
    assert follower.new() == [] and not follower.restarted
    steps.append(step_line(6))
    assert [line.step for line in follower.new()] == [6]


def test_a_half_written_line_is_given_when_it_is_whole(store):
    follower = store.follow(StepLine)
    text = json.dumps(step_line(1).to_dict()).encode() + b"\n"
    given = []
    for i in range(len(text)):
        spoil(store.path / "steps.jsonl", text[i : i + 1])
        given.append(follower.new())
    assert given == [[]] * (len(text) - 1) + [[step_line(1)]]


def test_a_line_that_was_cut_short_for_good_is_passed_over(steps):
    follower = steps.follow(StepLine)
    follower.new()
    spoil(steps.path / "steps.jsonl")
    assert follower.new() == []
    steps.append(step_line(6))
    assert [line.step for line in follower.new()] == [6] and not follower.restarted


@pytest.mark.parametrize("grown", [0, 1, 10])
def test_a_resumed_run_is_followed_from_its_start(steps, grown):
    """Cut at 3, and since then shorter than, as long as, or longer than what was read."""
    follower = steps.follow(StepLine)
    follower.new()
    steps.cut_after(StepLine, 3)
    for step in range(4, 4 + grown):
        steps.append(step_line(step))
    assert [line.step for line in follower.new()] == list(range(1, 4 + grown))
    assert follower.restarted
    steps.append(step_line(4 + grown))
    assert [line.step for line in follower.new()] == [4 + grown] and not follower.restarted


def test_a_file_rewritten_in_place_is_noticed(store):
    """As a copying tool does it: the same file, as long as before, and other numbers."""
    path = store.path / "events.jsonl"
    for i in range(3):
        store.append(warning(1, f"loss {i}"))
    follower = store.follow(EventLine)
    follower.new()
    text = path.read_text()
    with path.open("r+") as file:
        file.write(text.replace("loss 2", "lost 2"))
    store.append(warning(2))
    assert [e.why for e in follower.new()] == ["loss 0", "loss 1", "lost 2", "x"]
    assert follower.restarted


def test_a_file_that_was_emptied_is_noticed(steps):
    follower = steps.follow(StepLine)
    follower.new()
    steps.cut_after(StepLine, -1)
    assert follower.new() == [] and follower.restarted
    assert follower.new() == [] and not follower.restarted
    steps.append(step_line(1))
    assert [line.step for line in follower.new()] == [1] and not follower.restarted


def test_a_file_that_comes_later_is_followed(store):
    follower = store.follow(EvalLine)
    assert follower.new() == []
    store.append(eval_line(0))
    assert follower.new() == [eval_line(0)] and not follower.restarted


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_lines import step_line
from scalerl.runs.store import RunStore
store = RunStore({out!r}, resume=True)
step = 0
while True:
    step += 1
    store.append(step_line(step))
"""


def test_a_kill_at_any_moment_costs_no_line_that_was_read(store):
    """A writer is killed, its record goes on, and who followed it missed and repeated nothing."""
    follower, seen = store.follow(StepLine), []
    code = WRITER.format(folder=str(Path(__file__).parent), out=str(store.path))
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", code])
        try:
            target = len(seen) + 20
            while len(seen) < target:
                seen += follower.new()
                assert process.poll() is None
        finally:
            process.kill()
            process.wait()
    seen += follower.new()
    assert seen == store.read(StepLine)
    assert not follower.restarted


# -- sampled episodes -----------------------------------------------------------------------------


def add_episodes(store, lines, most):
    store.append_episodes([encode(line) for line in lines], most)


def test_episodes_are_appended_up_to_their_bytes_and_one_in_any_case(store):
    path = store.path / EpisodeLine.FILE
    add_episodes(store, [episode_line(1), episode_line(1)], most=10)
    assert store.read(EpisodeLine) == [episode_line(1)]
    size = path.stat().st_size
    add_episodes(store, [episode_line(2)] * 3, most=3 * size)
    assert [line.step for line in store.read(EpisodeLine)] == [1, 2, 2]
    assert path.stat().st_size <= 3 * size
    add_episodes(store, [episode_line(3)], most=3 * size)
    assert [line.step for line in store.read(EpisodeLine)] == [1, 2, 2]


def test_an_episode_that_readers_would_pass_over_is_left_out(store):
    long = episode_line(1, text="x" * MAX_LINE)
    add_episodes(store, [long, episode_line(2)], most=10 * MAX_LINE)
    assert [line.step for line in store.read(EpisodeLine)] == [2]


def test_episodes_are_read_and_appended_after_a_kill_in_the_middle_of_a_line(store):
    add_episodes(store, [episode_line(1)], most=10**6)
    spoil(store.path / EpisodeLine.FILE)
    assert store.read(EpisodeLine) == [episode_line(1)]
    add_episodes(store, [episode_line(2)], most=10**6)
    assert store.read(EpisodeLine) == [episode_line(1), episode_line(2)]
    store.cut_after(EpisodeLine, 1)
    assert store.read(EpisodeLine) == [episode_line(1)]
