"""Everything that was found, watched by one thread.

    look for new places ─► read what has come ─► tell ─► fit who changed ─► tell
          every 3 s            every second              a while, then again from the start

The watching thread itself touches no file: another thread reads each source (`reading`), and where
its files do not answer, the watching thread goes on with the next. No lock is held meanwhile.

A forecast of the list is worked out here, one run after the other, those that somebody waits for
(`questions`) always first.
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
from typing import Any

import numpy as np

from scalerl.curves.fit import fit
from scalerl.curves.forecast import forecast
from scalerl.errors import InputError
from scalerl.files import to_json_bytes
from scalerl.report.markup import ceiling
from scalerl.report.words import KIND
from scalerl.runs.record import Run
from scalerl.serve.find import Place, Roots
from scalerl.serve.memory import give_back_memory
from scalerl.serve.reading import Reading, Searched, Watchdog, key_of, read, search
from scalerl.serve.sources import OwnRun, Source, source_of
from scalerl.text import shorten

log = logging.getLogger(__name__)

#: Seconds between two searches for new places, between two looks at the files, and of fits between.
SEARCH, LOOK, FITTING = 3.0, 1.0, 0.6
#: Looks between two at a run that is over.
SELDOM = 5
#: A run that grows without pause is fitted anew at most this often.
REFIT = 2.0
#: Seconds for which the fits of the list give way to requests that are being answered.
GIVE_WAY = 5.0
#: Seconds without any progress of the watching thread after which it is called stalled. The longest
#: step of its work is one fit, which takes seconds.
STALLED = 60.0
#: Points of the small curve in the list, and points that are sent as news.
SPARK, NEWS = 24, 200


@dataclass
class Entry:
    """One run."""

    id: str
    source: Source
    run: Run | None
    name: str
    #: Counts what has changed about its points.
    version: int = 0
    problem: str | None = None
    forecast: dict[str, Any] | None = None
    fitted: int = -1
    fitted_at: float = 0.0
    changed: float = field(default_factory=time.time)
    told: dict[str, Any] = field(default_factory=dict)
    #: What was told, as it is sent.
    text: bytes = b""
    #: Points that were told of.
    sent: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    #: Of the study that it is a member of.
    study: str | None = None
    #: Since when its files have not answered, in seconds since 1970.
    late: float | None = None

    def summary(self) -> dict[str, Any]:
        """The line of the list."""
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
            **self.about,
            "problem": None if (said := self._problem()) is None else shorten(said, 400),
            "forecast": self.forecast,
            "changed": self.changed,
            "version": self.version,
            "spark": [] if last is None else spark(last),
        }

    def _problem(self) -> str | None:
        if self.late is not None:
            since = time.strftime("%H:%M:%S", time.localtime(self.late))
            return f"its files have not answered since {since}: they are tried on"
        return self.problem or self.about.get("unread")


def spark(run: Run) -> list[float]:
    """A few scores along the compute."""
    pick = np.unique(np.linspace(0, len(run) - 1, min(SPARK, len(run))).round().astype(int))
    return [round(float(v), 3) for v in run.score[pick]]


def outlook(run: Run) -> dict[str, Any]:
    """What the list says of where a run goes."""
    f = fit(run)
    ahead = forecast(f)
    words, spread = ceiling(f)
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
        "next_doubling": ahead.next_doubling.to_dict(),
        "warnings": list(f.warnings),
    }


class Catalogue:
    """All entries by id. `tell(news)` is called from the watching thread."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self.entries: dict[str, Entry] = {}
        self.studies: dict[str, Place] = {}
        self.problem: str | None = None
        self.tell: Callable[[dict[str, Any]], None] = lambda news: None
        #: How many people wait for an answer just now.
        self.waiting = 0
        self._sources: dict[str, Source] = {}
        self._readings: Watchdog[Reading] = Watchdog()
        self._searches: Watchdog[Searched] = Watchdog()
        #: When the watching thread last got on with its work, by the monotonic clock.
        self._progress = time.monotonic()
        self._searched = -math.inf
        self._count = 0
        self._stop = threading.Event()
        self._gave_back = time.monotonic()
        self._thread: threading.Thread | None = None

    # -- the thread -------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=3)

    def _watch(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                self.look()
                self.fit_some(FITTING)
            except Exception as error:
                # Whatever a file holds, the others are worth watching on.
                log.error("while looking: %s: %s", type(error).__name__, error)
            rest = LOOK - (time.monotonic() - begun)
            self._stop.wait(max(rest, 0.02 if self._behind() else 0.2))

    def waits_for(self) -> dict[str, float]:
        """By name: runs whose files do not answer, and since when, in seconds since 1970."""
        late = {self._sources[k].place.name: t for k, t in self._readings.waits_for.items()
                if k in self._sources}  # fmt: skip
        searching = {f"the search in {self.roots.looking_at}": t
                     for t in self._searches.waits_for.values()}  # fmt: skip
        return late | searching

    @property
    def busy(self) -> bool:
        """Whether threads are still at work."""
        alive = self._thread is not None and self._thread.is_alive()
        return alive or self._readings.busy or self._searches.busy

    @property
    def stalled(self) -> bool:
        """Whether nothing is read any more."""
        gone = self._thread is not None and not self._thread.is_alive()
        return gone or time.monotonic() - self._progress > STALLED

    def _behind(self) -> bool:
        return any(e.fitted != e.version and e.run is not None for e in self.entries.values())

    def look(self) -> None:
        """Search (now and then), read what is new, and tell of it."""
        if time.monotonic() - self._searched > SEARCH:
            self._search()
            self._searched = time.monotonic()
        self._count += 1
        entries: dict[int, list[Entry]] = {}
        for entry in self.entries.values():
            entries.setdefault(id(entry.source), []).append(entry)
        for key, source in list(self._sources.items()):
            if self._stop.is_set():
                return
            mine = entries.get(id(source), [])
            over = mine and all(e.about.get("status") in ("ended", "failed", "quiet") for e in mine)
            if over and (self._count + hash(key)) % SELDOM:
                continue
            whole = not mine or mine[0].about["status"] == "reading"
            found = self._readings.ask(key, source.place.name, partial(read, source, whole))
            self._take(source, mine, found, self._readings.waits_for.get(key))
            self._progress = time.monotonic()

    def _take(
        self, source: Source, mine: Sequence[Entry], found: Reading | None, late: float | None
    ) -> None:
        """What a look has found, if it has come back."""
        for entry in mine:
            entry.late = late
            entry.about = entry.about if found is None else found.about
        if found is not None and found.runs is not None:
            self._renew(source, mine, found, found.runs)
        else:
            for entry in mine:
                self._say(entry)

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
            self.tell({"kind": "studies"})
        now = {key_of(p): p for p in found.places if p.kind != "study"}
        for key in self._sources.keys() - now.keys():
            gone = self._sources.pop(key)
            self._readings.forget(key)
            for entry in [e for e in self.entries.values() if e.source is gone]:
                del self.entries[entry.id]
                self.tell({"kind": "gone", "id": entry.id})
        for key, place in now.items():
            if key not in self._sources:
                source = self._sources[key] = source_of(place, self.roots)
                if isinstance(source, OwnRun):
                    self._expect(source, found.new.get(key, time.time()))

    def _expect(self, source: OwnRun, changed: float) -> None:
        """A run is in the list before it is read: many take a while."""
        entry = Entry(id_of(source.place.name, ""), source, None, source.place.path.name)
        entry.about = {"kind": "run", "status": "reading"}
        entry.changed = changed
        study = id_of("study", source.place.name.rpartition("/runs/")[0])
        entry.study = study if study in self.studies else None
        line = entry.summary()
        entry.text = as_sent(line)
        self.entries[entry.id] = entry
        self.tell({"kind": "run", "run": line})

    def _renew(
        self, source: Source, mine: Sequence[Entry], found: Reading, runs: Sequence[Run]
    ) -> None:
        """The entries of a source that has changed."""
        known = {e.id: e for e in mine}
        names = [run.name for run in runs] or [source.place.path.name]
        ids = [id_of(source.place.name, "" if isinstance(source, OwnRun) else n) for n in names]
        for entry in mine:
            if entry.id not in ids:
                del self.entries[entry.id]
                self.tell({"kind": "gone", "id": entry.id})
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
            self._say(entry)

    def _say(self, entry: Entry) -> None:
        """Tell what has changed about an entry, and its new points."""
        line = entry.summary()
        if line == entry.told:
            return
        news: dict[str, Any] = {"kind": "run", "run": line}
        if entry.run is not None and entry.told:
            count = len(entry.run)
            if entry.sent < count <= entry.sent + NEWS:
                news["from"] = entry.sent
                news["new"] = [
                    entry.run.compute[entry.sent :].tolist(),
                    entry.run.score[entry.sent :].tolist(),
                ]
        entry.sent = 0 if entry.run is None else len(entry.run)
        entry.told, entry.text = line, as_sent(line)
        self.tell(news)

    def listed(self) -> bytes:
        """The whole list as JSON, of lines that were made when they changed."""
        return b"[" + b",".join(e.text for e in list(self.entries.values()) if e.text) + b"]"

    # -- forecasts of the list --------------------------------------------------------------------

    def fit_some(self, seconds: float) -> None:
        """Fit those that changed, the longest waiting first, for about so long."""
        until = time.monotonic() + seconds
        late = [e for e in self.entries.values() if e.fitted != e.version and e.run is not None]
        late = [e for e in late if time.monotonic() - e.fitted_at > REFIT]
        for entry in sorted(late, key=lambda e: e.fitted_at):
            give_way = time.monotonic() + GIVE_WAY
            while self.waiting and not self._stop.is_set() and time.monotonic() < give_way:
                time.sleep(0.01)
            if self._stop.is_set() or time.monotonic() > until:
                return
            run, version = entry.run, entry.version
            assert run is not None
            try:
                found, problem = outlook(run), None
            except InputError as error:
                found, problem = None, self.roots.without_paths(str(error))
            entry.forecast, entry.problem = found, problem
            entry.fitted, entry.fitted_at = version, time.monotonic()
            if entry.id in self.entries:
                self._say(entry)
            self._progress = time.monotonic()
        if late and time.monotonic() - self._gave_back > REFIT:
            self._gave_back = time.monotonic()
            give_back_memory()


def as_sent(found: Any) -> bytes:
    return to_json_bytes(found)


def same(a: Run | None, b: Run | None) -> bool:
    """Whether two readings of a run have the same points."""
    if a is None or b is None:
        return a is b
    if a.x_kind != b.x_kind or len(a) != len(b) or a.signs.keys() != b.signs.keys():
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
