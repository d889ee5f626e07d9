"""The page's app in this process, without a port; and as a process with one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

from scalerl.serve.app import make_app
from scalerl.serve.catalogue import Catalogue
from scalerl.serve.discovery import Roots

SRC = Path(__file__).parents[2] / "src"


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.body)


class Page:
    """Refreshed by hand: `refresh()` does what the refreshing thread does."""

    def __init__(self, *directories, host="127.0.0.1", token=None, origin=None, cors=()):
        self.catalogue = Catalogue(Roots(directories))
        self.app, self.site = make_app(self.catalogue, host, token, origin, cors)
        self.events = []
        self.catalogue.publish = self.events.append
        self.refresh()

    def refresh(self):
        self.catalogue._searched = float("-inf")
        self.catalogue._count = 0
        for _ in range(5):  # runs that have ended are read every fifth time
            self.catalogue.refresh()
        for entry in self.catalogue.entries.values():
            entry.fitted_at = 0.0
        self.catalogue.fit_some(60.0)

    def ask(self, path, body=None, method=None, headers=None, raw=None):
        return asyncio.run(self.asked(path, body, method, headers, raw))

    async def asked(self, path, body=None, method=None, headers=None, raw=None):
        """One request by the protocol between server and app."""
        data = b"" if body is None else json.dumps(body).encode()
        data = raw if raw is not None else data
        given = {"host": "127.0.0.1:8000"}
        if data:
            given["content-type"] = "application/json"
        given |= headers or {}
        parts = urlsplit(path) if path.startswith("/") and not path.startswith("//") else None
        plain, query = (parts.path, parts.query) if parts else (path, "")
        scope = {
            "type": "http", "http_version": "1.1", "asgi": {"version": "3.0"}, "scheme": "http",
            "method": method or ("POST" if data else "GET"),
            "path": _unquoted(plain), "raw_path": plain.encode("latin-1", "replace"),
            "query_string": query.encode("latin-1", "replace"), "root_path": "",
            "headers": [(k.lower().encode("latin-1"), v.encode("latin-1"))
                        for k, v in given.items() if v is not None],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
        }  # fmt: skip
        sent = []
        waiting = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive():
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await self.app(scope, receive, send)
        start = sent[0]
        headers = {k.decode(): v.decode("latin-1") for k, v in start["headers"]}
        return Answer(start["status"], headers, b"".join(m.get("body", b"") for m in sent[1:]))

    def runs(self):
        return {run["name"]: run for run in self.ask("/api/runs").json()}


def _unquoted(path):
    from urllib.parse import unquote

    return unquote(path)


@contextmanager
def process(*arguments, before=""):
    """`scalerl serve … --port 0`, after the Python code `before`; gives its address."""
    env = os.environ | {"PYTHONPATH": str(SRC)}
    code = f"{before}\nimport sys\nfrom scalerl.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", *map(str, arguments)]
    if "--port" not in arguments:
        command += ["--port", "0"]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        address = running.stdout.readline().strip()
        assert address.startswith("http://"), running.communicate(timeout=600)
        yield address, running
    finally:
        running.terminate()
        try:
            running.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()


def get(address, path="/", timeout=600, **headers):
    with urllib.request.urlopen(
        urllib.request.Request(address.rstrip("/") + path, headers=headers), timeout=timeout
    ) as answer:
        return answer.status, dict(answer.headers), answer.read()


def wait_for(what, seconds=180):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come")


__all__ = ["Page", "get", "process", "quote", "wait_for"]
