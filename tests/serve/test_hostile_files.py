"""A server over directories whose files block, lie, are too large or are gone."""

import json
import os
import signal
import socket
import time
import urllib.error
from concurrent.futures import Future
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from made_records import made_run
from serving import Page, get, process, wait_for

#: Files of a run that the server opens.
FILES = ["steps.jsonl", "events.jsonl", "status.json", "recipe.json", "lock", "recipe.toml",
         "evals.jsonl", "evals/step_40.json"]  # fmt: skip
#: Kilobytes: a server with a few runs takes 0.2 GB.
MOST_MEMORY = 900_000


def runs_of(address):
    return {run["name"]: run for run in json.loads(get(address, "/api/runs")[2])}


def ends_at_the_first_signal(running):
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 0 and "Traceback" not in err, err


def peak_memory(pid):
    """Kilobytes."""
    with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def ask(address, method, path, body=b""):
    """A request that is sent, on a connection that stays open."""
    made = socket.create_connection(("127.0.0.1", urlsplit(address).port))
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    made.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return made


@pytest.mark.parametrize("name", FILES)
def test_a_named_pipe_in_a_run_stops_nothing(tmp_path, name):
    bad = made_run(tmp_path / "bad", n=12, steps=40)
    made_run(tmp_path / "good", n=12, steps=40)
    (bad / name).unlink(missing_ok=True)
    os.mkfifo(bad / name)
    with process(tmp_path) as (address, running):
        found = wait_for(
            lambda: (r := runs_of(address)).get("good", {}).get("forecast") and "bad" in r and r
        )
        assert json.loads(get(address, "/healthz")[2]) == {"status": "ok"}
        bad_id = found["bad"]["id"]
        assert get(address, f"/api/runs/{bad_id}")[0] == 200
        assert get(address, f"/api/runs/{bad_id}/inside?step=40")[0] == 200
        if name not in ("lock", "recipe.toml", "evals/step_40.json"):
            problem = wait_for(lambda: runs_of(address)["bad"]["problem"])
            assert f"{name}: not a regular file" in problem
        assert found["bad"]["points"] == (0 if name == "evals.jsonl" else 12)
        ends_at_the_first_signal(running)


def test_other_things_than_files_are_not_opened(tmp_path):
    for kind, name in (("directory", "steps.jsonl"), ("socket", "status.json"),
                       ("device", "events.jsonl"), ("loop", "recipe.json")):  # fmt: skip
        path = made_run(tmp_path / "runs" / kind, n=12, steps=40) / name
        path.unlink(missing_ok=True)
        if kind == "directory":
            path.mkdir()
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        else:
            path.symlink_to("/dev/zero" if kind == "device" else name)
    page = Page(tmp_path / "runs")
    for kind, run in page.runs().items():
        # (A link to itself is as good as no file.)
        assert run["points"] == 12 and (kind == "loop" or run["problem"]), kind
        assert page.ask(f"/api/runs/{run['id']}/inside").status == 200


SLOW = """
import time
from pathlib import Path
import scalerl.files as files
real = files._opener
def opener(path, flags):
    while "stuck" in str(path) and Path({hangs!r}).exists():
        time.sleep(0.05)
    return real(path, flags)
files._opener = opener
"""


@contextmanager
def with_a_file_system_that_hangs(tmp_path):
    """A server for which every file of a run called `stuck` answers only while `hangs` is gone."""
    hangs = tmp_path / "hangs"
    hangs.touch()
    with process(tmp_path / "runs", before=SLOW.format(hangs=str(hangs))) as (address, running):
        yield address, running, hangs


def test_a_file_system_that_hangs_is_named_and_holds_up_nobody_else(tmp_path):
    for name in ("good", "stuck"):
        made_run(tmp_path / "runs" / name, n=12, steps=40)
    with with_a_file_system_that_hangs(tmp_path) as (address, _, hangs):
        wait_for(lambda: runs_of(address).get("good", {}).get("forecast"))
        health = wait_for(
            lambda: (h := json.loads(get(address, "/healthz")[2]))["status"] != "ok" and h
        )
        assert health["status"] == "degraded"
        assert [each["name"] for each in health["waits_for"]] == ["runs/stuck"]
        stuck = runs_of(address)["stuck"]
        assert "its files have not answered since" in stuck["problem"]
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(address, f"/api/runs/{stuck['id']}/inside")
        good = runs_of(address)["good"]["id"]
        assert get(address, f"/api/runs/{good}/inside")[0] == 200
        hangs.unlink()  # the file system is back
        wait_for(lambda: runs_of(address)["stuck"]["points"] == 12)
        wait_for(lambda: json.loads(get(address, "/healthz")[2]) == {"status": "ok"})


def test_a_server_that_waits_for_files_ends_at_the_first_signal(tmp_path):
    made_run(tmp_path / "runs" / "stuck", n=12, steps=40)
    with with_a_file_system_that_hangs(tmp_path) as (address, running, _):
        key = wait_for(lambda: runs_of(address))["stuck"]["id"]
        # A request that waits for the same files, and a stream that is open.
        with (
            ask(address, "GET", f"/api/runs/{key}/inside"),
            ask(address, "GET", "/api/events") as stream,
        ):
            assert stream.recv(100)
            ends_at_the_first_signal(running)


SLOW_ANSWER = """
import time
import scalerl.serve.app as app
app.answer = lambda *_: time.sleep(10**6)
"""


def test_a_server_at_work_on_a_slow_request_ends_at_the_first_signal(tmp_path):
    made_run(tmp_path / "run", n=12, steps=40)
    with process(tmp_path, before=SLOW_ANSWER) as (address, running):
        key = wait_for(lambda: (r := runs_of(address)).get("run", {}).get("points") and r)["run"]
        body = json.dumps({"run": key["id"]}).encode()
        with ask(address, "POST", "/api/fit", body), ask(address, "GET", "/api/events") as stream:
            assert stream.recv(100)
            ends_at_the_first_signal(running)


def test_a_search_that_hangs_is_named_and_known_runs_are_read_on(tmp_path):
    made_run(tmp_path / "runs" / "known", n=12, steps=40)
    slow = """
import time
from pathlib import Path
import scalerl.serve.discovery as find
real = find.is_run
def is_run(folder):
    while folder.name == "deep":
        time.sleep(0.05)
    return real(folder)
find.is_run = is_run
"""
    with process(tmp_path / "runs", before=slow) as (address, running):
        wait_for(lambda: runs_of(address).get("known", {}).get("forecast"))
        (tmp_path / "runs" / "deep").mkdir()
        health = wait_for(
            lambda: (h := json.loads(get(address, "/healthz")[2]))["status"] != "ok" and h
        )
        assert health["waits_for"][0]["name"] == "the search in runs/deep"
        with (tmp_path / "runs" / "known" / "events.jsonl").open("a") as file:
            file.write('{"step": 41, "event": "warning", "why": "more"}\n')
        wait_for(lambda: runs_of(address)["known"]["warnings"] == 2)
        ends_at_the_first_signal(running)


def test_health_is_stalled_where_nothing_is_read_and_names_no_run_without_the_token(tmp_path):
    made_run(tmp_path / "run", n=12, steps=40)
    page = Page(tmp_path, token="a-token-of-some-length_123")
    (source,) = page.catalogue._sources
    page.catalogue._readings._late[source] = time.time(), Future()
    assert page.ask("/healthz").json() == {"status": "degraded", "late": 1}
    page.catalogue._progress -= 3600
    answer = page.ask("/healthz")
    assert answer.status == 503 and answer.json() == {"status": "stalled", "late": 1}


@pytest.mark.parametrize("name", ["steps.jsonl", "events.jsonl", "status.json", "recipe.json",
                                  "evals.jsonl", "recipe.toml", "log.csv"])  # fmt: skip
def test_four_gigabytes_that_are_not_there_are_not_read(tmp_path, name):
    run = made_run(tmp_path / "runs" / "run", n=12, steps=40)
    log = tmp_path / "runs" / "log.csv"
    log.write_text("step,val_acc\n" + "".join(f"{i},0.{i}\n" for i in range(10, 30)))
    with process(tmp_path / "runs") as (address, running):
        wait_for(lambda: (r := runs_of(address)).get("run", {}).get("points") == 12
                 and r.get("log", {}).get("points") == 20)  # fmt: skip
        path = log if name == "log.csv" else run / name
        path.touch()
        first = (run / "steps.jsonl").read_bytes().split(b"\n")[0]
        os.truncate(path, 4_000_000_000)
        if name != "recipe.toml":  # which is read by the questions below
            problem = wait_for(
                lambda: next(
                    (r["problem"] for r in runs_of(address).values()
                     if r["where"].endswith("log.csv" if path == log else "run")), None
                )
            )  # fmt: skip
            assert "larger than" in problem or "longer than" in problem or "limit" in problem
        key = runs_of(address)["run"]["id"]
        for question in ("/inside", "?axis=flops"):
            assert get(address, f"/api/runs/{key}{question}")[0] == 200
        assert peak_memory(running.pid) < MOST_MEMORY
        if name == "steps.jsonl":  # the run goes on after the hole
            line = json.loads(first) | {"step": 41}
            with path.open("ab") as file:
                file.write(b"\n" + json.dumps(line).encode() + b"\n")
            wait_for(lambda: runs_of(address)["run"]["step"] == 41)
            assert peak_memory(running.pid) < MOST_MEMORY
        ends_at_the_first_signal(running)
