"""SQLite files of other programs, opened read-only, with a limit on the time of a statement.

Rows that a running job has only in its write-ahead log (`NAME-wal`) are read from a copy into which
SQLite has written these rows, because opening the original would create files beside it.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
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
        found = _merged(path, log)
    else:
        found = _connect(path, "mode=ro&immutable=1")
    with closing(found):
        yield found


def _connect(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True, timeout=5)


def _merged(path: Path, log: Path) -> sqlite3.Connection:
    """The database with its write-ahead log written into it, as a copy without a name."""
    try:
        # The directory goes before anything is read: the open copy is gone with this process, even
        # if that is killed.
        with tempfile.TemporaryDirectory(prefix="scalerl-") as folder:
            copy = Path(folder) / "copy.db"
            shutil.copyfile(path, copy)
            shutil.copyfile(log, f"{copy}-wal")
            found = _connect(copy, "mode=rw")
            try:
                found.execute("PRAGMA journal_mode=DELETE")
            except sqlite3.Error:
                found.close()
                raise
            return found
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
