"""The server as a process: its address, its stream, its end."""

import json
import signal
import subprocess
import urllib.error
import urllib.request

import pytest
from made_records import made_run
from serving import get, process, wait_for

TOKEN = "another-token-of-some-length"


def test_port_0_prints_the_address_first_and_the_stream_tells_what_grows(tmp_path):
    whole = made_run(tmp_path / "whole", n=21, steps=60)
    lines = (whole / "evals.jsonl").read_text().splitlines(keepends=True)
    runs = tmp_path / "runs"
    run = runs / "grows"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_bytes((whole / "recipe.toml").read_bytes())
    (run / "evals.jsonl").write_text("".join(lines[:8]))
    with process(runs) as (address, running):
        assert json.loads(get(address, "/healthz")[2]) == {"status": "ok"}
        found = wait_for(
            lambda: [r for r in json.loads(get(address, "/api/runs")[2]) if r["points"]]
        )
        assert found[0]["name"] == "grows" and found[0]["points"] == 8
        status, headers, page = get(address)
        assert status == 200 and b"scalerl" in page and "server" not in map(str.lower, headers)
        stream = urllib.request.urlopen(address + "api/events", timeout=600)
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.readline().startswith(b"retry") and stream.readline() == b"event: all\n"
        everything = json.loads(stream.readline().removeprefix(b"data:"))
        assert [run["id"] for run in everything] == [run["id"] for run in found]
        with (run / "evals.jsonl").open("a") as file:
            file.write(lines[8])
        for line in stream:
            if line.startswith(b"data:") and b'"from"' in line:
                news = json.loads(line[5:])
                break
        assert news["from"] == 8 and news["run"]["points"] == 9 and len(news["new"][0]) == 1
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=600)
        assert running.returncode == 0 and not out and "Traceback" not in err


def test_the_token_is_in_no_line_that_is_printed(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "runs").mkdir()
    with process(tmp_path / "runs", "--token-file", tmp_path / "token") as (address, running):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(address, "/api/runs", Cookie="scalerl_token=wrong")
        assert get(address, "/api/runs", Cookie=f"scalerl_token={TOKEN}")[0] == 200
        running.terminate()
        out, err = running.communicate(timeout=600)
        assert TOKEN not in out + err
        assert isinstance(running, subprocess.Popen)
