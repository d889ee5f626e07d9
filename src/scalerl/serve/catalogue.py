"""The list of all runs, kept up to date by one thread.

    search for new places ─► read new lines ─► publish ─► fit changed runs ─► publish
          every 3 s             every second              up to 0.6 s, then from the start

The refreshing thread itself opens no file: other threads read each source (`watchdog`), and where a
read hangs, it continues with the next source. No lock is held meanwhile.

Forecasts of the list are computed here, one run after the other; requests of visitors (`queries`)
go first.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.curves.fit import TooFewPoints, fit
from scalerl.curves.forecast import Forecast, forecast
from scalerl.errors import InputError
from scalerl.files import to_json_bytes
from scalerl.report.words import KIND, ceiling_and_range, so_far
from scalerl.runs.record import Run
from scalerl.serve.annotations import NONE, Annotation, Annotations
from scalerl.serve.discovery import Place, Roots
from scalerl.serve.sources import OwnRun, Source, source_of
from scalerl.serve.threads import give_back_memory
from scalerl.serve.watchdog import Reading, SearchResult, Watchdog, key_of, read, search
from scalerl.text import shorten

log = logging.getLogger(__name__)

#: Seconds between two searches for new runs: a search walks all directories.
SEARCH_SECONDS = 3.0
#: Seconds between two refreshes: a run writes its status about once a second.
REFRESH_SECONDS = 1.0
#: Seconds of fitting in each refresh, so that new lines are read between two batches of fits.
FIT_SECONDS = 0.6
#: A run that has ended is read once in so many refreshes.
ENDED_EVERY = 5
#: Seconds between two fits of a run that keeps growing.
REFIT_SECONDS = 2.0
#: Seconds for which the fits of the list pause while requests are being served.
YIELD_SECONDS = 5.0
#: Seconds without progress after which the refreshing thread counts as stalled. The longest step of
#: its work is one fit, which takes seconds.
STALLED_SECONDS = 60.0
#: Points of the small curve in the list.
SPARK_POINTS = 24
#: New points that are sent with an event; a page that missed more reads the run again.
EVENT_POINTS = 200


@dataclass
class Entry:
    """One run of the list."""

    id: str
    source: Source
    run: Run | None
    name: str
    #: Number of times that its points have changed.
    version: int = 0
    problem: str | None = None
    forecast: dict[str, Any] | None = None
    #: The version that `forecast` was computed from; -1 before the first fit.
    fitted: int = -1
    #: Time of the last fit, by the monotonic clock.
    fitted_at: float = 0.0
    #: Time of the last change, in seconds since 1970.
    changed: float = field(default_factory=time.time)
    #: The summary that was published last.
    published: dict[str, Any] = field(default_factory=dict)
    #: `published` as JSON, made once for all visitors.
    text: bytes = b""
    #: Number of points that have been published.
    sent: int = 0
    #: Status and other facts from the run's files.
    about: dict[str, Any] = field(default_factory=dict)
    #: What visitors have said about it.
    annotation: Annotation = NONE
    #: Id of the study that the run is a member of.
    study: str | None = None
    #: Time since which reading its files hangs, in seconds since 1970; None while it does not.
    late: float | None = None

    def summary(self) -> dict[str, Any]:
        """The entry as the list shows it."""
        run = self.run
        last = None if run is None or not len(run) else run
        return {
            "id": self.id,
            "name": shorten(self.name, 200),
            "where": shorten(self.source.place.name, 300),
            "points": 0 if run is None else len(run),
            "x": None if run is None else run.x_kind,
            "unit": None if run is None else KIND[run.x_kind],
            "compute": None if last is None else float(last.compute[-1]),
            "pass_rate": None if last is None else float(last.score[-1]),
            "group": None if run is None or run.group is None else shorten(run.group, 120),
            "study": self.study,
            "step": None,
            "why": None,
            "waits_for": None,
            "warnings": 0,
            "budget": None,
            "recipe": None,
            "recipe_id": None,
            "seed": None,
            **self.annotation.to_dict(),
            # Replaces the defaults above it, and not what follows.
            **self.about,
            "problem": None if (problem := self._problem()) is None else shorten(problem, 400),
            "forecast": self.forecast,
            "changed": self.changed,
            "version": self.version,
            "spark": [] if last is None else spark(last),
        }

    @property
    def group(self) -> str:
        """What seeds of one recipe share."""
        key = self.about.get("recipe_id")
        name = None if self.run is None else self.run.group
        return f"{name or self.name}\0{key or ''}" if key or name else self.id

    def _problem(self) -> str | None:
        if self.late is not None:
            since = time.strftime("%H:%M:%S", time.localtime(self.late))
            return f"its files have not answered since {since}; still trying"
        return self.problem or self.about.get("unread")


def spark(run: Run) -> list[float]:
    """A few scores for the small curve in the list, evenly spaced."""
    pick = np.unique(np.linspace(0, len(run) - 1, min(SPARK_POINTS, len(run))).round().astype(int))
    return [round(float(v), 3) for v in run.score[pick]]


def list_forecast(run: Run) -> dict[str, Any]:
    """The forecast of a run as the list shows it."""
    f = fit(run)
    ahead = forecast(f)
    words, spread = ceiling_and_range(f)
    low, high = f.interval("A")
    at = ahead.to_dict()["at"][0]
    return {
        "identified": f.identified,
        "ceiling": words,
        "range": spread,
        "A": f.params["A"],
        "interval": [low, high],
        "alarm": f.alarm,
        "at": at,
        "next_doubling": next_doubling(ahead),
        "warnings": list(f.warnings),
    }


def next_doubling(ahead: Forecast) -> dict[str, Any]:
    """The gain of the next doubling; of a run in decline without numbers, so that it stands last
    where the list is sorted by its gain."""
    found = ahead.next_doubling.to_dict()
    return found if ahead.fit.alarm is None else found | {"gain": None, "interval": None}


class Catalogue:
    """All runs by id. `publish(event)` is called from the refreshing thread."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self.annotations = Annotations(roots)
        self.entries: dict[str, Entry] = {}
        self.studies: dict[str, Place] = {}
        self.problem: str | None = None
        self.publish: Callable[[dict[str, Any]], None] = lambda event: None
        #: Requests that are being served.
        self.waiting = 0
        self._sources: dict[str, Source] = {}
        self._readings: Watchdog[Reading] = Watchdog()
        self._searches: Watchdog[SearchResult] = Watchdog()
        #: Time of the refreshing thread's last progress, by the monotonic clock.
        self._progress = time.monotonic()
        self._searched = -math.inf
        self._count = 0
        self._stop = threading.Event()
        self._gave_back = time.monotonic()
        self._thread: threading.Thread | None = None

    # -- the refreshing thread --------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._refresh_forever, name="refresh", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=3)

    def _refresh_forever(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                self.refresh()
                self.fit_some(FIT_SECONDS)
            except Exception as error:
                # A fault in one file must not end the thread that all other runs depend on.
                log.error("while refreshing: %s: %s", type(error).__name__, error)
            rest = REFRESH_SECONDS - (time.monotonic() - begun)
            # A pause in any case: other threads need the interpreter lock.
            self._stop.wait(max(rest, 0.02 if self._behind() else 0.2))

    def waits_for(self) -> dict[str, float]:
        """Runs with reads that hang, by name, and since when, in seconds since 1970."""
        late = {self._sources[k].place.name: t for k, t in self._readings.waits_for.items()
                if k in self._sources}  # fmt: skip
        searching = {f"the search in {self.roots.searching}": t
                     for t in self._searches.waits_for.values()}  # fmt: skip
        return late | searching

    @property
    def busy(self) -> bool:
        """Whether threads are still running."""
        alive = self._thread is not None and self._thread.is_alive()
        return alive or self._readings.busy or self._searches.busy

    @property
    def stalled(self) -> bool:
        """Whether nothing is read any more."""
        gone = self._thread is not None and not self._thread.is_alive()
        return gone or time.monotonic() - self._progress > STALLED_SECONDS

    def _behind(self) -> bool:
        return any(e.fitted != e.version and e.run is not None for e in self.entries.values())

    def refresh(self) -> None:
        """Search now and then, read new lines, and publish what changed."""
        if time.monotonic() - self._searched > SEARCH_SECONDS:
            self._search()
            self._searched = time.monotonic()
        self._count += 1
        self.annotations.refresh()
        self._annotate()
        entries: dict[int, list[Entry]] = {}
        for entry in self.entries.values():
            entries.setdefault(id(entry.source), []).append(entry)
        for key, source in list(self._sources.items()):
            if self._stop.is_set():
                return
            mine = entries.get(id(source), [])
            over = mine and all(e.about.get("status") in ("ended", "failed", "quiet") for e in mine)
            # The hash spreads the runs that have ended over the refreshes.
            if over and (self._count + hash(key)) % ENDED_EVERY:
                continue
            whole = not mine or mine[0].about["status"] == "reading"
            found = self._readings.ask(key, source.place.name, partial(read, source, whole))
            self._apply(source, mine, found, self._readings.waits_for.get(key))
            self._progress = time.monotonic()

    def _annotate(self) -> None:
        """Publish entries whose annotation has changed."""
        for entry in list(self.entries.values()):
            found = self.annotations.of(*self.annotated_as(entry))
            if found != entry.annotation:
                entry.annotation = found
                self._publish_entry(entry)

    @staticmethod
    def annotated_as(entry: Entry) -> tuple[Path, str]:
        """The path, and the name in it, that the annotation of an entry is kept under."""
        return entry.source.place.path, "" if isinstance(entry.source, OwnRun) else entry.name

    def _apply(
        self, source: Source, mine: Sequence[Entry], found: Reading | None, late: float | None
    ) -> None:
        """Update the entries of a source from a reading, if one has returned."""
        for entry in mine:
            entry.late = late
            entry.about = entry.about if found is None else found.about
        if found is not None and found.runs is not None:
            self._update(source, mine, found, found.runs)
        else:
            for entry in mine:
                self._publish_entry(entry)

    def _search(self) -> None:
        where = f"the search in {self.roots.names[0]}"
        found = self._searches.ask("", where, partial(search, self.roots, list(self._sources)))
        if found is None:
            return
        self.problem = found.problem
        if found.problem is not None:
            return
        studies = {id_of("study", p.name): p for p in found.places if p.kind == "study"}
        if studies.keys() != self.studies.keys():
            self.studies = studies
            self.publish({"kind": "studies"})
        now = {key_of(p): p for p in found.places if p.kind != "study"}
        for key in self._sources.keys() - now.keys():
            gone = self._sources.pop(key)
            self._readings.forget(key)
            for entry in [e for e in self.entries.values() if e.source is gone]:
                del self.entries[entry.id]
                self.publish({"kind": "gone", "id": entry.id})
        for key, place in now.items():
            if key not in self._sources:
                source = self._sources[key] = source_of(place, self.roots)
                if isinstance(source, OwnRun):
                    self._add_unread(source, found.new.get(key, time.time()))

    def _add_unread(self, source: OwnRun, changed: float) -> None:
        """List a run before it is read: reading many takes a while."""
        entry = Entry(id_of(source.place.name, ""), source, None, source.place.path.name)
        entry.about = {"kind": "run", "status": "reading"}
        entry.changed = changed
        study = id_of("study", source.place.name.rpartition("/runs/")[0])
        entry.study = study if study in self.studies else None
        line = entry.summary()
        entry.text = to_json_bytes(line)
        self.entries[entry.id] = entry
        self.publish({"kind": "run", "run": line})

    def _update(
        self, source: Source, mine: Sequence[Entry], found: Reading, runs: Sequence[Run]
    ) -> None:
        """Update, add and remove the entries of a source that has changed."""
        known = {e.id: e for e in mine}
        names = [run.name for run in runs] or [source.place.path.name]
        ids = [id_of(source.place.name, "" if isinstance(source, OwnRun) else n) for n in names]
        for entry in mine:
            if entry.id not in ids:
                del self.entries[entry.id]
                self.publish({"kind": "gone", "id": entry.id})
        for i, (key, name) in enumerate(zip(ids, names, strict=True)):
            entry = known.get(key) or Entry(key, source, None, name)
            run = runs[i] if runs else None
            entry.name, entry.problem, entry.source = name, found.problem, source
            entry.about = found.about
            if not same(entry.run, run):
                entry.changed = time.time() if entry.version else found.written
                entry.run, entry.version = run, entry.version + 1
                if run is None:
                    entry.forecast = None
            self.entries[key] = entry
            self._publish_entry(entry)

    def _publish_entry(self, entry: Entry) -> None:
        """Publish an entry that has changed, with its new points."""
        line = entry.summary()
        if line == entry.published:
            return
        event: dict[str, Any] = {"kind": "run", "run": line}
        if entry.run is not None and entry.published:
            count = len(entry.run)
            if entry.sent < count <= entry.sent + EVENT_POINTS:
                event["from"] = entry.sent
                event["new"] = [
                    entry.run.compute[entry.sent :].tolist(),
                    entry.run.score[entry.sent :].tolist(),
                ]
        entry.sent = 0 if entry.run is None else len(entry.run)
        entry.published, entry.text = line, to_json_bytes(line)
        self.publish(event)

    def listed(self) -> bytes:
        """The whole list as JSON, joined from entries that are encoded when they change."""
        # list(): the refreshing thread may add entries meanwhile.
        return b"[" + b",".join(e.text for e in list(self.entries.values()) if e.text) + b"]"

    # -- forecasts of the list --------------------------------------------------------------------

    def fit_some(self, seconds: float) -> None:
        """Fit runs that changed, the least recently fitted first, for about `seconds`."""
        until = time.monotonic() + seconds
        late = [e for e in self.entries.values() if e.fitted != e.version and e.run is not None]
        late = [e for e in late if time.monotonic() - e.fitted_at > REFIT_SECONDS]
        for entry in sorted(late, key=lambda e: e.fitted_at):
            yield_until = time.monotonic() + YIELD_SECONDS
            while self.waiting and not self._stop.is_set() and time.monotonic() < yield_until:
                time.sleep(0.01)
            if self._stop.is_set() or time.monotonic() > until:
                return
            run, version = entry.run, entry.version
            assert run is not None
            try:
                found, problem = list_forecast(run), None
            except TooFewPoints as error:
                found, problem = None, so_far(error.points)
            except InputError as error:
                found, problem = None, self.roots.without_paths(str(error))
            entry.forecast, entry.problem = found, problem
            entry.fitted, entry.fitted_at = version, time.monotonic()
            if entry.id in self.entries:
                self._publish_entry(entry)
            self._progress = time.monotonic()
        if late and time.monotonic() - self._gave_back > REFIT_SECONDS:
            self._gave_back = time.monotonic()
            give_back_memory()


def same(a: Run | None, b: Run | None) -> bool:
    """Whether two readings of a run have the same points."""
    if a is None or b is None:
        return a is b
    if (a.x_kind, len(a), a.breaks) != (b.x_kind, len(b), b.breaks):
        return False
    if a.signs.keys() != b.signs.keys():
        return False
    pairs = [(a.compute, b.compute), (a.score, b.score)]
    pairs += [(a.signs[name], b.signs[name]) for name in a.signs]
    return all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)


def id_of(*parts: str) -> str:
    """A short name for links, the same from start to start.

    >>> id_of("runs/first", ""), len(id_of("a", "b"))
    ('3a9fa801dbfd', 12)
    """
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]
