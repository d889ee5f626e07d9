"""What a search and a look at a source give, and the watchdog over looks that do not come back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from scalerl.errors import InputError
from scalerl.runs.live_run import file_stamp
from scalerl.runs.record import Run
from scalerl.serve.find import Place, Roots, find
from scalerl.serve.sources import Source
from scalerl.serve.workers import Call, Workers

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds that the watching thread waits for the files of one run. Local files answer within
#: milliseconds; a log of a gigabyte that is read for the first time takes longer.
PATIENCE = 5.0
#: Looks that are left waiting at once; beyond that no further source is looked at, so that a dead
#: file system with a thousand runs does not take a thousand threads.
MAX_LATE = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at a source found. `runs` is None where nothing has changed."""

    runs: list[Run] | None
    problem: str | None
    about: dict[str, Any]
    #: Time of the last write to its files, in seconds since 1970.
    written: float


def read(source: Source, whole: bool) -> Reading:
    """Look at a source; with `whole`, give its runs even if nothing has changed. What goes wrong
    with one source is its own problem."""
    runs: list[Run] | None = None
    problem = None
    about: dict[str, Any] = {}
    try:
        with source.roots.confined(), source.lock:
            if source.look() or whole:
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
        # Whatever a file holds, the other sources are worth reading.
        log.error("%s: %s: %s", source.place.name, type(error).__name__, error)
        runs, problem = [], f"cannot be read: {type(error).__name__}; the server's log says more"
    about = about or {"kind": source.place.kind, "status": "stopped"}
    return Reading(runs, problem, about, written(source.place))


def written(place: Place) -> float:
    """When the files of a place were last written to."""
    files = place.files or tuple(place.path / name for name in ("evals.jsonl", "steps.jsonl"))
    stamps = [found[1] / 1e9 for path in files if (found := file_stamp(path)) is not None]
    return max(stamps, default=time.time())


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search has found. `new`: by key, when a place that was not known before was last
    written to, in seconds since 1970."""

    places: list[Place]
    new: dict[str, float]
    problem: str | None = None


def search(roots: Roots, known: Sequence[str]) -> Searched:
    """Everything under the directories."""
    try:
        places = find(roots)
    except InputError as error:
        return Searched([], {}, roots.without_paths(str(error)))
    new = {key: written(p) for p in places if (key := key_of(p)) not in known}
    return Searched(places, new)


def key_of(place: Place) -> str:
    return f"{place.kind}:{place.name}"


@dataclass
class Watchdog(Generic[T]):
    """Makes calls that read files, one for each key at a time, and waits for each PATIENCE seconds
    at most. A call that takes longer goes on; its result is given when it is asked for again."""

    workers: Workers = field(default_factory=lambda: Workers("read", MAX_LATE + 1))
    _late: dict[str, Call[T]] = field(default_factory=dict)
    #: Late calls for what is gone: their results are dropped.
    _gone: list[Call[T]] = field(default_factory=list)
    #: Keys that were warned of: files that are slow every time fill no log.
    _warned: set[str] = field(default_factory=set)

    def ask(self, key: str, name: str, call: Callable[[], T]) -> T | None:
        """The result of the call, or of the last one for this key that came late; None while there
        is none."""
        job = self._late.get(key)
        if job is None:
            self._gone = [each for each in self._gone if not each.done]
            if len(self._late) + len(self._gone) >= MAX_LATE:
                return None
            job = self.workers.submit(call)
            if not job.wait(PATIENCE):
                self._late[key] = job
                self._warn(key, name)
                return None
        elif not job.done:
            return None
        else:
            del self._late[key]
        return job.result()

    def _warn(self, key: str, name: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            text = "%s: its files have not answered for %g s; the others are read meanwhile"
            log.warning(text, name, PATIENCE)

    def forget(self, key: str) -> None:
        """What the key stood for is gone; a call for it may still come back, to no effect."""
        self._warned.discard(key)
        if key in self._late:
            self._gone.append(self._late.pop(key))

    @property
    def busy(self) -> bool:
        """Whether a call has not come back."""
        return self.workers.busy

    @property
    def waits_for(self) -> dict[str, float]:
        """By key: since when, in seconds since 1970, of the calls that have not come back."""
        return {key: job.begun for key, job in list(self._late.items()) if not job.done}
