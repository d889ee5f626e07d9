"""Opening other people's SQLite files: never written to, never a view, never for long.

Rows that a running job has only in its write-ahead log are read from a copy with these rows written
into it, since opening the original would create files beside it.
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
from scalerl.runs.importers import write_ahead_log
from scalerl.runs.importers.files import check_file
from scalerl.runs.limits import ImportLimits, Meter


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
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: not a readable SQLite file: {reason}") from None


def columns_of(database: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a table; none if it is a view, which could compute anything."""
    kind = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    if kind != ("table",):
        return set()
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


def _limit(database: sqlite3.Connection, meter: Meter) -> None:
    """Stop statements that take longer than any real project needs."""
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
                write_ahead_log.write_into(copy, log, Meter(log))
                copy.flush()
                yield found
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
