"""Routes of the live page. Requests name runs by id, never by path; static files are read once."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scalerl import __version__
from scalerl.errors import InputError
from scalerl.files import to_json_bytes
from scalerl.report.files import slug
from scalerl.report.html import SHARED_ASSETS, asset
from scalerl.report.series import downsample
from scalerl.report.study_page import study_files
from scalerl.report.words import KIND
from scalerl.runs.record import Run
from scalerl.serve import exports
from scalerl.serve.api.handlers import Api
from scalerl.serve.catalogue import Catalogue, Entry
from scalerl.serve.curve_points import Array, marked_events, point_details
from scalerl.serve.episodes import EpisodeRoutes
from scalerl.serve.events import EventHub
from scalerl.serve.guard import COOKIE, Guard, same_token
from scalerl.serve.many_runs import ManyRuns
from scalerl.serve.queries import (
    MAX_POINTS,
    MAX_POOLED,
    MAX_RESPONSE_BYTES,
    MAX_RESPONSES,
    MAX_RUNS,
    LruCache,
    Query,
    compare_recipes,
    compare_runs,
    content,
    fit_response,
    unique_name,
)
from scalerl.serve.responses import (
    RequestError,
    download,
    error_response,
    json_response,
    raw_json,
    request_body,
)
from scalerl.serve.run_details import OpenRunCache, difference
from scalerl.serve.studies import DRAWING, Studies
from scalerl.serve.threads import DaemonThreads

T = TypeVar("T")
#: Seconds that a request waits for the files of a run.
READ_SECONDS = 20.0
#: Seconds that a request waits for a computation. The computation continues after that, and its
#: result is cached for the next request.
WORK_SECONDS = 120.0
#: Threads that compute fits and figures for requests; most of them wait for a lock.
MAX_WORKING = 40
#: Threads that read files for requests; a read that hangs keeps its thread.
MAX_READING = 40
#: Content types of the page's own files, by suffix.
TYPES = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
}


class Site:
    """The handlers of all routes, with the caches that they share."""

    def __init__(self, catalogue: Catalogue, token: str | None) -> None:
        self.catalogue = catalogue
        self._read_threads = DaemonThreads("read for a request", MAX_READING)
        self._compute_threads = DaemonThreads("work", MAX_WORKING)
        self.hub = EventHub(catalogue.listed)
        self._token = token
        # Responses as JSON, by content: equal points give equal responses, whatever the run's id.
        self._cache: LruCache[bytes] = LruCache(MAX_RESPONSES, len, MAX_RESPONSE_BYTES)
        self._open_runs = OpenRunCache()
        self._studies = Studies(catalogue)
        self.many = ManyRuns(self)
        self._pages = static_files()
        self.routes: list[Route] = []
        catalogue.publish = self.hub.publish

    @property
    def busy(self) -> bool:
        """Whether threads are still at work."""
        return self.catalogue.busy or self._read_threads.busy or self._compute_threads.busy

    # -- static files and login -------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        return self._file("index.html")

    async def login_page(self, request: Request) -> Response:
        return self._file("login.html")

    async def static(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        if name not in self._pages:
            raise RequestError(404, "no such file")
        return Response(self._pages[name], media_type=TYPES[name.rpartition(".")[2]])

    async def health(self, request: Request) -> Response:
        """`ok`; `degraded` where reads of some runs hang; `stalled` (HTTP 503) where no run is read
        any more. Names of runs are sent only where no token is needed: this route is open."""
        late, stalled = self.catalogue.waits_for(), self.catalogue.stalled
        if not late and not stalled:
            return json_response({"status": "ok"})
        found: dict[str, Any] = {"status": "stalled" if stalled else "degraded", "late": len(late)}
        if self._token is None:
            found["waits_for"] = _since(late)
        return json_response(found, 503 if stalled else 200)

    async def login(self, request: Request) -> Response:
        """Exchange the token for a cookie that scripts cannot read (HttpOnly)."""
        given = (await request_body(request)).get("token")
        if self._token is None:
            raise RequestError(404, "no token is needed here")
        # 300: a longer text is no token, and need not be compared.
        if not isinstance(given, str) or not same_token(given[:300], self._token):
            raise RequestError(401, "wrong token")
        response = json_response({"status": "ok"})
        # Behind a proxy with TLS, browsers must not send the cookie over plain HTTP.
        secure = request.headers.get("origin", "").startswith("https://")
        response.set_cookie(
            COOKIE, given, httponly=True, samesite="strict", path="/", secure=secure
        )
        return response

    # -- runs -------------------------------------------------------------------------------------

    async def runs(self, request: Request) -> Response:
        return raw_json(self.catalogue.listed())

    async def about(self, request: Request) -> Response:
        return json_response(
            {
                "version": __version__,
                "directories": self.catalogue.roots.names,
                "kinds": KIND,
                "studies": len(self.catalogue.studies),
                "problem": self.catalogue.problem,
                "waits_for": _since(self.catalogue.waits_for()),
            }
        )

    async def run(self, request: Request) -> Response:
        entry = self._entry(request.path_params["id"])
        q = Query.from_request(dict(request.query_params))
        try:
            axes = await self.read(entry, entry.source.axes)
        except RequestError:  # the files hang: show what is known without them
            axes = []
        run = None if entry.run is None else await self._run_on_axis(entry, q.axis)
        steps = None
        if run is not None and "steps" in axes:
            steps = (await self._run_on_axis(entry, "steps")).compute
        return json_response(self._run_response(entry, run, axes, steps))

    def _run_response(
        self, entry: Entry, run: Run | None, axes: Sequence[str], steps: Array | None
    ) -> dict[str, Any]:
        named = [{"name": name, "label": KIND.get(name, name)} for name in axes]
        found = entry.summary() | {"axes": named, "curve": None}
        if run is not None:
            x, y = downsample(run.compute, run.score, MAX_POINTS)
            found["curve"] = {
                "compute": x.tolist(), "score": y.tolist(), "kind": run.x_kind,
                "unit": KIND[run.x_kind], "total": len(run), "y": run.y_name,
                **point_details(run, steps),
            }  # fmt: skip
            found["events"] = marked_events(entry, run, steps)
            found["notes"] = [self.catalogue.roots.without_paths(note) for note in run.notes]
        return found

    async def _run_on_axis(self, entry: Entry, axis: str | None) -> Run:
        """The run against a kind of compute, by default its own."""
        run = entry.run
        if run is None:
            raise InputError(entry.problem or f"{entry.name} has no points yet")
        if axis is None or axis in (run.x_kind, run.x_name):
            return run

        def on_axis() -> Run:
            if axis not in entry.source.axes():
                raise InputError(f"{entry.name} has no such axis")
            return entry.source.on(run, axis).replace(name=run.name)

        return await self.read(entry, on_axis)

    def _entry(self, key: Any) -> Entry:
        found = self.catalogue.entries.get(key) if isinstance(key, str) else None
        if found is None:
            raise RequestError(
                404, "no such run: it may have been removed; GET /api/runs lists all"
            )
        return found

    def chosen(self, keys: Any, most: int = MAX_RUNS) -> list[Entry]:
        """The runs of a list of ids."""
        if not isinstance(keys, list) or not 0 < len(keys) <= most:
            raise InputError(f"runs is a list of 1 to {most} ids")
        # A run that is named twice counts once.
        return [self._entry(key) for key in dict.fromkeys(map(str, keys))]

    # -- fits and comparisons ---------------------------------------------------------------------

    async def fit(self, request: Request) -> Response:
        asked = await request_body(request)
        entry = self._entry(asked.pop("run", None) or asked.pop("id", None))
        asked.pop("id", None)
        q = Query.from_request(asked)
        run = await self._run_on_axis(entry, q.axis)
        return raw_json(await self.work(self._fit, run, q))

    def _fit(self, run: Run, q: Query) -> bytes:
        key = content([run], "fit", q)
        return self._cache.get(key) or self._cache.put(key, to_json_bytes(fit_response(run, q)))

    async def compare(self, request: Request) -> Response:
        asked = await request_body(request)
        pool = asked.pop("pool", False) is True
        entries = self.chosen(asked.pop("runs", None), MAX_POOLED if pool else MAX_RUNS)
        q = Query.from_request(asked)
        runs: list[Run] = []
        ids, left_out = [], []
        for entry in entries:
            try:
                run = unique_name(await self._run_on_axis(entry, q.axis), runs)
                runs.append(run.replace(group=entry.group) if pool else run)
                ids.append(entry.id)
            except (InputError, RequestError) as error:
                left_out.append(self.catalogue.roots.without_paths(str(error)))
        if not runs:
            raise InputError(left_out[0])
        return raw_json(await self.work(self._compare, runs, ids, left_out, q, pool))

    def _compare(
        self, runs: list[Run], ids: list[str], left_out: list[str], q: Query, pool: bool
    ) -> bytes:
        key = content(runs, "compare", ids, left_out, q, pool)
        kept = self._cache.get(key)
        if kept is not None:
            return kept
        found = compare_recipes(runs, q) if pool else compare_runs(runs, q)
        names = {run.name: key for run, key in zip(runs, ids, strict=True)}
        for each in found["runs"]:
            each["ids"] = [names[name] for name in each.pop("members", [each["name"]])]
            each["id"] = each["ids"][0]
        found["left_out"] += left_out
        return self._cache.put(key, to_json_bytes(found))

    async def details(self, request: Request) -> Response:
        entry = self._entry(request.path_params["id"])
        step = request.query_params.get("step")
        # re.ASCII: \d would match the digits of other scripts as well.
        if step is not None and not re.fullmatch(r"\d{1,12}", step, re.ASCII):
            raise InputError("step is a whole number")
        at = None if step is None else int(step)
        return json_response(await self.read(entry, self._open_runs.panels, entry, at))

    async def difference(self, request: Request) -> Response:
        entry = self._entry(request.path_params["id"])
        other = self._entry(request.query_params.get("with"))
        recipes = [await self.read(each, self._open_runs.recipe, each) for each in (entry, other)]
        return json_response({"html": difference(entry.name, other.name, recipes[0], recipes[1])})

    # -- studies ----------------------------------------------------------------------------------

    async def studies(self, request: Request) -> Response:
        return json_response(await self.work(self._studies.list))

    async def study(self, request: Request) -> Response:
        return json_response(await self.work(self._studies.show, self._study_key(request)))

    def _study_key(self, request: Request) -> str:
        key: str = request.path_params["id"]
        if key not in self.catalogue.studies:
            raise RequestError(404, "no such study")
        return key

    async def study_report(self, request: Request) -> Response:
        key = self._study_key(request)

        def make() -> bytes:
            data = self._studies.report_data(key)
            with DRAWING:
                return exports.zipped(study_files(data))

        return download(await self.work(make), "zip", "study-report")

    # -- exports ----------------------------------------------------------------------------------

    async def export(self, request: Request) -> Response:
        """/api/export/figure.png?run=ID&run=ID&from=…"""
        what, kind = request.path_params["what"], request.path_params["kind"]
        makers = {"figure": ("png", "svg"), "data": ("csv", "json"), "report": ("zip",)}
        if kind not in makers.get(what, ()):
            raise RequestError(
                404, "there are figure.png, figure.svg, data.csv, data.json, report.zip"
            )
        entries = self.chosen(request.query_params.getlist("run"))
        theme = request.query_params.get("theme", "light")
        given = dict(request.query_params)
        q = Query.from_request({k: v for k, v in given.items() if k not in ("run", "theme")})

        runs: list[Run] = []
        for entry in entries:
            run = unique_name(await self._run_on_axis(entry, q.axis), runs)
            # Reports name their source, and no path of this machine.
            runs.append(run.replace(source=entry.source.place.name))
        records = []
        if what == "report":
            records = [await self.read(entry, self._open_runs.record, entry) for entry in entries]

        def make() -> bytes:
            if what == "figure":
                return exports.figure(runs, q, kind, theme)
            if what == "report":
                places = ", ".join(entry.source.place.name for entry in entries)
                return exports.report_zip(runs, q, records, f"scalerl serve, of {places}")
            made = exports.data_csv if kind == "csv" else exports.data_json
            return made(runs, q)

        name = slug(entries[0].name) if len(entries) == 1 else f"{len(entries)}-runs"
        return download(await self.work(make), kind, name)

    async def events(self, request: Request) -> Response:
        if self.hub.full:
            raise RequestError(503, "too many pages are open: close one")
        return StreamingResponse(self.hub.stream(), media_type="text/event-stream")

    async def work(self, work: Callable[..., T], *given: Any) -> T:
        """Run a computation in a thread. Fits for the list of runs pause meanwhile."""
        late = f"not done within {WORK_SECONDS:.0f} s: it continues, ask again later"
        return await self._wait(self._compute_threads, partial(work, *given), WORK_SECONDS, late)

    async def read(self, entry: Entry, work: Callable[..., T], *given: Any) -> T:
        """Run a function that reads files of a run in a thread. A read that hangs (a lost network
        file system) blocks that thread and the run's own lock, no other run."""
        late = f"{entry.name}: reading its files takes too long: ask again later"
        if entry.late is not None:
            raise RequestError(503, late)
        source = entry.source

        def read() -> T:
            if not source.lock.acquire(timeout=READ_SECONDS):
                raise RequestError(503, late)
            try:
                with source.roots.confined():
                    return work(*given)
            except OSError as error:
                why = error.strerror or type(error).__name__
                raise RequestError(404, f"{entry.name}: cannot be read: {why}") from None
            finally:
                source.lock.release()

        return await self._wait(self._read_threads, read, READ_SECONDS, late)

    async def _wait(
        self, workers: DaemonThreads, work: Callable[[], T], seconds: float, late: str
    ) -> T:
        self.catalogue.waiting += 1
        try:
            return await asyncio.wait_for(asyncio.wrap_future(workers.submit(work)), seconds)
        except TimeoutError:
            raise RequestError(503, late) from None
        except asyncio.CancelledError:
            raise RequestError(503, "the server is being stopped") from None
        finally:
            self.catalogue.waiting -= 1

    async def refused(self, request: Request, error: Exception) -> Response:
        """The response to an error: one line, without paths of this machine."""
        if isinstance(error, HTTPException):
            return error_response(error.status_code, error.detail)
        status, why = 400, str(error)
        if isinstance(error, RequestError):
            status = error.status
        elif isinstance(error, OSError):
            status, why = 404, f"cannot be read: {error.strerror or type(error).__name__}"
        elif not isinstance(error, InputError):
            # The text of an unexpected error may hold data: it is in the log only.
            status, why = 500, "the server failed at this request: see its log"
        return error_response(status, self.catalogue.roots.without_paths(why))


def _since(late: Mapping[str, float]) -> list[dict[str, Any]]:
    now = time.time()
    return [{"name": name, "seconds": round(now - t)} for name, t in late.items()]


def static_files() -> dict[str, bytes]:
    """The page's own files by name."""
    folder = files("scalerl.serve") / "static"
    found = {
        each.name: each.read_bytes()
        for each in folder.iterdir()
        if each.name.rpartition(".")[2] in TYPES
    }
    return found | {name: asset(name).encode() for name in SHARED_ASSETS}


Handler = Callable[[Request], Awaitable[Response]]


def make_app(
    catalogue: Catalogue,
    host: str = "127.0.0.1",
    token: str | None = None,
    origin: str | None = None,
    cors: Sequence[str] = (),
) -> tuple[Guard, Site]:
    """The ASGI app behind its guard, and the site with its state."""
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
        "/api/runs/{id}/inside": site.details,
        "/api/runs/{id}/diff": site.difference,
        "/api/recipes": site.many.recipes,
        "/api/steps": site.many.steps,
        "/api/steps/metrics": site.many.step_metrics,
        "/api/views": site.many.views,
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
        "/api/annotations": site.many.annotate,
        "/api/views": site.many.save_view,
    }
    routes = [Route(path, handler, methods=["GET"]) for path, handler in gets.items()]
    routes += [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
    routes += Api(site).routes()
    routes += EpisodeRoutes(site).routes()
    if token is not None:
        routes.append(Route("/login", site.login_page, methods=["GET"]))
    site.routes = routes
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers=dict.fromkeys(
            (RequestError, InputError, HTTPException, OSError, Exception), site.refused
        ),
    )
    app.router.redirect_slashes = False
    return Guard(app, host, token, origin, cors), site
