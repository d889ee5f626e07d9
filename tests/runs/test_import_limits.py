"""Reading a log costs no more memory and time than the limits allow, whatever the file claims."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from known_curve import FIXTURES

from scalerl.errors import InputError
from scalerl.runs import load_run
from scalerl.runs.importers.sqlite import database
from scalerl.runs.limits import ImportLimits, Meter

#: Peak memory is VmHWM, not ru_maxrss: the latter begins with that of the process that started it.
CHILD = r"""
import json, re, resource, sys
from pathlib import Path
from scalerl.errors import InputError
from scalerl.runs import load_run
try:
    said = repr(load_run(sys.argv[1]))
except InputError as error:
    said = str(error)
use = resource.getrusage(resource.RUSAGE_SELF)
peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
print(json.dumps({"said": said, "megabytes": int(peak[1]) / 1024,
                  "cpu": use.ru_utime + use.ru_stime}))
"""
#: Python with numpy and pyarrow takes 70 MB; a table at the limits several hundred.
MOST_MEGABYTES = 250
#: Each case takes less than 2 processor seconds here.
MOST_CPU_SECONDS = 20


def cost(path: Path, folder: Path, **environment: str) -> dict[str, float | str]:
    """What loading a file in a process of its own says and takes."""
    made = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], env=os.environ | environment | {
            "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    found: dict[str, float | str] = json.loads(made.stdout)
    return found


def small_parquet_of_a_large_table(path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = pa.array([0.5]).take(pa.array([0] * 100_000, pa.int8()))
    table = pa.table({"step": rows, "acc": rows, "loss": rows})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(100):
            writer.write_table(table, row_group_size=100_000)


def parquet_of_long_lists(path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists = pa.array([[0.5] * 1_000_000] * 10)
    steps = pa.array(range(10))
    table = pa.table({"step": steps, "tokens": lists, "val/acc": pa.array([0.1] * 10)})
    pq.write_table(table, path, compression="zstd")


def parquet_of_one_long_text(path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = pa.array(["x" * 100_000]).dictionary_encode().take(pa.array([0] * 20_000))
    steps = pa.array(range(20_000))
    scores = pa.array([0.5] * 20_000)
    pq.write_table(pa.table({"step": steps, "val/acc": scores, "text": names}), path,
                   compression="zstd", store_schema=False)  # fmt: skip


def wide_csv(path: Path) -> None:
    names = ",".join(f"m{i}" for i in range(200_000))
    row = ",".join(["1"] * 200_000)
    path.write_text(f"step,{names}\n" + f"1,{row}\n" * 20)


def row_of_many_keys(path: Path) -> None:
    path.write_text(json.dumps({"step": 1} | {f"m{i}": 0.5 for i in range(600_000)}) + "\n")


def rows_of_different_keys(path: Path) -> None:
    path.write_text("".join(f'{{"step": {i}, "m{i}": 0.5}}\n' for i in range(600_000)))


def json_of_many_columns(path: Path) -> None:
    path.write_text(json.dumps({f"m{i}": [0.5, 0.6] for i in range(100_000)}, indent=0))


def json_of_empty_lists(path: Path) -> None:
    path.write_text('[{"tokens": [' + "[]," * 20_000_000 + "[]]}]")


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "small.parquet": (small_parquet_of_a_large_table, "30,000,000 cells"),
    "wide.csv": (wide_csv, "200,001 columns"),
    "row.jsonl": (row_of_many_keys, "600,001 columns"),
    "rows.jsonl": (rows_of_different_keys, "cells"),
    "columns.json": (json_of_many_columns, "100,000 columns"),
    "lists.json": (json_of_empty_lists, "40,000,004 cells"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_over_the_limits_is_refused_before_it_is_made(name: str, tmp_path: Path) -> None:
    make, message = REFUSED[name]
    make(tmp_path / name)
    found = cost(tmp_path / name, tmp_path)
    said = str(found["said"])
    assert message in said
    assert "set SCALERL_IMPORT_LIMITS=" in said
    assert "\n" not in said
    assert float(found["megabytes"]) < MOST_MEGABYTES
    assert float(found["cpu"]) < MOST_CPU_SECONDS


@pytest.mark.parametrize("make", [parquet_of_long_lists, parquet_of_one_long_text])
def test_what_no_curve_needs_of_a_parquet_file_takes_no_memory(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "history.parquet"
    make(path)
    found = cost(path, tmp_path)
    assert "points" in str(found["said"])
    assert float(found["megabytes"]) < MOST_MEGABYTES


def test_a_sparse_write_ahead_log_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "trackio.db"
    shutil.copy(FIXTURES / "trackio.db", path)
    with (tmp_path / "trackio.db-wal").open("wb") as log:
        log.truncate(6_000_000_000)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    found = cost(path, temporary)
    assert "6 GB is over the limit of 2 GB" in str(found["said"])
    assert float(found["megabytes"]) < MOST_MEGABYTES
    assert not list(temporary.iterdir())


def logged(folder: Path, page_size: int = 4096) -> sqlite3.Connection:
    """A database with rows in its write-ahead log, which a running job holds open."""
    found = sqlite3.connect(folder / "log.db")
    found.execute(f"PRAGMA page_size={page_size}")
    found.execute("PRAGMA journal_mode=WAL")
    found.execute("CREATE TABLE metrics (step, text)")
    for step in range(30):
        found.execute("INSERT INTO metrics VALUES (?, ?)", (step, "x" * (step * 97 % 3000)))
        found.commit()
    found.execute("PRAGMA wal_checkpoint(RESTART)")
    for step in range(30, 40):  # overwrites the log's beginning; older frames stay behind it
        found.execute("INSERT INTO metrics VALUES (?, ?)", (step, "y" * 700))
        found.execute("DELETE FROM metrics WHERE step = ?", (step - 30,))
        found.commit()
    return found


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_rows_of_a_write_ahead_log_are_those_that_sqlite_reads(
    page_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    writer = logged(tmp_path, page_size)
    whole = (tmp_path / "log.db-wal").read_bytes()
    frame = 24 + page_size
    for size in (1, 31, 32, 33, 32 + frame, 32 + 3 * frame + 7, 32 + 12 * frame, len(whole)):
        copies = [tmp_path / f"{size}-{name}.db" for name in ("ours", "theirs")]
        for copy in copies:
            shutil.copy(tmp_path / "log.db", copy)
            (tmp_path / f"{copy.name}-wal").write_bytes(whole[:size])
        query = "SELECT step, text FROM metrics ORDER BY step"
        with database(copies[0]) as found:
            assert not list(temporary.iterdir())  # the copy has no name, so nothing can be left
            ours = found.execute(query).fetchall()
        theirs = sqlite3.connect(copies[1])
        assert ours == theirs.execute(query).fetchall(), size
        theirs.close()
    writer.close()


def test_limits_are_raised_by_a_variable_that_the_error_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,val/acc\n" + "".join(f"{i},{0.1 + i / 100}\n" for i in range(20)))
    monkeypatch.setenv("SCALERL_IMPORT_LIMITS", "cells=30")
    with pytest.raises(InputError, match="SCALERL_IMPORT_LIMITS=cells=60") as caught:
        load_run(path)
    setting = str(caught.value).rpartition("SCALERL_IMPORT_LIMITS=")[2]
    monkeypatch.setenv("SCALERL_IMPORT_LIMITS", setting)
    assert len(load_run(path)) == 20


@pytest.mark.parametrize("text", ["cells", "cells=x", "rows=3", "cells=nan", "cells=0", "=", "5"])
def test_a_limit_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match="write NAME=NUMBER"):
        ImportLimits.from_text(text)


def test_reading_ends_when_its_processor_seconds_are_used() -> None:
    meter = Meter("slow.jsonl")
    meter.limits = ImportLimits(seconds=1)
    with pytest.raises(InputError, match=r"slow\.jsonl: reading it takes over 1 processor seconds"):
        while time.thread_time() < 1000:
            meter.add()
