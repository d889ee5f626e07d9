"""The page with its runs as files: a directory that works from disk and from any static host.

    DIR/index.html, page.js, *.css     the page, its modules joined into one script
    DIR/data/*.js                      what the server would answer, a file for each view

Pages from disk may not load modules or fetch files, but they may load scripts: so every answer is a
script that calls `scalerlAnswer(key, value)`. The answers are those of the server's own routes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from scalerl.errors import InputError
from scalerl.files import to_json_bytes
from scalerl.report.files import write_whole
from scalerl.serve.app import make_app, static_files
from scalerl.serve.catalogue import Catalogue
from scalerl.serve.discovery import Roots
from scalerl.serve.page_script import joined
from scalerl.serve.queries import MAX_RUNS

#: Runs of a copy, the first by name: about 100 kB each without episodes.
MAX_COPIED_RUNS = 200
#: Episodes of a run, the newest.
MAX_EPISODES = 1000
#: Bytes of the episodes of a run.
MAX_EPISODE_BYTES = 20_000_000
#: Bytes of a whole copy, beyond which no further episodes are written.
MAX_BYTES = 200_000_000
#: Validations whose answers are written, the latest.
MAX_ANSWERED = 5
#: Episodes of one file: a reader loads the file of the one that is opened.
EPISODES_IN_FILE = 25
#: Seconds to wait until all runs are read and fitted.
READY_SECONDS = 600.0
#: Step metrics in one request.
METRICS_IN_REQUEST = 20
#: Origins of scripts: those beside the page, also on disk. Nothing inside the page runs.
POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file: 'unsafe-inline'; "
    "img-src 'self' file: data: blob:; base-uri 'none'; form-action 'none'"
)


class PageCopy:
    """Asks the app for everything that the page shows, and writes it."""

    def __init__(self, directories: Sequence[str | Path], out: Path) -> None:
        self.out = out
        self.roots = Roots(directories)
        self.catalogue = Catalogue(self.roots)
        self._app, _ = make_app(self.catalogue)
        self.files: dict[str, str] = {}
        self.left_out = [
            "Fits of other windows, budgets and axes, and comparisons of other runs, need the "
            "server: scalerl serve."
        ]
        self.size = 0
        self._loop = asyncio.new_event_loop()

    def write(self, progress: Callable[[float], None] = lambda share: None) -> list[Path]:
        """Write the copy; returns its page first, then the page's own files."""
        self._wait_until_ready()
        runs = self._ask("/api/runs") or []
        if not runs:
            raise InputError(f"nothing to copy: no runs in {', '.join(self.roots.names)}")
        runs.sort(key=lambda run: run["where"])
        if len(runs) > MAX_COPIED_RUNS:
            self.left_out.append(f"{len(runs) - MAX_COPIED_RUNS} of {len(runs)} runs are left out.")
            runs = runs[:MAX_COPIED_RUNS]
        self._whole(runs)
        for i, run in enumerate(runs):
            progress(i / len(runs))
            self._one_run(run)
        for study in self._ask("/api/studies") or []:
            self._get(f"/api/studies/{study['id']}", f"/api/v1/studies/{study['id']}")
        # Last, because readers of the other files begin here.
        return [*self._static(), self._manifest()]

    # -- the answers ------------------------------------------------------------------------------

    def _whole(self, runs: list[dict[str, Any]]) -> None:
        self._store("runs", {"/api/runs": runs})
        self._get("/api/about", "/api/v1/about", "/api/studies", "/api/v1/studies")
        self._get("/api/v1/runs", "/api/v1/metrics")
        # Routes that a page of another version has.
        self._get("/api/recipes", "/api/steps/metrics", "/api/views")
        ids = [run["id"] for run in runs if run["points"]]
        if 1 < len(ids) <= MAX_RUNS:
            for name, more in (("", {}), (" pooled", {"pool": True})):
                found = self._ask("/api/compare", {"runs": ids, **more})
                if found is not None:
                    key = f"compare {','.join(sorted(ids))}{name}"
                    self._store(key, {key: found})

    def _one_run(self, run: dict[str, Any]) -> None:
        key = run["id"]
        self._get(f"/api/runs/{key}", f"/api/v1/runs/{key}", f"/api/v1/runs/{key}/forecast")
        fitted = self._ask("/api/fit", {"run": key})
        if fitted is not None:
            self._store(f"fit {key}", {f"fit {key}": fitted})
        inside = f"/api/runs/{key}/inside"
        self._get(inside)
        for step in (self._ask(inside) or {}).get("answered", [])[-MAX_ANSWERED:]:
            self._get(f"{inside}?step={step}")
        if run["kind"] == "run":
            parts = ("recipe", "steps", "evals", "events", "system")
            self._get(*(f"/api/v1/runs/{key}/{part}" for part in parts))
            health = f"/api/v1/runs/{key}/health"
            # At a price of 1: the page multiplies.
            if (found := self._ask(f"{health}?price=1")) is not None:
                self._store(health, {health: found})
            self._step_metrics(key)
            self._episodes(run)

    def _step_metrics(self, key: str) -> None:
        """Step metrics in stretches, where the server has that route: all metrics of the run."""
        names = [each["name"] for each in self._ask("/api/steps/metrics") or []]
        whole: dict[str, Any] = {}
        for i in range(0, len(names), METRICS_IN_REQUEST):
            asked = [("run", key), *(("metric", n) for n in names[i : i + METRICS_IN_REQUEST])]
            found = (self._ask(f"/api/steps?{urlencode(asked)}") or {}).get("runs") or [{}]
            metrics = {**whole.get("metrics", {}), **found[0].get("metrics", {})}
            whole = {**found[0], "metrics": metrics}
        if whole:
            self._store(f"step metrics {key}", {f"/api/steps?run={key}": whole})

    def _episodes(self, run: dict[str, Any]) -> None:
        base = f"/api/v1/runs/{run['id']}/episodes"
        facts: list[dict[str, Any]] = []
        group: dict[str, Any] = {}
        total, size = 0, 0
        for page in self._pages_of_episodes(base):
            total = page["total"]
            for each in page["episodes"]:
                over = size > MAX_EPISODE_BYTES or self.size > MAX_BYTES
                whole = None if over else self._ask(f"{base}/{quote(each['id'], safe='')}")
                if whole is None:
                    continue
                facts.append(each)
                group[f"{base}/{each['id']}"] = whole
                if len(group) == EPISODES_IN_FILE:
                    size += self._store(f"{base} {len(facts)}", group)
                    group = {}
        if group:
            self._store(f"{base} {len(facts)}", group)
        self._store(base, {base: facts})
        if len(facts) < total:
            self.left_out.append(
                f"Of {run['name']} the newest {len(facts):,} of {total:,} episodes are here."
            )

    def _pages_of_episodes(self, base: str) -> Iterator[dict[str, Any]]:
        after, count = "", 0
        while count < MAX_EPISODES:
            limit = min(MAX_EPISODES - count, 500)
            asked = {"limit": limit} | ({"after": after} if after else {})
            page = self._ask(f"{base}?{urlencode(asked)}")
            if page is None:
                return
            yield page
            count += len(page["episodes"])
            after = page["next"] or ""
            if not after:
                return

    # -- the app ----------------------------------------------------------------------------------

    def _wait_until_ready(self) -> None:
        """Read and fit all runs, as the server's own thread does."""
        until = time.monotonic() + READY_SECONDS
        while True:
            self.catalogue.refresh()
            self.catalogue.fit_some(READY_SECONDS)
            entries = list(self.catalogue.entries.values())
            unread = any(entry.about.get("status") == "reading" for entry in entries)
            if not unread or time.monotonic() > until:
                return

    def _get(self, *paths: str) -> None:
        """Store the answers to these requests; what the server refuses is not in the copy."""
        for path in paths:
            found = self._ask(path)
            if found is not None:
                self._store(path, {path: found})

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer to a request, by the protocol between server and app; None if it refuses."""
        status, data = self._loop.run_until_complete(_response(self._app, path, body))
        return json.loads(data) if status == 200 else None

    # -- files ------------------------------------------------------------------------------------

    def _store(self, name: str, answers: dict[str, Any]) -> int:
        """Write answers as one file; returns its bytes."""
        # A hash, because ids of episodes may hold any character.
        file = f"{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:16]}.js"
        calls = [
            b"scalerlAnswer(" + to_json_bytes(key) + b"," + to_json_bytes(value) + b");\n"
            for key, value in answers.items()
        ]
        data = b"".join(calls)
        write_whole(self.out / "data" / file, data)
        self.files |= dict.fromkeys(answers, file)
        self.size += len(data)
        return len(data)

    def _static(self) -> list[Path]:
        """The page's own files."""
        files = static_files()
        found = {name: data for name, data in files.items() if name.endswith((".css", ".svg"))} | {
            "uplot.js": files["uplot.js"],
            "page.js": joined(files, "app.js").encode(),
        }
        page = _without_modules(files["index.html"].decode())
        return [
            write_whole(self.out / "index.html", page.encode()),
            *(write_whole(self.out / name, data) for name, data in found.items()),
        ]

    def _manifest(self) -> Path:
        made = time.strftime("%d %B %Y, %H:%M", time.localtime())
        index = {"made": made, "left_out": self.left_out, "files": self.files}
        text = b"window.scalerlCopy = " + to_json_bytes(index) + b";\n"
        return write_whole(self.out / "data" / "index.js", text)


def _without_modules(page: str) -> str:
    """The page with relative addresses, and with the joined script in place of the modules."""
    page = re.sub(r'<link rel="modulepreload"[^>]*>\n', "", page)
    page = re.sub(
        r'<script type="module"[^>]*></script>',
        '<script src="data/index.js"></script>\n<script src="page.js"></script>',
        page,
    )
    page = page.replace('="/static/', '="')
    policy = f'<meta http-equiv="content-security-policy" content="{POLICY}">\n'
    return page.replace('<meta charset="utf-8">\n', f'<meta charset="utf-8">\n{policy}', 1)


async def _response(app: Any, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
    plain, _, query = path.partition("?")
    data = b"" if body is None else to_json_bytes(body)
    scope = {
        "type": "http", "http_version": "1.1", "asgi": {"version": "3.0"}, "scheme": "http",
        "method": "GET" if body is None else "POST", "path": unquote(plain),
        "raw_path": plain.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": None, "server": None,
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
