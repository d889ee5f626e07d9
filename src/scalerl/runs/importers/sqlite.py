"""Opening other people's SQLite files: never written to, never a view, never for long.

Rows that a running job has only in its write-ahead log are read from a copy in a temporary
directory, since opening the original would create files beside it.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from scalerl.errors import InputError
from scalerl.runs.importers.files import check_file

#: Reading a file takes at most this long.
MAX_SECONDS = 60.0


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, checked and opened for reading; an InputError that says why not."""
    check_file(path)
    try:
        with _open(path) as found:
            _limit(found)
            if found.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise InputError(f"{path}: the SQLite file is damaged")
            yield found
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: not a readable SQLite file: {reason}") from None


def columns_of(database: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a table; none if it is a view, which could compute anything."""
    kind = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    if kind != ("table",):
        return set()
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


def _limit(database: sqlite3.Connection) -> None:
    """Stop statements that take longer than any real project needs."""
    deadline = time.monotonic() + MAX_SECONDS
    database.set_progress_handler(lambda: time.monotonic() > deadline, 1_000_000)
    database.execute("PRAGMA trusted_schema=OFF")


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    log = path.with_name(path.name + "-wal")
    if log.is_file() and log.stat().st_size:
        with tempfile.TemporaryDirectory(prefix="scalerl-") as folder:
            copy = Path(folder) / "copy.db"
            try:
                shutil.copyfile(path, copy)
                shutil.copyfile(log, copy.with_name(copy.name + "-wal"))
            except OSError as error:
                raise InputError(f"{path}: {error.strerror or error}") from None
            with closing(sqlite3.connect(copy, timeout=5)) as database:
                yield database
        return
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True, timeout=5)) as database:
        yield database
