"""Files are opened only where they are regular files, and read only up to a limit."""

import os
import resource
import socket
import threading
from pathlib import Path

import pytest

from scalerl import files
from scalerl.files import (
    MAX_LINE,
    LineReader,
    RefusedFile,
    confined,
    lines_backwards,
    lines_of,
    open_regular,
    read_limited,
    to_json,
    to_json_bytes,
    write_atomic,
)


@pytest.mark.parametrize("kind", ["pipe", "directory", "socket", "device", "link to a pipe"])
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "name"
    if kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / "pipe")
        path = tmp_path / "pipe"
        if kind != "pipe":
            path = tmp_path / "link"
            path.symlink_to("pipe")
    with pytest.raises(RefusedFile, match="not a regular file"):
        open_regular(path)
    with pytest.raises(RefusedFile, match="not a regular file"):
        open_regular(path, "a+")


def test_a_pipe_that_takes_the_name_after_the_first_look_is_refused_too(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    checks = []
    real = files._check_regular
    monkeypatch.setattr(
        files, "_check_regular", lambda *a: real(*a) if checks else checks.append(a)
    )
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(RefusedFile, match="not a regular file"):
        open_regular(tmp_path / "pipe")
    assert len(checks) == 1 and len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_link_that_leads_out_is_refused_by_where_the_open_file_lies(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.write_text("secret")
    (inside / "real").write_text("mine")
    (inside / "link").symlink_to(inside / "real")
    (inside / "out").symlink_to(outside)
    with confined([inside]):
        assert read_limited(inside / "link") == b"mine"
        with pytest.raises(RefusedFile, match="leads out"):
            read_limited(inside / "out")
    assert read_limited(inside / "out") == b"secret"


def test_a_file_over_the_limit_is_not_read(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"x" * 100)
    assert read_limited(path, 100) == b"x" * 100
    with pytest.raises(RefusedFile, match="larger than"):
        read_limited(path, 99)
    # A file of the kernel has no size until it is read.
    with pytest.raises(RefusedFile, match="larger than"):
        read_limited("/proc/self/maps", 99)


def lines(path, most=None):
    reader, found = LineReader(), []
    with open_regular(path, buffering=0) as file:
        while True:
            at = reader.at
            found += reader.read(file, most)
            if reader.at == at:
                return found, reader


@pytest.mark.parametrize("most", [None, 1, 7, 1000])
@pytest.mark.parametrize(
    "text", [b"", b"a", b"a\n", b"\n\n", b"one\ntwo\nthr", b"x" * 3000 + b"\n"]
)
def test_lines_are_those_of_the_file_however_they_are_read(tmp_path, text, most):
    (tmp_path / "log").write_bytes(text)
    found, reader = lines(tmp_path / "log", most)
    assert found == text.split(b"\n")[:-1] and reader.at == text.rfind(b"\n") + 1
    assert reader.mark == text[: reader.at][-files.MARK :]
    assert [x for x in lines_of(tmp_path / "log") if x] == [x for x in text.split(b"\n") if x]


@pytest.mark.parametrize("most", [None, 5000])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_line_over_the_limit_is_skipped_and_the_next_is_read(tmp_path, monkeypatch, most, sparse):
    monkeypatch.setattr(files, "MAX_LINE", 20_000)
    monkeypatch.setattr(files, "BLOCK", 4096)
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(b"first\n")
        if sparse:
            file.seek(3_000_000)
        else:
            file.write(bytes(3_000_000))
        file.write(b"\nlast\n" + b"y" * 30_000 + b"\nend")
    found, reader = lines(path, most)
    assert found == [b"first", b"last"] and reader.skipped == 2
    assert (reader.bytes_read < 200_000) == sparse
    assert list(lines_of(path)) == [b"first", b"last", b"end"]
    with open_regular(path, buffering=0) as file:
        assert [x for x in lines_backwards(file, 4096, 10**9) if x] == [b"end", b"last", b"first"]


def test_a_line_before_the_limit_of_bytes_is_not_looked_for(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"0" * 50_000 + b"\nlast\n")
    with open_regular(path, buffering=0) as file:
        assert list(lines_backwards(file, 4096, 10_000)) == [b"", b"last"]


def test_four_gigabytes_of_hole_cost_neither_time_nor_memory(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"first\n")
    os.truncate(path, 4_000_000_000)
    with path.open("ab") as file:
        file.write(b"\nlast\n")
    before = resource.getrusage(resource.RUSAGE_SELF)
    found, reader = lines(path)
    with open_regular(path, buffering=0) as file:
        backwards = [x for x in lines_backwards(file, 1 << 16, 10**12) if x]
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert found == [b"first", b"last"] and backwards == [b"last", b"first"]
    assert reader.bytes_read < 4 * MAX_LINE
    assert after.ru_utime - before.ru_utime < 1.0


@pytest.mark.parametrize("durable", [True, False])
def test_an_atomic_write_that_fails_keeps_the_old_file_and_leaves_nothing_else(tmp_path, durable):
    path = tmp_path / "status.json"
    write_atomic(path, "old", durable=durable)
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half of a surrogate pair \ud800", durable=durable)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]


def test_an_atomic_write_obeys_the_umask_and_the_mode(tmp_path):
    before = os.umask(0o027)
    try:
        shared = write_atomic(tmp_path / "shared", b"x")
        private = write_atomic(tmp_path / "private", b"x", mode=0o600)
    finally:
        os.umask(before)
    assert shared.stat().st_mode & 0o777 == 0o640
    assert private.stat().st_mode & 0o777 == 0o600


def test_readers_of_a_file_that_is_written_again_and_again_see_whole_contents(tmp_path):
    path = tmp_path / "status.json"
    contents = {letter * 200_000 for letter in "abcd"}
    write_atomic(path, "a" * 200_000, durable=False)

    def write(letter):
        for _ in range(50):
            write_atomic(path, letter * 200_000, durable=False)

    writers = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_text() in contents
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]


def test_json_has_no_numbers_that_json_lacks():
    assert to_json({"a": (float("nan"), [float("-inf"), 1.5])}) == '{"a": [null, [null, 1.5]]}'
    assert to_json_bytes("\ud800 é") == b'"\\ud800 \xc3\xa9"'
