"""Reading sources and searching directories, with a bounded wait for reads that hang."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from scalerl.errors import InputError
from scalerl.runs.live_run import file_stamp
from scalerl.runs.record import Run
from scalerl.serve.discovery import Place, Roots, find
from scalerl.serve.sources import Source
from scalerl.serve.threads import DaemonThreads

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds that the refreshing thread waits for the files of one run. Local files take milliseconds;
#: the first reading of a log of a gigabyte takes longer.
PATIENCE = 5.0
#: Reads that may hang at once. Beyond that no further source is read, so that a lost file system
#: with a thousand runs does not take a thousand threads.
MAX_LATE = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a source."""

    #: None where nothing has changed.
    runs: list[Run] | None
    problem: str | None
    about: dict[str, Any]
    #: Time of the last write to its files, in seconds since 1970.
    written: float


def read(source: Source, whole: bool) -> Reading:
    """Read a source; with `whole`, return its runs even if nothing has changed. Errors become the
    reading's `problem`."""
    runs: list[Run] | None = None
    problem = None
    about: dict[str, Any] = {}
    try:
        with source.roots.confined(), source.lock:
            if source.refresh() or whole:
                runs = []
                about = source.about()
                runs = source.runs()
            else:
                about = source.about()
    except InputError as error:
        problem = source.roots.without_paths(str(error))
    except OSError as error:  # the directory has gone, or may not be read
        runs, problem = [], f"cannot be read: {error.strerror or type(error).__name__}"
    except Exception as error:
        # Importers meet files of any content; a fault in one must not stop the other sources.
        log.error("%s: %s: %s", source.place.name, type(error).__name__, error)
        runs, problem = [], f"cannot be read: {type(error).__name__}; see the server's log"
    about = about or {"kind": source.place.kind, "status": "stopped"}
    return Reading(runs, problem, about, written(source.place))


def written(place: Place) -> float:
    """Time of the last write to the files of a place, in seconds since 1970."""
    files = place.files or tuple(place.path / name for name in ("evals.jsonl", "steps.jsonl"))
    stamps = [found[1] / 1e9 for path in files if (found := file_stamp(path)) is not None]
    return max(stamps, default=time.time())


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search."""

    places: list[Place]
    #: For places that were not known before, by key: time of the last write, in seconds since 1970.
    new: dict[str, float]
    problem: str | None = None


def search(roots: Roots, known: Sequence[str]) -> SearchResult:
    """Find everything under the served directories."""
    try:
        places = find(roots)
    except InputError as error:
        return SearchResult([], {}, roots.without_paths(str(error)))
    new = {key: written(p) for p in places if (key := key_of(p)) not in known}
    return SearchResult(places, new)


def key_of(place: Place) -> str:
    return f"{place.kind}:{place.name}"


@dataclass
class Watchdog(Generic[T]):
    """Makes calls that read files, one at a time for each key, and waits up to PATIENCE seconds for
    each. A call that takes longer continues; its result is returned by a later `ask`."""

    threads: DaemonThreads = field(default_factory=lambda: DaemonThreads("read", MAX_LATE + 1))
    #: By key: when the call began, in seconds since 1970, and its future.
    _late: dict[str, tuple[float, Future[T]]] = field(default_factory=dict)
    #: Late calls for sources that have been removed: their results are dropped.
    _gone: list[Future[T]] = field(default_factory=list)
    #: Keys that a warning was logged for, so that files that are always slow do not fill the log.
    _warned: set[str] = field(default_factory=set)

    def ask(self, key: str, name: str, call: Callable[[], T]) -> T | None:
        """The result of the call, or of an earlier late one for this key; None while there is
        none."""
        if key in self._late:
            _, late = self._late[key]
            if not late.done():
                return None
            del self._late[key]
            return late.result()
        self._gone = [each for each in self._gone if not each.done()]
        # Calls for removed sources hold their threads as well.
        if len(self._late) + len(self._gone) >= MAX_LATE:
            return None
        begun, future = time.time(), self.threads.submit(call)
        if wait([future], PATIENCE).not_done:
            self._late[key] = begun, future
            self._warn(key, name)
            return None
        return future.result()

    def _warn(self, key: str, name: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            text = "%s: its files have not answered for %g s; the others are read meanwhile"
            log.warning(text, name, PATIENCE)

    def forget(self, key: str) -> None:
        """Drop the key of a source that was removed; the result of a late call is ignored."""
        self._warned.discard(key)
        if key in self._late:
            self._gone.append(self._late.pop(key)[1])

    @property
    def busy(self) -> bool:
        """Whether a call has not returned."""
        return self.threads.busy

    @property
    def waits_for(self) -> dict[str, float]:
        """Calls that have not returned, by key: their start, in seconds since 1970."""
        return {key: begun for key, (begun, late) in list(self._late.items()) if not late.done()}
