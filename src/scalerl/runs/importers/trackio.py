"""trackio's SQLite file: one project, one row for each logged step of each run.

The database is never written to. Rows that a running trackio has only in its write-ahead log are
read from a copy in a temporary directory, since opening the original would create files beside
it.
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
from scalerl.runs.importers.records import parse
from scalerl.runs.table import Table, flatten, from_rows

#: Reading a project takes at most this long.
MAX_SECONDS = 60.0
_NEEDED = {"run_name", "step", "metrics", "timestamp"}


def read_trackio(path: Path) -> list[Table]:
    """The runs of a trackio project."""
    check_file(path)
    try:
        with _open(path) as database:
            _limit(database)
            if database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise InputError(f"{path}: the SQLite file is damaged")
            present = _columns(database, "metrics")
            if not present >= _NEEDED:
                raise InputError(f"{path}: an SQLite file, but not trackio's: it has no metrics")
            run = "run_id" if "run_id" in present else "run_name"
            rows = database.execute(
                f"SELECT {run}, run_name, step, timestamp, metrics FROM metrics ORDER BY id"
            ).fetchall()
            configs = _configs(database)
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: not a readable SQLite file: {reason}") from None
    return _tables(rows, configs, path)


def _tables(
    rows: list[tuple[object, ...]], configs: dict[str, dict[str, str]], path: Path
) -> list[Table]:
    runs: dict[str, tuple[str, list[dict[str, object]]]] = {}
    bad: dict[str, int] = {}
    for run, run_name, step, timestamp, text in rows:
        metrics = _json(text)
        _, records = runs.setdefault(str(run), (str(run_name), []))
        if isinstance(metrics, dict):
            records.append({"step": step, "timestamp": timestamp} | metrics)
        else:
            bad[str(run)] = bad.get(str(run), 0) + 1
    tables = []
    for run, (name, records) in runs.items():
        try:
            table = Table(name, from_rows(records), str(path), facts=configs.get(name, {}))
        except RecursionError:
            raise InputError(f"{path}: nested too deeply for a log of metrics") from None
        table.group = table.facts.get("_Group")
        if run in bad:
            table.notes.append(f"{bad[run]} rows that are not JSON left out")
        tables.append(table)
    if not tables:
        raise InputError(f"{path}: the trackio project has no logged rows")
    return tables


def _configs(database: sqlite3.Connection) -> dict[str, dict[str, str]]:
    if not _columns(database, "configs") >= {"run_name", "config"}:
        return {}
    configs = {}
    for name, text in database.execute("SELECT run_name, config FROM configs"):
        config = _json(text)
        if isinstance(config, dict):
            configs[str(name)] = {k: str(v) for k, v in flatten(config) if v is not None}
    return configs


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
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


def _json(cell: object) -> object:
    """The value of a JSON cell, which newer versions write as bytes."""
    if isinstance(cell, bytes):
        try:
            cell = cell.decode()
        except UnicodeDecodeError:
            return None
    return parse(cell) if isinstance(cell, str) else None


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
