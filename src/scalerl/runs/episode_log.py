"""The recorded episodes of a run, to filter, sort, search and read: what the page and the command
`scalerl episodes` show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError
from scalerl.runs.episode_filter import EpisodeFilter, Order, in_order
from scalerl.runs.episode_index import EpisodeIndex, EpisodesChanged
from scalerl.runs.episode_table import Entries
from scalerl.runs.episode_text import matcher, prefilter
from scalerl.runs.lines import EPISODE_FILES
from scalerl.runs.tail import parse_line

#: Bytes at the beginning of a line that a list needs: the facts, the question, and the beginning of
#: the answer. The rest of a line that may have 4 MB is not read.
HEAD_BYTES = 32_000
#: Seconds that one call spends on lines without an entry in the index.
INDEX_SECONDS = 2.0
#: Seconds that one call spends on a search in texts, at most.
SEARCH_SECONDS = 0.5
#: Seconds that the first call spends on it: a page asks for the list and the histograms, and shows
#: what both have found so far within 0.2 s.
FIRST_SECONDS = 0.05
#: Searches whose progress is kept.
MAX_SEARCHES = 16
#: Bytes of lines that a search reads at a time.
SEARCH_BYTES = 2_000_000
#: Names of tasks that are looked up: a mixture has some hundred.
MAX_TASKS = 1000
Numbers = npt.NDArray[np.intp]


class Episodes(Protocol):
    """One source of episodes: a file, or the files of another framework."""

    @property
    def entries(self) -> Entries:
        """The entries so far."""
        ...

    @property
    def generation(self) -> int:
        """Changes when entries that were given have become invalid."""
        ...

    @property
    def problem(self) -> str | None:
        """Why something could not be read."""
        ...

    @property
    def length_unit(self) -> str:
        """What the lengths of its episodes count: `tokens`, or `characters`."""
        ...

    def refresh(self, seconds: float | None = None) -> bool:
        """Take in what is new; returns whether that was everything."""
        ...

    def restart(self, *, distrust: bool = False) -> None:
        """Forget everything."""
        ...

    def episode(self, n: int) -> dict[str, Any]:
        """An episode as JSON values, in the form of `EpisodeLine`."""
        ...

    def head(self, n: int) -> dict[str, Any]:
        """The facts of an episode and the beginning of its texts."""
        ...

    def scan(self, numbers: Numbers, phrase: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
        """Those of these episodes that may contain the bytes, with their numbers."""
        ...


class RecordedEpisodes(EpisodeIndex):
    """Episodes in a file that `scalerl train` wrote."""

    length_unit = "tokens"

    def episode(self, n: int) -> dict[str, Any]:
        return parse_line(self.line(n)) or {}

    def head(self, n: int) -> dict[str, Any]:
        data = self.head_bytes(n, HEAD_BYTES)
        return parse_beginning(data)

    def scan(self, numbers: Numbers, phrase: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
        for n, line in self.lines(numbers, SEARCH_BYTES, phrase):
            yield n, parse_line(line) or {}


def parse_beginning(data: bytes) -> dict[str, Any]:
    """The JSON object that begins with these bytes, as far as it goes."""
    from pydantic_core import from_json

    try:
        found = from_json(data, allow_partial="trailing-strings")
    except ValueError:
        found = parse_line(data)
    return found if isinstance(found, dict) else {}


@dataclass
class _Search:
    """The progress of a search in texts: the newest episodes are searched first."""

    #: Numbers in the log that are left, in the order of the search.
    left: Numbers
    #: Numbers that have been found.
    hits: list[int] = field(default_factory=list)
    searched: int = 0
    #: Episodes of the log when it began.
    seen: int = 0
    #: When it began, by the monotonic clock.
    begun: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Selection:
    """The episodes that meet a filter."""

    #: Their numbers in the log.
    numbers: Numbers
    #: Whether all episodes were looked at; if not, the same call continues the search.
    complete: bool
    #: Episodes whose text was searched, and how many there are to search; 0 without a search.
    searched: int = 0
    to_search: int = 0


class EpisodeLog:
    """Episodes of several sources as one list. An episode's id is `SOURCE:NUMBER`, the number
    counted from 0 in the order in which its source has them."""

    def __init__(self, sources: Mapping[str, Episodes]) -> None:
        self.sources = dict(sources)
        #: Whether everything on disk is indexed.
        self.complete = False
        self.entries: Entries
        self._names = list(self.sources)
        self._stamp: tuple[Any, ...] = ()
        self._searches: dict[EpisodeFilter, _Search] = {}
        self._tasks: dict[int, str] = {}
        self._orders: dict[Order, Numbers] = {}

    @staticmethod
    def from_run(path: Path) -> EpisodeLog:
        """The episodes of a run directory."""
        return EpisodeLog(
            {name: RecordedEpisodes(path / kind.FILE) for name, kind in EPISODE_FILES.items()}
        )

    @property
    def problems(self) -> list[str]:
        """What could not be read."""
        return [each.problem for each in self.sources.values() if each.problem is not None]

    def refresh(self, seconds: float | None = INDEX_SECONDS) -> None:
        """Take in what was written since the last call."""
        done = [each.refresh(seconds) for each in self.sources.values()]
        self.complete = all(done)
        generations = tuple(each.generation for each in self.sources.values())
        stamp = (generations, *(len(each.entries) for each in self.sources.values()))
        if stamp == self._stamp:
            return
        if not self._stamp or self._stamp[0] != generations:
            self._searches.clear()
        self._stamp = stamp
        self._orders.clear()
        parts = [each.entries for each in self.sources.values()]
        self.entries = np.concatenate(parts)
        # The last source begins where the others end, and so on.
        self._begins = np.cumsum([0, *(len(part) for part in parts)])

    # -- ids --------------------------------------------------------------------------------------

    def id_of(self, number: int) -> str:
        """The id of the episode with this number in the log."""
        source = self._source_of(number)
        return f"{self._names[source]}:{number - self._begins[source]}"

    def number_of(self, key: str) -> int | None:
        """The number of the episode with this id; None where there is none."""
        name, _, n = key.rpartition(":")
        if name not in self.sources or not (n.isascii() and n.isdecimal() and len(n) < 12):
            return None
        source = self._names.index(name)
        number = int(self._begins[source]) + int(n)
        return number if number < self._begins[source + 1] else None

    def _source_of(self, number: int) -> int:
        return int(np.searchsorted(self._begins, number, "right")) - 1

    def source_name(self, number: int) -> str:
        """The source of an episode."""
        return self._names[self._source_of(number)]

    def count_sources(self, numbers: Numbers) -> dict[str, int]:
        """How many of these episodes each source has."""
        counts = np.histogram(numbers, [*self._begins[:-1], np.inf])[0].tolist()
        return dict(zip(self._names, counts, strict=True))

    @property
    def length_unit(self) -> str:
        """What the lengths of the episodes count."""
        units = {each.length_unit for each in self.sources.values() if len(each.entries)}
        return units.pop() if len(units) == 1 else "tokens"

    # -- selecting --------------------------------------------------------------------------------

    def select(self, wanted: EpisodeFilter, seconds: float | None = SEARCH_SECONDS) -> Selection:
        """The episodes that meet a filter, in the order of the log. A search in texts that is not
        over after some seconds goes on at the next call with the same filter."""
        if wanted.looks_at_text:
            return self._search(wanted, seconds)
        return Selection(np.flatnonzero(self._mask(wanted)), self.complete)

    def _mask(self, wanted: EpisodeFilter) -> npt.NDArray[np.bool_]:
        mask = wanted.mask(self.entries)
        if wanted.source is not None:
            if wanted.source not in self.sources:
                names = ", ".join(self.sources)
                raise InputError(f"no episodes of {wanted.source[:40]!r}: there are {names}")
            source = self._names.index(wanted.source)
            mask[: self._begins[source]] = False
            mask[self._begins[source + 1] :] = False
        return mask

    def _search(self, wanted: EpisodeFilter, seconds: float | None) -> Selection:
        matches = matcher(wanted)
        found = self._searches.pop(wanted, None)
        if found is None or found.seen != len(self.entries):
            # New episodes move the numbers of later sources: the search begins again.
            mask = np.flatnonzero(self._mask(wanted))
            newest = mask[np.argsort(self.entries["step"][mask], kind="stable")[::-1]]
            found = _Search(newest, seen=len(self.entries))
        while len(self._searches) >= MAX_SEARCHES:
            self._searches.pop(next(iter(self._searches)))
        self._searches[wanted] = found
        if seconds is not None:
            # The longer a search has lasted, the less it matters that an answer comes at once.
            seconds = min(seconds, max(time.monotonic() - found.begun, FIRST_SECONDS))
        self._continue(found, matches, prefilter(wanted), seconds)
        return Selection(
            np.asarray(sorted(found.hits), np.intp),
            self.complete and not len(found.left),
            found.searched,
            found.searched + len(found.left),
        )

    def _continue(
        self,
        search: _Search,
        matches: Callable[[dict[str, Any]], bool],
        phrase: bytes,
        seconds: float | None,
    ) -> None:
        end = None if seconds is None else time.monotonic() + seconds
        while len(search.left) and (end is None or time.monotonic() < end):
            part = self._part(search.left)
            for source in np.unique(np.searchsorted(self._begins, part, "right") - 1):
                begin, stop = self._begins[source], self._begins[source + 1]
                own = part[(part >= begin) & (part < stop)] - begin
                for n, episode in self.sources[self._names[source]].scan(own, phrase):
                    if matches(episode):
                        search.hits.append(int(n + begin))
            search.searched += len(part)
            search.left = search.left[len(part) :]

    def _part(self, numbers: Numbers) -> Numbers:
        """The first of these episodes with about SEARCH_BYTES of lines, at least one."""
        some = numbers[:4096]
        sizes = np.cumsum(self.entries["size"][some].astype(np.int64))
        return some[: max(int(np.searchsorted(sizes, SEARCH_BYTES)), 1)]

    def ordered(self, numbers: Numbers, order: Order) -> Numbers:
        """These episodes in an order."""
        if len(numbers) < len(self.entries):
            return numbers[in_order(self.entries[numbers], order)]
        if order not in self._orders:
            self._orders[order] = in_order(self.entries, order)
        return self._orders[order]

    # -- episodes ---------------------------------------------------------------------------------

    def episode(self, number: int) -> dict[str, Any]:
        """A whole episode as JSON values."""
        return self._read(number, whole=True)

    def head(self, number: int) -> dict[str, Any]:
        """The facts of an episode and the beginning of its texts."""
        return self._read(number, whole=False)

    def _read(self, number: int, *, whole: bool) -> dict[str, Any]:
        source = self._source_of(number)
        name = self._names[source]
        episodes, n = self.sources[name], int(number - self._begins[source])
        try:
            return episodes.episode(n) if whole else episodes.head(n)
        except (EpisodesChanged, OSError):
            # The next refresh reads the lines instead of the index.
            episodes.restart(distrust=True)
            raise EpisodesChanged from None

    def task_names(self, numbers: Numbers) -> dict[int, str]:
        """The names of the tasks of these episodes, by their hash."""
        tasks, first = np.unique(self.entries["task"][numbers], return_index=True)
        for task, at in list(zip(tasks.tolist(), first.tolist(), strict=True))[:MAX_TASKS]:
            if task not in self._tasks:
                name = self.head(int(numbers[at])).get("task")
                self._tasks[task] = name if isinstance(name, str) else ""
        return {task: self._tasks.get(task, "") for task in tasks.tolist()}
