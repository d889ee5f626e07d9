"""Handlers of the API's routes, one method for each; the site reads, fits and caches for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scalerl import __version__
from scalerl.errors import InputError
from scalerl.report.series import downsample
from scalerl.report.words import KIND
from scalerl.runs.fields import Record
from scalerl.runs.lines import EvalLine, EventLine, Line, StepLine, SystemLine
from scalerl.runs.live_run import file_stamp
from scalerl.runs.reader import RECIPE, RunReader
from scalerl.runs.record import Run
from scalerl.serve.api import openapi
from scalerl.serve.api.declare import ApiRoute
from scalerl.serve.api.health import health
from scalerl.serve.api.routes import ROUTES, components
from scalerl.serve.api.selection import documented, dotted, has_words, matches, parse_where
from scalerl.serve.api.series import (
    catalogue,
    known_metrics,
    page_of_lines,
    picked,
    series,
)
from scalerl.serve.catalogue import Entry
from scalerl.serve.queries import MAX_POINTS, Query, compare_runs, forecast_values, unique_name
from scalerl.serve.responses import RequestError, json_response, raw_json
from scalerl.serve.sources import OwnRun

if TYPE_CHECKING:
    from scalerl.serve.app import Site

#: A pair of stamps of the files that a recipe is read from, and its values by dotted key.
RecipeValues = tuple[Any, dict[str, Any]]
Values = Mapping[str, Any]
NO_RECORD = "{} is a log of another framework: it has a curve and a forecast, but no record"


@cache
def _components() -> dict[str, Any]:
    return components()


class Api:
    """The handlers. `site` is the page's own, whose caches and threads they share."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._recipes: dict[str, RecipeValues] = {}

    def routes(self) -> list[Route]:
        """The routes of the declaration that have a handler here."""
        return [
            Route(route.whole_path, self._handler(route), methods=["GET"])
            for route in ROUTES
            if hasattr(self, route.handler)
        ]

    def _handler(self, route: ApiRoute) -> Callable[[Request], Any]:
        method = getattr(self, route.handler)

        async def handle(request: Request) -> Response:
            query = request.query_params
            values = route.read({name: query.getlist(name) for name in query})
            found = await method({**request.path_params, **values})
            if isinstance(found, bytes):
                return raw_json(found)
            return json_response(documented(found, route.response, _components()))

        return handle

    # -- the server -------------------------------------------------------------------------------

    async def about(self, values: Values) -> Any:
        catalogue = self.site.catalogue
        return {
            "version": __version__,
            "api": openapi.VERSION,
            "directories": catalogue.roots.names,
            "runs": len(catalogue.entries),
            "studies": len(catalogue.studies),
        }

    async def openapi(self, values: Values) -> Any:
        return openapi.text().encode()

    async def metrics(self, values: Values) -> Any:
        found = catalogue()
        if values["run"] is not None:
            entry = self._own(values["run"])
            found = await self.site.read(entry, self._known_metrics, entry)
        return {"metrics": [each.to_dict() for each in found]}

    def _known_metrics(self, entry: Entry) -> Any:
        reader = RunReader(entry.source.place.path)
        # A metric may be on some lines only, such as the entropy.
        return known_metrics(reader.tail(StepLine, 20), reader.tail(EvalLine, 5))

    # -- runs -------------------------------------------------------------------------------------

    async def runs(self, values: Values) -> Any:
        where = parse_where(values["where"])
        found = []
        for entry in list(self.site.catalogue.entries.values()):
            run = self._summary(entry)
            recipe = await self._recipe_values(entry) if where else {}
            tagged = set(values["tag"]) <= set(run["tags"])
            if tagged and has_words(run, values["q"] or "") and matches(where, run, recipe):
                found.append(run)
        if values["sort"] == "changed":
            found.sort(key=lambda run: (-run["changed"], run["id"]))
        else:
            found.sort(key=lambda run: (run["where"], run["name"], run["id"]))
        first = _behind(found, values["after"])
        page = found[first : first + values["limit"]]
        more = first + len(page) < len(found)
        return {"runs": page, "next": page[-1]["id"] if page and more else None}

    def _summary(self, entry: Entry) -> dict[str, Any]:
        found = entry.summary()
        return {"tags": [], **found, "id": entry.id}

    async def run(self, values: Values) -> Any:
        entry = self.site._entry(values["id"])
        try:
            axes = await self.site.read(entry, entry.source.axes)
        except RequestError:  # the files hang: give what is known without them
            axes = []
        run = None if entry.run is None else await self.site._run_on_axis(entry, values["axis"])
        named = [{"name": name, "label": KIND.get(name, name)} for name in axes]
        return {**self._summary(entry), "axes": named, **self._points(run)}

    def _points(self, run: Run | None) -> dict[str, Any]:
        if run is None:
            return {"curve": None, "notes": []}
        x, y = downsample(run.compute, run.score, MAX_POINTS)
        curve = {"compute": x.tolist(), "score": y.tolist(), "kind": run.x_kind,
                 "unit": KIND[run.x_kind], "total": len(run), "y": run.y_name}  # fmt: skip
        without_paths = self.site.catalogue.roots.without_paths
        return {"curve": curve, "notes": [without_paths(note) for note in run.notes]}

    async def forecast(self, values: Values) -> Any:
        entry = self.site._entry(values["id"])
        q = _query(values)
        run = await self.site._run_on_axis(entry, q.axis)
        return {"id": entry.id, **await self.site.work(forecast_values, run, q)}

    async def comparison(self, values: Values) -> Any:
        q = _query(values)
        runs: dict[str, Run] = {}
        left_out = []
        for entry in self.site.chosen(values["run"]):
            try:
                run = await self.site._run_on_axis(entry, q.axis)
                runs[entry.id] = unique_name(run, list(runs.values()))
            except (InputError, RequestError) as error:
                left_out.append(self.site.catalogue.roots.without_paths(str(error)))
        if not runs:
            raise InputError(left_out[0])
        found = await self.site.work(compare_runs, list(runs.values()), q)
        ids = {run.name: key for key, run in runs.items()}
        return {
            **found,
            "runs": [{"id": ids[each["name"]], **each} for each in found["runs"]],
            "left_out": [*found["left_out"], *left_out],
        }

    async def recipe(self, values: Values) -> Any:
        entry = self._own(values["id"])
        found = await self._recipe_values(entry)
        return {"name": found.get("name"), "values": found}

    async def _recipe_values(self, entry: Entry) -> dict[str, Any]:
        """The recipe by dotted key; empty for a log, or where it cannot be read."""
        source = entry.source
        if not isinstance(source, OwnRun) or entry.late is not None:
            return {}
        if source.live.recipe:
            return dotted(source.live.recipe)
        stamp, kept = file_stamp(source.place.path / RECIPE), self._recipes.get(entry.id)
        if kept is None or kept[0] != stamp:
            read = await self.site.read(entry, RunReader(source.place.path).read_recipe)
            kept = self._recipes[entry.id] = stamp, dotted(read or {})
        return kept[1]

    def _own(self, key: str) -> Entry:
        """A run with a record."""
        entry = self.site._entry(key)
        if not isinstance(entry.source, OwnRun):
            raise InputError(NO_RECORD.format(entry.name))
        return entry

    # -- the record -------------------------------------------------------------------------------

    async def steps(self, values: Values) -> Any:
        entry = self._own(values["id"])
        make = self._raw_steps if values["raw"] else self._picked_steps
        return await self.site.read(entry, make, entry, values)

    def _raw_steps(self, entry: Entry, values: Values) -> dict[str, Any]:
        path = entry.source.place.path
        found, cursor = page_of_lines(path, StepLine, values["after"], values["limit"], _with_step)
        return {**_series(found, values), "every": 1, "total": None, "next": cursor}

    def _picked_steps(self, entry: Entry, values: Values) -> dict[str, Any]:
        opened = self.site._open_runs.open(entry)
        lines = [] if opened is None else opened.steps()
        total = 0 if opened is None else opened.step_count
        chosen = [line.to_dict() for line in picked(lines, values["points"])]
        # The last line is there besides the evenly picked ones.
        every = max(round(total / max(len(chosen), 1)), 1)
        return {**_series(chosen, values), "every": every, "total": total, "next": None}

    async def evals(self, values: Values) -> Any:
        return await self._lines("evals", EvalLine, values)

    async def events(self, values: Values) -> Any:
        return await self._lines("events", EventLine, values)

    async def system(self, values: Values) -> Any:
        entry = self._own(values["id"])
        reader = RunReader(entry.source.place.path)
        found = await self.site.read(entry, reader.sample, SystemLine, values["points"])
        return {"samples": [line.to_dict() for line in found]}

    async def _lines(self, name: str, kind: type[Line], values: Values) -> Any:
        entry = self._own(values["id"])
        path = entry.source.place.path
        asked = values["after"], values["limit"]
        found, cursor = await self.site.read(
            entry, page_of_lines, path, kind, *asked, lambda line: _read_as(kind, line)
        )
        without_paths = self.site.catalogue.roots.without_paths
        lines = [_clean(line.to_dict(), without_paths) for line in found]
        return {name: lines, "next": cursor}

    async def health(self, values: Values) -> Any:
        entry = self._own(values["id"])
        path = entry.source.place.path
        return await self.site.read(entry, health, entry, path, values["last"], values["price"])

    # -- studies ----------------------------------------------------------------------------------

    async def studies(self, values: Values) -> Any:
        return {"studies": await self.site.work(self.site._studies.list)}

    async def study(self, values: Values) -> Any:
        if values["id"] not in self.site.catalogue.studies:
            raise RequestError(404, "no such study: GET /api/v1/studies lists all")
        return await self.site.work(self.site._studies.show, values["id"])


def _query(values: Values) -> Query:
    """The fields of a query among the values of a request."""
    names = ("axis", "from", "to", "known", "budget", "target", "price", "value", "level")
    return Query.from_request({n: v for n in names if (v := values[n]) not in (None, [])})


def _behind(runs: list[dict[str, Any]], after: str | None) -> int:
    """The place behind the last run of the page before."""
    if after is None:
        return 0
    ids = [run["id"] for run in runs]
    if after not in ids:
        raise InputError("the last run of that page is gone: begin again without `after`")
    return ids.index(after) + 1


def _with_step(line: dict[str, Any]) -> dict[str, Any] | None:
    return line if type(line.get("step")) is int else None


def _read_as(kind: type[Record], line: dict[str, Any]) -> Any:
    return kind.from_dict(line)


def _series(lines: list[dict[str, Any]], values: Values) -> dict[str, Any]:
    return {"step": [line["step"] for line in lines], "metrics": series(lines, values["metric"])}


def _clean(value: Any, without_paths: Callable[[str], str]) -> Any:
    """A line without paths of this machine in its texts."""
    if isinstance(value, str):
        return without_paths(value)
    if isinstance(value, dict):
        return {key: _clean(each, without_paths) for key, each in value.items()}
    if isinstance(value, list):
        return [_clean(each, without_paths) for each in value]
    return value
