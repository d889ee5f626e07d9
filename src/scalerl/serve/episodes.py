"""Routes of the JSON API for recorded episodes: lists with filters, histograms, one episode.

GET /api/v1/runs/{id}/episodes                      a list: filters, sort, limit, after
GET /api/v1/runs/{id}/episodes/histograms           rewards and lengths, counts by kind
GET /api/v1/runs/{id}/episodes/{episode}            one episode with every token
GET /api/v1/runs/{id}/prompts/{prompt}/episodes     one prompt at every step, oldest first
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scalerl.errors import InputError
from scalerl.runs.episode_filter import EpisodeFilter, Order, order_of
from scalerl.runs.episode_index import EpisodesChanged
from scalerl.runs.episode_log import EpisodeLog
from scalerl.runs.episode_sources import rollouts_in
from scalerl.runs.episode_view import MAX_LIMIT, detail, histograms, list_episodes
from scalerl.serve.catalogue import Entry
from scalerl.serve.queries import LruCache
from scalerl.serve.responses import RequestError, json_response
from scalerl.serve.sources import OwnRun

#: Runs whose index is kept in memory: 200,000 episodes take 11 MB.
MAX_OPEN = 8
#: Episodes of a list where the request names no limit.
LIMIT = 50
#: Fields of a list's query that are no conditions.
LIST_FIELDS = ("sort", "limit", "after")


class RunSite(Protocol):
    """What the routes need of the site: runs by id, and threads that read files."""

    def _entry(self, key: Any) -> Entry: ...

    async def read(self, entry: Entry, work: Callable[..., Any], *given: Any) -> Any: ...


class EpisodeRoutes:
    """The handlers, with the indexes of the runs that were opened last."""

    def __init__(self, site: RunSite) -> None:
        self._site = site
        self._open: LruCache[EpisodeLog] = LruCache(MAX_OPEN)

    def routes(self) -> list[Route]:
        """The routes, to be added to the site's."""
        base = "/api/v1/runs/{id}"
        handlers = {
            f"{base}/episodes": self.list,
            # Before the route of one episode, which would take the word for an id.
            f"{base}/episodes/histograms": self.histograms,
            f"{base}/episodes/{{episode}}": self.episode,
            f"{base}/prompts/{{prompt:path}}/episodes": self.of_prompt,
        }
        return [Route(path, handler, methods=["GET"]) for path, handler in handlers.items()]

    async def list(self, request: Request) -> Response:
        wanted, order, limit, after = _asked(dict(request.query_params), "newest")
        work = partial(list_episodes, wanted=wanted, order=order, limit=limit, after=after)
        return await self._answer(request, lambda log: work(log).to_dict())

    async def of_prompt(self, request: Request) -> Response:
        asked = dict(request.query_params)
        wanted, order, limit, after = _asked(asked, "oldest")
        wanted = replace(wanted, prompt=request.path_params["prompt"])
        work = partial(list_episodes, wanted=wanted, order=order, limit=limit, after=after)
        return await self._answer(request, lambda log: work(log).to_dict())

    async def histograms(self, request: Request) -> Response:
        wanted = EpisodeFilter.from_values(dict(request.query_params))
        return await self._answer(request, partial(histograms, wanted=wanted))

    async def episode(self, request: Request) -> Response:
        key = request.path_params["episode"]

        def read(log: EpisodeLog) -> dict[str, Any]:
            number = log.number_of(key)
            if number is None:
                raise RequestError(404, "no such episode: the list of episodes has their ids")
            return detail(log, number)

        return await self._answer(request, read)

    async def _answer(
        self, request: Request, work: Callable[[EpisodeLog], dict[str, Any]]
    ) -> Response:
        entry = self._site._entry(request.path_params["id"])
        read: Awaitable[Any] = self._site.read(entry, self._in_thread, entry, work)
        return json_response(await read)

    def _in_thread(
        self, entry: Entry, work: Callable[[EpisodeLog], dict[str, Any]]
    ) -> dict[str, Any]:
        """Called with the lock of the run's source, so that an index has one reader at a time."""
        log = self._open.get(entry.id) or self._open.put(entry.id, _log_of(entry))
        log.refresh()
        try:
            found = work(log)
        except EpisodesChanged:
            # The file was replaced between the refresh and the reading: once more, from its lines.
            log.refresh()
            try:
                found = work(log)
            except EpisodesChanged:
                raise RequestError(503, "the episodes are being replaced: ask again") from None
        roots = entry.source.roots
        problems = [roots.without_paths(each) for each in log.problems]
        return found | ({"problems": problems} if problems else {})


def _log_of(entry: Entry) -> EpisodeLog:
    path = entry.source.place.path
    if isinstance(entry.source, OwnRun):
        return EpisodeLog.from_run(path)
    found = rollouts_in(path)
    if not found:
        raise RequestError(404, f"{entry.name} has no recorded episodes")
    return EpisodeLog(found)


def _asked(given: dict[str, str], order: Order) -> tuple[EpisodeFilter, Order, int, str | None]:
    """The filter, order, limit and beginning of a list."""
    own = {name: given.pop(name, "") for name in LIST_FIELDS}
    limit = own["limit"] or str(LIMIT)
    if not re.fullmatch(r"\d{1,6}", limit, re.ASCII) or not 0 < int(limit) <= MAX_LIMIT:
        raise InputError(f"limit is 1 to {MAX_LIMIT}, not {limit[:40]!r}")
    chosen = order_of(own["sort"]) if own["sort"] else order
    return EpisodeFilter.from_values(given), chosen, int(limit), own["after"] or None
