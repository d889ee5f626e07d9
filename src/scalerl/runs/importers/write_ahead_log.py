"""SQLite's write-ahead log (`NAME-wal`), written into a copy of its database.

The log is a header of 32 bytes and frames, each a header of 24 bytes and one page. A frame counts
if its salts are those of the log's header and its checksum, which runs over all frames before it,
is right; the first frame that does not count ends the log. Pages are those of the last frame that
commits (https://www.sqlite.org/fileformat2.html#the_write_ahead_log).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO

from scalerl.runs.limits import Meter

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
#: The header's first number; with the last bit set, checksums read the data as big-endian.
_MAGIC = 0x377F0682


def write_into(database: IO[bytes], log: Path, meter: Meter) -> None:
    """Write the committed pages of a log into a database that is opened for writing."""
    with log.open("rb") as file:
        pages, count, size = _committed(file, meter)
        for number, at in pages.items():
            file.seek(at)
            database.seek((number - 1) * size)
            database.write(file.read(size))
    if count:
        database.truncate(count * size)
    # The format of reads and writes: 1 is "no write-ahead log", which the copy does not have.
    database.seek(18)
    database.write(b"\x01\x01")


def _committed(file: IO[bytes], meter: Meter) -> tuple[dict[int, int], int, int]:
    """Where in the log the newest version of each page is, the database's pages after the last
    commit (0 without one), and the bytes of a page."""
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return {}, 0, 0
    magic, _, size, _, *salts, _, _ = _HEADER.unpack(head)
    if magic & ~1 != _MAGIC or not 512 <= size <= 65536:
        return {}, 0, 0
    order = ">" if magic & 1 else "<"
    sums = _checksum(head[:24], (0, 0), order)
    if sums != _HEADER.unpack(head)[6:]:
        return {}, 0, 0
    committed: dict[int, int] = {}
    open_pages: dict[int, int] = {}
    pages = 0
    while len(frame := file.read(_FRAME.size + size)) == _FRAME.size + size:
        meter.add()
        number, count, *rest = _FRAME.unpack_from(frame)
        sums = _checksum(frame[:8] + frame[_FRAME.size :], sums, order)
        if rest != [*salts, *sums] or not number:
            break
        open_pages[number] = file.tell() - size
        if count:  # this frame commits
            committed |= open_pages
            open_pages = {}
            pages = count
    return {n: at for n, at in committed.items() if n <= pages}, pages, size


def _checksum(data: bytes, start: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = start
    for one, other in struct.iter_unpack(f"{order}2I", data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
