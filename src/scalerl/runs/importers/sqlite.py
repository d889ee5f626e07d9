"""SQLite files of other programs, opened read-only, with a limit on the time of a statement.

Rows that a running job has only in its write-ahead log (`NAME-wal`) are read from a copy with these
rows written into it, because opening the original would create files beside it.

The write-ahead log is a header of 32 bytes and frames, each a header of 24 bytes and one page. A
frame counts if its salts are those of the log's header and its checksum, which runs over all frames
before it, is right; the first frame that does not count ends the log. Pages are those of the last
frame that commits (https://www.sqlite.org/fileformat2.html#the_write_ahead_log).
"""

from __future__ import annotations

import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import quote

from scalerl.errors import InputError
from scalerl.runs.importers.text_files import check_file
from scalerl.runs.limits import ImportLimits, Meter
from scalerl.text import one_line

#: The first bytes of every SQLite file.
MAGIC = b"SQLite format 3\0"


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, checked and opened for reading; an InputError that says why not."""
    check_file(path)
    meter = Meter(path)
    try:
        with _open(path) as found:
            _limit(found, meter)
            if found.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise InputError(f"{path}: the SQLite file is damaged")
            yield found
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        meter.add()  # where the time is used up, SQLite says only "interrupted"
        reason = one_line(str(error), 120)
        raise InputError(f"{path}: not a readable SQLite file: {reason}") from None


def columns_of(database: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a table; none if it is a view, which could compute anything."""
    kind = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    if kind != ("table",):
        return set()
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


def _limit(database: sqlite3.Connection, meter: Meter) -> None:
    """Stop statements that take longer than any real project needs."""
    # Every million instructions of SQLite's virtual machine, which take some milliseconds.
    database.set_progress_handler(meter.is_out_of_time, 1_000_000)
    database.execute("PRAGMA trusted_schema=OFF")


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    log = path.with_name(path.name + "-wal")
    if log.is_file() and (size := check_file(log)):
        ImportLimits.from_environment().check(path, "bytes", check_file(path) + size)
        with _merged(path, log) as database:
            yield database
    else:
        with closing(_connect(path, "mode=ro&immutable=1")) as database:
            yield database


def _connect(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True, timeout=5)


@contextmanager
def _merged(path: Path, log: Path) -> Iterator[sqlite3.Connection]:
    """The database with its write-ahead log written into it, as a copy without a name."""
    try:
        with tempfile.NamedTemporaryFile(prefix="scalerl-", delete=False) as copy:
            try:
                # Not immutable=1: SQLite would take the size that the file has now, 0, for good.
                found = _connect(Path(copy.name), "mode=ro")
            finally:
                # SQLite has opened the file, and reads from it only when it is asked something.
                # Without a name the copy is gone with this process, even if that is killed.
                Path(copy.name).unlink()
            with closing(found):
                with path.open("rb") as original:
                    shutil.copyfileobj(original, copy, 1 << 20)
                _write_log_into(copy, log, Meter(log))
                copy.flush()
                yield found
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


# -- the write-ahead log --------------------------------------------------------------------------


_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
#: The header's first number; with the last bit set, checksums read the data as big-endian.
_MAGIC = 0x377F0682


def _write_log_into(database: IO[bytes], log: Path, meter: Meter) -> None:
    """Write the committed pages of a write-ahead log into a database opened for writing."""
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
