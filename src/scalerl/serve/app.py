"""The addresses. What is asked for goes by ids, never by paths; files of the page are read once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scalerl import __version__
from scalerl.errors import InputError
from scalerl.report.files import slug
from scalerl.report.html import asset
from scalerl.report.series import thin
from scalerl.report.study_page import study_files
from scalerl.report.words import KIND
from scalerl.runs.record import Run
from scalerl.serve import exports
from scalerl.serve.catalogue import Catalogue, Entry, as_sent
from scalerl.serve.events import Hub
from scalerl.serve.guard import COOKIE, Guard
from scalerl.serve.inside import Rooms
from scalerl.serve.questions import (
    MAX_RUNS,
    Kept,
    Question,
    answer,
    content,
    together,
)
from scalerl.serve.studies import DRAWING, Studies

T = TypeVar("T")
#: Bytes of a request's body.
MAX_BODY = 64_000
#: What the page is made of, by its suffix.
TYPES = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
}


class NoAnswer(Exception):
    """An answer that is none: its status and one line."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Site:
    """The page and what it asks."""

    def __init__(self, catalogue: Catalogue, token: str | None) -> None:
        self.catalogue = catalogue
        self.hub = Hub(catalogue.listed)
        self._token = token
        self._kept = Kept()
        self._rooms = Rooms(catalogue.roots)
        self._studies = Studies(catalogue)
        self._pages = _pages()
        self.routes: list[Route] = []
        catalogue.tell = self.hub.tell

    # -- the page ---------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        return self._file("index.html")

    async def login_page(self, request: Request) -> Response:
        return self._file("login.html")

    async def static(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        if name not in self._pages:
            raise NoAnswer(404, "no such file")
        return Response(self._pages[name], media_type=TYPES[name.rpartition(".")[2]])

    async def health(self, request: Request) -> Response:
        return reply({"status": "ok"})

    async def login(self, request: Request) -> Response:
        """Takes the token once and puts it into a cookie that no script can read."""
        given = (await body(request)).get("token")
        guard = Guard(_nobody, token=self._token)
        if self._token is None:
            raise NoAnswer(404, "no token is needed here")
        if not isinstance(given, str) or not guard.right(given[:300]):
            raise NoAnswer(401, "this is not the token")
        response = reply({"status": "ok"})
        response.set_cookie(COOKIE, given, httponly=True, samesite="strict", path="/")
        return response

    # -- runs -------------------------------------------------------------------------------------

    async def runs(self, request: Request) -> Response:
        return raw(self.catalogue.listed())

    async def about(self, request: Request) -> Response:
        return reply(
            {
                "version": __version__,
                "directories": self.catalogue.roots.names,
                "kinds": KIND,
                "studies": len(self.catalogue.studies),
                "problem": self.catalogue.problem,
            }
        )

    async def run(self, request: Request) -> Response:
        entry = self._entry(request.path_params["id"])
        q = Question.of(dict(request.query_params))
        return reply(await self._work(self._whole, entry, q))

    def _whole(self, entry: Entry, q: Question) -> dict[str, Any]:
        found = entry.summary() | {"axes": self._axes(entry), "curve": None}
        if entry.run is not None:
            run = self._on(entry, q.axis)
            x, y = thin(run.compute, run.score, 1500)
            found["curve"] = {
                "compute": x.tolist(), "score": y.tolist(), "kind": run.x_kind,
                "unit": KIND[run.x_kind], "total": len(run), "y": run.y_name,
            }  # fmt: skip
            found["notes"] = list(run.notes)
        return found

    def _axes(self, entry: Entry) -> list[dict[str, str]]:
        with self.catalogue.lock:
            names = entry.source.axes()
        return [{"name": name, "label": KIND.get(name, name)} for name in names]

    def _on(self, entry: Entry, axis: str | None) -> Run:
        run = entry.run
        if run is None:
            raise InputError(entry.problem or f"{entry.name} has no points yet")
        if axis is None or axis in (run.x_kind, run.x_name):
            return run
        with self.catalogue.lock:
            if axis not in entry.source.axes():
                raise InputError(f"{entry.name} has no such axis")
            return entry.source.on(run, axis).replace(name=run.name)

    def _entry(self, key: Any) -> Entry:
        found = self.catalogue.entries.get(key) if isinstance(key, str) else None
        if found is None:
            raise NoAnswer(404, "no such run: it may be gone; GET /api/runs has the list")
        return found

    def _chosen(self, keys: Any) -> list[Entry]:
        if not isinstance(keys, list) or not 0 < len(keys) <= MAX_RUNS:
            raise InputError(f"runs is a list of 1 to {MAX_RUNS} ids")
        return [self._entry(key) for key in dict.fromkeys(map(str, keys))]

    # -- questions --------------------------------------------------------------------------------

    async def fit(self, request: Request) -> Response:
        asked = await body(request)
        entry = self._entry(asked.pop("run", None) or asked.pop("id", None))
        asked.pop("id", None)
        q = Question.of(asked)
        return raw(await self._work(self._answer, entry, q))

    def _answer(self, entry: Entry, q: Question) -> bytes:
        run = self._on(entry, q.axis)
        key = content([run], "fit", q)
        found = self._kept.get(key)
        return found if found is not None else self._kept.put(key, answer(run, q))

    async def compare(self, request: Request) -> Response:
        asked = await body(request)
        entries = self._chosen(asked.pop("runs", None))
        q = Question.of(asked)
        return raw(await self._work(self._together, entries, q))

    def _together(self, entries: list[Entry], q: Question) -> bytes:
        runs: list[Run] = []
        ids, left_out = [], []
        for entry in entries:
            try:
                runs.append(_alone(self._on(entry, q.axis), runs))
                ids.append(entry.id)
            except InputError as error:
                left_out.append(str(error))
        if not runs:
            raise InputError(left_out[0])
        key = content(runs, "compare", ids, left_out, q)
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        found = together(runs, q)
        names = {run.name: key for run, key in zip(runs, ids, strict=True)}
        for each in found["runs"]:
            each["id"] = names[each["name"]]
        found["left_out"] += left_out
        return self._kept.put(key, found)

    async def inside(self, request: Request) -> Response:
        entry = self._entry(request.path_params["id"])
        step = request.query_params.get("step")
        if step is not None and not re.fullmatch(r"\d{1,12}", step, re.ASCII):
            raise InputError("step is a whole number")
        at = None if step is None else int(step)
        return reply(await self._work(self._inside, entry, at))

    def _inside(self, entry: Entry, step: int | None) -> dict[str, Any]:
        with self.catalogue.lock:
            return self._rooms.panels(entry, step)

    async def difference(self, request: Request) -> Response:
        entry = self._entry(request.path_params["id"])
        other = self._entry(request.query_params.get("with"))
        return reply({"html": await self._work(self._difference, entry, other)})

    def _difference(self, entry: Entry, other: Entry) -> str:
        with self.catalogue.lock:
            return self._rooms.difference(entry, other)

    # -- studies ----------------------------------------------------------------------------------

    async def studies(self, request: Request) -> Response:
        return reply(await self._work(self._studies.list))

    async def study(self, request: Request) -> Response:
        return reply(await self._work(self._studies.show, self._study_key(request)))

    def _study_key(self, request: Request) -> str:
        key: str = request.path_params["id"]
        if key not in self.catalogue.studies:
            raise NoAnswer(404, "no such study")
        return key

    async def study_report(self, request: Request) -> Response:
        key = self._study_key(request)

        def make() -> bytes:
            told = self._studies.told(key)
            with DRAWING:
                return exports.packed(study_files(told))

        return download(await self._work(make), "zip", "study-report")

    # -- to take away -----------------------------------------------------------------------------

    async def export(self, request: Request) -> Response:
        """/api/export/figure.png?run=ID&run=ID&from=…"""
        what, kind = request.path_params["what"], request.path_params["kind"]
        makers = {"figure": ("png", "svg"), "data": ("csv", "json"), "report": ("zip",)}
        if kind not in makers.get(what, ()):
            raise NoAnswer(404, "there are figure.png, figure.svg, data.csv, data.json, report.zip")
        entries = self._chosen(request.query_params.getlist("run"))
        theme = request.query_params.get("theme", "light")
        given = dict(request.query_params)
        q = Question.of({k: v for k, v in given.items() if k not in ("run", "theme")})

        def make() -> bytes:
            runs: list[Run] = []
            for entry in entries:
                runs.append(_alone(self._on(entry, q.axis), runs))
            if what == "figure":
                return exports.figure(runs, q, kind, theme)
            if what == "report":
                with self.catalogue.lock:
                    opened = [self._rooms.open(entry) for entry in entries]
                    records = [None if one is None else one.record() for one in opened]
                return exports.report_zip(runs, q, records, self._command(entries))
            made = exports.data_csv if kind == "csv" else exports.data_json
            return made(runs, q)

        name = slug(entries[0].name) if len(entries) == 1 else f"{len(entries)}-runs"
        return download(await self._work(make), kind, name)

    @staticmethod
    def _command(entries: Sequence[Entry]) -> str:
        return "scalerl serve, of " + ", ".join(entry.source.place.name for entry in entries)

    async def events(self, request: Request) -> Response:
        if self.hub.full:
            raise NoAnswer(503, "too many listen already")
        return StreamingResponse(self.hub.stream(), media_type="text/event-stream")

    async def _work(self, work: Callable[..., T], *given: Any) -> T:
        """Off the event loop; the list's own fits wait meanwhile."""
        self.catalogue.waiting += 1
        try:
            return await run_in_threadpool(work, *given)
        except asyncio.CancelledError:
            raise NoAnswer(503, "the server is being stopped") from None
        finally:
            self.catalogue.waiting -= 1


async def _nobody(*_: Any) -> None: ...


def _alone(run: Run, others: Sequence[Run]) -> Run:
    """The run under a name that no other has."""
    names = {other.name for other in others}
    name, count = run.name, 2
    while name in names:
        name, count = f"{run.name} #{count}", count + 1
    return run if name == run.name else run.replace(name=name)


def _pages() -> dict[str, bytes]:
    folder = files("scalerl.serve") / "static"
    found = {
        each.name: each.read_bytes()
        for each in folder.iterdir()
        if each.name.rpartition(".")[2] in TYPES
    }
    return found | {"report.css": asset("report.css").encode()}


# -- requests and answers -------------------------------------------------------------------------


async def body(request: Request) -> dict[str, Any]:
    """The JSON object of a request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise NoAnswer(415, "send JSON, as application/json")
    data = b""
    try:
        async for part in request.stream():
            data += part
            if len(data) > MAX_BODY:
                raise NoAnswer(413, f"at most {MAX_BODY} bytes")
    except ClientDisconnect:
        raise NoAnswer(400, "cut off") from None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise NoAnswer(400, "not JSON") from None
    if not isinstance(found, dict):
        raise NoAnswer(400, "send a JSON object")
    return found


def raw(text: bytes) -> Response:
    return Response(text, media_type="application/json")


def reply(found: Any) -> Response:
    return raw(as_sent(found))


def download(data: bytes, kind: str, name: str) -> Response:
    to_file = {"content-disposition": f'attachment; filename="{name}.{kind}"'}
    return Response(data, media_type=exports.TYPES[kind], headers=to_file)


def said(status: int, why: str) -> Response:
    line = " ".join(why.split())[:600]
    return Response(
        as_sent({"error": line}),
        status_code=status,
        media_type="application/json",
    )


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, NoAnswer):
        return said(error.status, str(error))
    if isinstance(error, HTTPException):
        return said(error.status_code, error.detail)
    return said(400, str(error))


Handler = Callable[[Request], Awaitable[Response]]


def make_app(
    catalogue: Catalogue, host: str = "127.0.0.1", token: str | None = None
) -> tuple[Guard, Site]:
    """The app with its guard, and the site for who runs it."""
    site = Site(catalogue, token)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        site.hub.begin()
        catalogue.start()
        yield
        site.hub.close()
        catalogue.stop()

    gets: Mapping[str, Handler] = {
        "/": site.page,
        "/static/{name}": site.static,
        "/healthz": site.health,
        "/api/about": site.about,
        "/api/runs": site.runs,
        "/api/runs/{id}": site.run,
        "/api/runs/{id}/inside": site.inside,
        "/api/runs/{id}/diff": site.difference,
        "/api/studies": site.studies,
        "/api/studies/{id}": site.study,
        "/api/studies/{id}/report.zip": site.study_report,
        "/api/export/{what}.{kind}": site.export,
        "/api/events": site.events,
    }
    posts: Mapping[str, Handler] = {
        "/api/fit": site.fit,
        "/api/compare": site.compare,
        "/api/login": site.login,
    }
    routes = [Route(path, handler, methods=["GET"]) for path, handler in gets.items()]
    routes += [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
    if token is not None:
        routes.append(Route("/login", site.login_page, methods=["GET"]))
    site.routes = routes
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            NoAnswer: _refused,
            InputError: _refused,
            HTTPException: _refused,
        },
    )
    app.router.redirect_slashes = False
    return Guard(app, host, token), site
