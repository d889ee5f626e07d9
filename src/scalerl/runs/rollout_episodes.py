"""Rollout files of other frameworks as a source of episodes, indexed as our own are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError
from scalerl.files import open_regular
from scalerl.runs.episode_entries import entry_of
from scalerl.runs.episode_index import EpisodeIndex, EpisodesChanged
from scalerl.runs.episode_log import SEARCH_BYTES, Numbers
from scalerl.runs.episode_table import ENTRY, Entries, entries_from
from scalerl.runs.rollouts import RolloutFormat
from scalerl.runs.tail import parse_line

#: Records of a table that are converted and kept at a time.
CHUNK = 256
#: Records of one table: beyond these a file is shown in part.
MAX_RECORDS = 1_000_000


class RolloutFile(Protocol):
    """One file of rollouts."""

    generation: int
    problem: str | None

    @property
    def entries(self) -> Entries: ...

    def refresh(self, seconds: float | None = None) -> bool: ...

    def restart(self, *, distrust: bool = False) -> None: ...

    def episode(self, n: int) -> dict[str, Any]: ...

    def scan(self, numbers: Numbers, phrase: bytes) -> Iterator[tuple[int, dict[str, Any]]]: ...


class RolloutLines(EpisodeIndex):
    """A JSON Lines file of rollouts, followed as it grows."""

    def __init__(self, path: Path, form: RolloutFormat) -> None:
        super().__init__(path)
        self._form = form
        # A file that happens to lie beside is no index of ours.
        self._distrusted = True

    def _made(self, line: bytes) -> dict[str, Any]:
        return self._form.convert(parse_line(line) or {}, self.path) or {}

    def episode(self, n: int) -> dict[str, Any]:
        return self._made(self.line(n))

    def scan(self, numbers: Numbers, phrase: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
        for n, line in self.lines(numbers, SEARCH_BYTES, phrase):
            yield n, self._made(line)


class RolloutTable:
    """A file that is read from its beginning, such as Parquet: read again when it has changed."""

    def __init__(self, path: Path, form: RolloutFormat) -> None:
        self.path = path
        self._form = form
        self.generation = 0
        self.problem: str | None = None
        self._stamp: Any = None
        self._entries: Entries = np.empty(0, ENTRY)
        self._chunk: tuple[int, list[dict[str, Any]]] = (-1, [])

    @property
    def entries(self) -> Entries:
        return self._entries

    def refresh(self, seconds: float | None = None) -> bool:
        try:
            now = self.path.stat()
        except OSError:
            now = None
        stamp = now and (now.st_ino, now.st_size, now.st_mtime_ns)
        if stamp == self._stamp:
            return True
        self._stamp = stamp
        self.generation += 1
        self._chunk, self.problem = (-1, []), None
        entries = []
        try:
            for i, made in enumerate(islice(self._records(), MAX_RECORDS)):
                # A record has no place in the file: its number stands for it.
                line = json.dumps(made, ensure_ascii=True).encode() if made else b""
                entries.append(entry_of(made, line, i) or b"")
        except (InputError, OSError) as error:
            self.problem = f"{self.path.name}: {error}"
        self._entries = entries_from(b"".join(entries))
        return True

    def restart(self, *, distrust: bool = False) -> None:
        self._stamp = None

    def _records(self) -> Iterator[dict[str, Any]]:
        assert self._form.records is not None, "tables have records of their own"
        for record in self._form.records(self.path):
            yield self._form.convert(record, self.path) or {}

    def episode(self, n: int) -> dict[str, Any]:
        record = int(self._entries["offset"][n])
        begin = record - record % CHUNK
        if self._chunk[0] != begin:
            try:
                self._chunk = begin, list(islice(self._records(), begin, begin + CHUNK))
            except InputError:
                raise EpisodesChanged from None
        if record - begin >= len(self._chunk[1]):
            raise EpisodesChanged
        return self._chunk[1][record - begin]

    def scan(self, numbers: Numbers, phrase: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
        for n in np.sort(numbers).tolist():
            yield n, self.episode(n)


class RolloutFiles:
    """Files of rollouts as one source: a file a step, or one file that grows."""

    def __init__(self, files: Sequence[tuple[Path, RolloutFormat]]) -> None:
        self._files: list[RolloutFile] = [
            RolloutLines(path, form) if form.records is None else RolloutTable(path, form)
            for path, form in files
        ]
        self._stamp: tuple[tuple[int, int], ...] = ()
        self._entries: Entries = np.empty(0, ENTRY)
        self._begins: npt.NDArray[np.intp] = np.zeros(1, np.intp)
        self.generation = 0

    @property
    def entries(self) -> Entries:
        return self._entries

    @property
    def problem(self) -> str | None:
        """What could not be read, of the first file with a problem."""
        return next((each.problem for each in self._files if each.problem), None)

    @cached_property
    def length_unit(self) -> str:
        """What the lengths of its episodes count: most formats keep texts without their tokens."""
        rows = self.episode(0).get("rows", []) if len(self._entries) else []
        has_tokens = any("token_ids" in segment for row in rows for segment in row)
        return "tokens" if has_tokens else "characters"

    def refresh(self, seconds: float | None = None) -> bool:
        end = None if seconds is None else time.monotonic() + seconds
        complete = True
        for each in self._files:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            complete &= each.refresh(left)
        stamp = tuple((each.generation, len(each.entries)) for each in self._files)
        if stamp != self._stamp:
            # Only the last file may grow without moving the numbers of others.
            last = (self._stamp or stamp)[-1]
            if stamp[:-1] != self._stamp[:-1] or stamp[-1][0] != last[0]:
                self.generation += 1
            self._stamp = stamp
            parts = [each.entries for each in self._files]
            self._entries = np.concatenate(parts) if parts else np.empty(0, ENTRY)
            self._begins = np.cumsum([0, *(len(part) for part in parts)])
        return complete

    def restart(self, *, distrust: bool = False) -> None:
        for each in self._files:
            each.restart(distrust=distrust)

    def episode(self, n: int) -> dict[str, Any]:
        file = int(np.searchsorted(self._begins, n, "right")) - 1
        return self._files[file].episode(int(n - self._begins[file]))

    def head(self, n: int) -> dict[str, Any]:
        return self.episode(n)

    def scan(self, numbers: Numbers, phrase: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
        files = np.searchsorted(self._begins, numbers, "right") - 1
        for file in np.unique(files).tolist():
            begin = int(self._begins[file])
            for n, episode in self._files[file].scan(numbers[files == file] - begin, phrase):
                yield n + begin, episode


def head_of(path: Path, most: int = 65_536) -> bytes:
    """The first bytes of a file; empty where it cannot be read."""
    try:
        with open_regular(path, buffering=0) as file:
            return bytes(file.read(most))
    except OSError:
        return b""
