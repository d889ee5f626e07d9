"""Workers come from one process that has imported what they need."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalerl.placement import forkserver

pytestmark = pytest.mark.skipif(not forkserver.FORKS, reason="the fork server is for Linux")

MAIN = """
import os, sys, time
from scalerl.placement import forkserver

def worker(conn, out):
    from scalerl.placement.child import guarded
    def serve(conn):
        with open(out, "a") as f:
            print(os.getpid(), os.getppid(), os.environ.get("MOOD"), "torch" in sys.modules,
                  "transformers" in sys.modules, file=f, flush=True)
        while True:
            time.sleep(0.01)
    guarded(conn, serve)

if __name__ == "__main__":
    forkserver.prepare()
    os.environ["MOOD"] = "after the server began"
    context = forkserver.context()
    for _ in range(3):
        ours, theirs = context.Pipe()
        with forkserver.signals_blocked():
            arguments = (dict(os.environ), worker, theirs, sys.argv[1])
            context.Process(target=forkserver.child_main, args=arguments, daemon=True).start()
    time.sleep(60)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait(condition, seconds=300.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def started(tmp_path):
    """A main process with three parts: itself, and (pid, parent, rest of its line) of each."""
    (tmp_path / "main.py").write_text(MAIN)
    out = tmp_path / "out"
    main = subprocess.Popen([sys.executable, tmp_path / "main.py", out], start_new_session=True)
    wait(lambda: out.exists() and out.read_text().count("\n") == 3)
    parts = [(int(a), int(b), rest) for a, b, rest in
             (line.split(" ", 2) for line in out.read_text().splitlines())]  # fmt: skip
    yield main, parts
    main.kill()
    main.wait()


def test_parts_have_torch_and_the_environment_of_now_and_share_a_parent(started):
    _, parts = started
    assert {rest for *_, rest in parts} == {"after the server began True False"}
    assert len({parent for _, parent, _ in parts}) == 1


def test_workers_and_fork_server_end_with_the_main_process_however_it_ends(started):
    main, parts = started
    main.kill()
    main.wait()
    wait(lambda: not any(alive(pid) for one in parts for pid in one[:2]))


def test_a_group_that_is_told_to_end_is_the_main_processs_affair(started):
    """As clusters and closed terminals do it: nobody but the main process minds."""
    main, parts = started
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        for one in parts:
            for pid in one[:2]:
                os.kill(pid, number)
    time.sleep(0.5)
    assert main.poll() is None
    assert all(alive(pid) for one in parts for pid in one[:2])


def test_workers_end_with_a_fork_server_that_is_killed(started):
    main, parts = started
    os.kill(parts[0][1], signal.SIGKILL)
    wait(lambda: not any(alive(pid) for pid, *_ in parts))
    assert main.poll() is None


def test_where_its_socket_has_no_place_parts_are_new_processes(tmp_path):
    """A Unix socket's name has room for some hundred characters only."""
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    code = (
        "from scalerl.placement import forkserver; print(forkserver.context().get_start_method())"
    )
    found = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(deep)},
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert found.stdout.strip() == "spawn"
