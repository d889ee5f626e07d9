"""Index of a file of recorded episodes, kept in memory while the file grows.

    index    entries of lines that were indexed when they were written  ─► taken as they are
    lines    everything that no entry covers                            ─► parsed, in file order

Memory is one entry (56 bytes) an episode; lines are read when they are shown. Each byte of the file
is parsed at most once, and none of it where the writer kept the index up to date.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from scalerl.files import MARK, LineReader, open_regular
from scalerl.runs.episode_entries import entry_of, index_path
from scalerl.runs.episode_table import ENTRY, Entries, are_whole, entries_from
from scalerl.runs.tail import parse_line

#: Bytes of lines that are parsed between two looks at the clock.
PART_BYTES = 4_000_000
#: Entries of an index that are compared with their lines when it is first read: a file that was
#: edited by hand has other bytes from the edit on.
SAMPLED = 16
#: Bytes read of an index at a time: 75,000 episodes.
INDEX_BYTES = 75_000 * ENTRY.itemsize


class EpisodesChanged(Exception):
    """The lines are not those that were indexed: the file was replaced meanwhile."""


class EpisodeIndex:
    """The entries of one file of episodes.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "training.jsonl"
    ...     _ = path.write_text('{"step": 1, "reward": 0.5}\\n{"step": 2}\\n')
    ...     index = EpisodeIndex(path)
    ...     index.refresh(), index.entries["step"].tolist(), index.line(0)
    (True, [1, 2], b'{"step": 1, "reward": 0.5}')
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Incremented when entries that were given have become invalid.
        self.generation = 0
        #: Whether everything in the file is indexed.
        self.complete = False
        #: Why the file could not be read at the last refresh.
        self.problem: str | None = None
        self._distrusted = False
        self._forget()

    def _forget(self) -> None:
        self._reader = LineReader()
        self._inode = -1
        self._room: Entries = np.empty(0, ENTRY)
        self._count = 0
        #: Bytes of the index that were read, and its entries for lines that were not reached yet.
        self._index_at = 0
        self._ahead: Entries = np.empty(0, ENTRY)

    def __len__(self) -> int:
        return self._count

    @property
    def entries(self) -> Entries:
        """The entries so far, in the order of the file."""
        return self._room[: self._count]

    # -- growing ----------------------------------------------------------------------------------

    def refresh(self, seconds: float | None = None) -> bool:
        """Index what was added since the last call, for about `seconds`; returns whether all is
        indexed."""
        end = None if seconds is None else time.monotonic() + seconds
        self.problem = None
        try:
            with open_regular(self.path, buffering=0) as file:
                self._check_same(file)
                size = os.fstat(file.fileno()).st_size
                self._read_index(file, size)
                self.complete = self._index_lines(file, size, end)
        except FileNotFoundError:
            if self._count:
                self.restart()
            self.complete = True
        except OSError as error:
            self.problem = f"{self.path.name}: {error.strerror or error}: not read"
            self.complete = True
        return self.complete

    def restart(self, *, distrust: bool = False) -> None:
        """Forget everything; with `distrust`, the index on disk is not used again."""
        self._distrusted |= distrust
        self._forget()
        self.generation += 1

    def _check_same(self, file: IO[bytes]) -> None:
        """Start again where the file was cut or replaced."""
        inode = os.fstat(file.fileno()).st_ino
        if self._reader.at:
            mark = self._reader.mark
            there = os.pread(file.fileno(), len(mark), self._reader.at - len(mark))
            if inode != self._inode or there != mark:
                # A resumed run has written a new index as well.
                self._distrusted = False
                self.restart()
        self._inode = inode

    def _index_lines(self, file: IO[bytes], size: int, end: float | None) -> bool:
        """Follow the lines, by entries of the index where there are some; whether the end of the
        file was reached."""
        while self._reader.at < size:
            if self._take_ahead(file):
                continue
            at = self._reader.at
            next_known = int(self._ahead["offset"][0]) if len(self._ahead) else size
            self._parse(file, min(next_known - at, PART_BYTES))
            if self._reader.at == at:  # a last line without its end
                return True
            if end is not None and time.monotonic() > end:
                return self._reader.at >= size
        return True

    def _parse(self, file: IO[bytes], most: int) -> None:
        found = []
        for at, line in self._reader.read_placed(file, max(most, 1)):
            entry = entry_of(self._made(line), line, at)
            if entry is not None:
                found.append(entry)
        self._add(entries_from(b"".join(found)))

    def _made(self, line: bytes) -> dict[str, Any]:
        """The episode of a line, in JSON values; an empty one of a damaged line."""
        return parse_line(line) or {}

    def _add(self, entries: Entries) -> None:
        needed = self._count + len(entries)
        if needed > len(self._room):
            room = np.empty(max(needed, 2 * len(self._room), 1024), ENTRY)
            room[: self._count] = self.entries
            self._room = room
        self._room[self._count : needed] = entries
        self._count = needed

    # -- the index on disk ------------------------------------------------------------------------

    def _read_index(self, file: IO[bytes], size: int) -> None:
        """Read the entries that were added to the index, and check some against their lines."""
        if self._distrusted:
            return
        new = []
        with suppress(OSError), open_regular(index_path(self.path), buffering=0) as index:
            while data := os.pread(index.fileno(), INDEX_BYTES, self._index_at):
                entries = entries_from(data)
                if not len(entries):
                    break
                self._index_at += entries.nbytes
                new.append(entries[are_whole(entries)])
        if not new:
            return
        found = np.concatenate([self._ahead, *new])
        # Offsets as Python integers cannot overflow: sizes have 32 bits and files less than 63.
        inside = (found["offset"] < size) & (found["offset"] >= self._reader.at)
        found = found[inside]
        found = found[np.argsort(found["offset"], kind="stable")]
        if not all(self._matches(file, entry) for entry in _spread(found)):
            self._distrusted = True
            found = found[:0]
        self._ahead = found

    def _matches(self, file: IO[bytes], entry: np.void) -> bool:
        """Whether the line of an entry has its CRC, and begins and ends where it says."""
        try:
            self._line(file.fileno(), entry)
        except EpisodesChanged:
            return False
        at = int(entry["offset"])
        return at == 0 or os.pread(file.fileno(), 1, at - 1) == b"\n"

    def _take_ahead(self, file: IO[bytes]) -> bool:
        """Take the entries that follow one another without a gap from the present position."""
        known = self._ahead
        if not len(known):
            return False
        ends = known["offset"] + known["size"]
        # The positions at which the entries should begin, one behind the other.
        begins = np.concatenate([[np.uint64(self._reader.at)], ends[:-1]])
        wrong = np.flatnonzero(known["offset"] != begins)
        n = int(wrong[0]) if len(wrong) else len(known)
        if not n:
            # Entries of what was parsed already, or that overlap, would be met never.
            if known["offset"][0] < self._reader.at:
                self._ahead = known[known["offset"] >= self._reader.at]
                return len(self._ahead) > 0 and self._take_ahead(file)
            return False
        end = int(ends[n - 1])
        mark = os.pread(file.fileno(), min(MARK, end), max(end - MARK, 0))
        if not mark.endswith(b"\n"):
            self._distrusted, self._ahead = True, known[:0]
            return False
        self._add(known[:n])
        self._reader.jump(end, mark)
        self._ahead = known[n:]
        return True

    # -- lines ------------------------------------------------------------------------------------

    def line(self, n: int) -> bytes:
        """Line number n, without its end. Raises EpisodesChanged where it is not the one that was
        indexed, and OSError."""
        with open_regular(self.path, buffering=0) as file:
            return self._line(file.fileno(), self.entries[n])

    def head_bytes(self, n: int, most: int) -> bytes:
        """The first `most` bytes of a line."""
        entry = self.entries[n]
        with open_regular(self.path, buffering=0) as file:
            size = min(int(entry["size"]) - 1, most)
            return os.pread(file.fileno(), size, int(entry["offset"]))

    def lines(
        self, numbers: npt.NDArray[np.intp], most: int, phrase: bytes = b""
    ) -> Iterator[tuple[int, bytes]]:
        """Lines with their numbers, in the order of the file; with a `phrase` in lower case only
        those that contain it, in any case. At most `most` bytes are held at a time, and a line."""
        chosen = np.sort(numbers)
        entries = self.entries[chosen]
        begins = entries["offset"].astype(np.int64)
        ends = begins + entries["size"]
        with open_regular(self.path, buffering=0) as file:
            at = 0
            while at < len(chosen):
                stop = _together(begins, ends, at, most)
                data = os.pread(file.fileno(), int(ends[stop - 1] - begins[at]), int(begins[at]))
                # Most blocks hold no match: one search in all of a block is faster than many.
                if not phrase or phrase in data.lower():
                    for i in range(at, stop):
                        line = data[begins[i] - begins[at] : ends[i] - begins[at]][:-1]
                        if not phrase or phrase in line.lower():
                            yield int(chosen[i]), line
                at = stop

    @staticmethod
    def _line(descriptor: int, entry: np.void) -> bytes:
        size = int(entry["size"])
        data = os.pread(descriptor, size, int(entry["offset"]))
        if len(data) != size or data[-1:] != b"\n" or zlib.crc32(data[:-1]) != entry["crc"]:
            raise EpisodesChanged
        return data[:-1]


def _together(
    begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], at: int, most: int
) -> int:
    """How far lines follow one another without a gap, and within `most` bytes, from number `at`."""
    stop = at + 1
    while stop < len(begins) and begins[stop] == ends[stop - 1] and ends[stop] - begins[at] <= most:
        stop += 1
    return stop


def _spread(entries: Entries) -> Entries:
    """SAMPLED of the entries, evenly spaced, the first and the last among them."""
    if len(entries) <= SAMPLED:
        return entries
    spread: Entries = entries[np.linspace(0, len(entries) - 1, SAMPLED).astype(int)]
    return spread
