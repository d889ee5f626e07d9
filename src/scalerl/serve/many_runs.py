"""Routes about many runs at once: recipes, step metrics, annotations, saved views."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from scalerl.errors import InputError
from scalerl.serve.annotations import FIELDS
from scalerl.serve.catalogue import Entry
from scalerl.serve.queries import LruCache
from scalerl.serve.recipes import recipe_table
from scalerl.serve.responses import RequestError, json_response, raw_json, request_body
from scalerl.serve.sources import OwnRun
from scalerl.serve.step_bins import StepBins, step_metrics

if TYPE_CHECKING:
    from scalerl.serve.app import Site

#: Runs in one request for step metrics, and runs whose metrics stay in memory: 1.5 MB each.
MAX_STEP_RUNS = 24
#: Metrics in one request.
MAX_METRICS = 24
#: Stretches of steps that are sent of a run: a chart has about as many pixels.
STRETCHES = 240
#: The most that a request may ask for.
MAX_STRETCHES = 1000
#: Runs whose annotation one request changes.
MAX_ANNOTATED = 2000


class ManyRuns:
    """The handlers, with the step metrics that were read last."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._bins: LruCache[StepBins] = LruCache(MAX_STEP_RUNS)
        self._recipes: tuple[Any, bytes] = (None, b"")

    async def recipes(self, request: Request) -> Response:
        """The recipes of all runs: keys that are the same, and the values of those that differ."""
        entries = list(self._site.catalogue.entries.values())
        found = [(e.id, e.source.recipe) for e in entries if isinstance(e.source, OwnRun)]
        known = [(key, recipe) for key, recipe in found if recipe is not None]
        stamp = [(key, id(recipe)) for key, recipe in known]
        if stamp != self._recipes[0]:
            self._recipes = stamp, recipe_table(known)
        return raw_json(self._recipes[1])

    async def step_metrics(self, request: Request) -> Response:
        """Every number of a step with its meaning and unit."""
        return json_response(
            [
                {"name": each.name, "meaning": each.meaning, "unit": each.unit}
                for each in step_metrics().values()
            ]
        )

    async def steps(self, request: Request) -> Response:
        """/api/steps?run=ID&run=ID&metric=reward&metric=length/mean&from=…&to=…&points=…"""
        asked = request.query_params
        entries = self._entries(asked.getlist("run"), MAX_STEP_RUNS)
        names = list(dict.fromkeys(asked.getlist("metric")))
        if not 0 < len(names) <= MAX_METRICS:
            raise InputError(f"metric names 1 to {MAX_METRICS} metrics: GET /api/steps/metrics")
        lo, hi = (_number(name, asked.get(name)) for name in ("from", "to"))
        most = int(_number("points", asked.get("points")) or STRETCHES)
        most = min(max(most, 2), MAX_STRETCHES)

        def lines(entry: Entry) -> dict[str, Any]:
            bins = self._read(entry)
            found = bins.lines(names, most, lo, hi)
            return {"id": entry.id, "name": entry.name, "known": bins.known, **found}

        runs, left_out = [], []
        reads = [self._site.read(entry, lines, entry) for entry in entries]
        for found in await asyncio.gather(*reads, return_exceptions=True):
            if isinstance(found, dict):
                runs.append(found)
            elif isinstance(found, InputError | RequestError):
                left_out.append(self._site.catalogue.roots.without_paths(str(found)))
            else:
                raise found
        return json_response({"runs": runs, "left_out": left_out})

    def _read(self, entry: Entry) -> StepBins:
        source = entry.source
        if not isinstance(source, OwnRun):
            raise InputError(f"{entry.name} is a log of another framework: it has no step metrics")
        bins = self._bins.get(entry.id)
        bins = bins or self._bins.put(entry.id, StepBins(source.place.path))
        bins.refresh()
        return bins

    # -- what visitors say about runs -------------------------------------------------------------

    async def annotate(self, request: Request) -> Response:
        """Change pins, tags or the note of runs; returns them as the list has them now."""
        asked = await request_body(request)
        entries = self._entries(asked.pop("runs", None), MAX_ANNOTATED)
        unknown = sorted(asked.keys() - FIELDS)
        if unknown or not asked:
            named = f"no field {unknown[0][:40]!r}: " if unknown else ""
            raise InputError(f"{named}an annotation has {', '.join(sorted(FIELDS))}")
        catalogue = self._site.catalogue
        places = [catalogue.annotated_as(entry) for entry in entries]
        await self._site.work(catalogue.annotations.change, places, asked)
        return json_response({"runs": [entry.summary() for entry in entries]})

    async def views(self, request: Request) -> Response:
        """The saved views."""
        return json_response(self._site.catalogue.annotations.views)

    async def save_view(self, request: Request) -> Response:
        """Save a view under a name; an address of null removes it."""
        asked = await request_body(request)
        annotations = self._site.catalogue.annotations
        await self._site.work(annotations.save_view, asked.get("name"), asked.get("address"))
        return json_response(annotations.views)

    def _entries(self, keys: Any, most: int) -> Sequence[Entry]:
        return self._site.chosen(keys, most)


def _number(name: str, text: str | None) -> float | None:
    if text is None or text == "":
        return None
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    # Not nan, not infinite: neither is a number of steps.
    if not abs(found) < 1e15:
        raise InputError(f"{name} is a number")
    return found
