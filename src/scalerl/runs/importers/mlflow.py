"""MLflow's two local stores: a directory `mlruns`, and an SQLite file (`mlflow.db`).

    mlruns/EXPERIMENT/RUN/meta.yaml            name, id, lifecycle
    mlruns/EXPERIMENT/RUN/metrics/eval/acc     one line a value: milliseconds, value, step
    mlruns/EXPERIMENT/RUN/params/seed          the value

The SQLite file has the same in its tables runs, metrics and params. Deleted runs are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers import CERTAIN, Importer
from scalerl.runs.importers.sqlite import MAGIC, columns_of, database
from scalerl.runs.importers.text_files import Lines, read_text
from scalerl.runs.limits import Meter
from scalerl.runs.table import Table, from_rows, to_float

#: Files of metrics, or of parameters, in a run's directory. More is not a run of MLflow.
MAX_FILES = 5_000
_TABLES = {
    "runs": {"run_uuid", "name", "lifecycle_stage", "experiment_id"},
    "metrics": {"key", "value", "timestamp", "run_uuid", "step"},
    "params": {"key", "value", "run_uuid"},
}

Point = tuple[str, int, float, float]


def is_store(path: Path) -> bool:
    """Whether an SQLite file is MLflow's."""
    with database(path) as found:
        return all(columns_of(found, name) >= needed for name, needed in _TABLES.items())


def is_run(folder: Path) -> bool:
    """Whether a directory is a run of MLflow's file store."""
    return (folder / "meta.yaml").is_file() and (folder / "metrics").is_dir()


def read_store(path: Path) -> list[Table]:
    """The runs of an SQLite store."""
    with database(path) as found:
        runs = found.execute(
            "SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active'"
        ).fetchall()
        points: dict[str, list[Point]] = {}
        meter = Meter(path)
        # MLflow writes NaN as 0 with this mark, since not every database can hold a NaN.
        nan = "is_nan" if "is_nan" in columns_of(found, "metrics") else "0"
        for run, key, step, time, value, hidden in found.execute(
            f"SELECT run_uuid, key, step, timestamp, value, {nan} FROM metrics ORDER BY timestamp"
        ):
            meter.add(1)
            number = float("nan") if hidden else to_float(value)
            if isinstance(step, int):
                points.setdefault(str(run), []).append((str(key), step, to_float(time), number))
        facts: dict[str, dict[str, str]] = {}
        for run, key, value in found.execute("SELECT run_uuid, key, value FROM params"):
            facts.setdefault(str(run), {})[str(key)] = str(value)
    tables = [
        _table(str(name or run), str(run), points[str(run)], str(path), facts.get(str(run), {}))
        for run, name in runs
        if str(run) in points
    ]
    if not tables:
        raise InputError(f"{path}: the MLflow store has no run with metrics")
    return tables


def read_run(folder: Path) -> list[Table]:
    """A run of the file store; none where it was deleted."""
    meta = read_text(folder / "meta.yaml")
    about = dict(re.findall(r"^(\w+): *(.*)$", meta, re.MULTILINE))
    if about.get("lifecycle_stage", "active") not in ("active", "1"):
        return []
    run = about.get("run_id", folder.name).strip("'\"")
    points: list[Point] = []
    notes: list[str] = []
    meter = Meter(folder)
    for file, key in _below(folder / "metrics"):
        for point in _points(file, key, notes):
            meter.add(1)
            points.append(point)
    facts = {key: read_text(file).strip() for file, key in _below(folder / "params")}
    if not points:
        raise InputError(f"{folder}: the run has logged nothing")
    # Each file holds one metric: rows are made in the order in which a job logged them.
    points.sort(key=lambda point: point[2])
    name = about.get("run_name", "").strip("'\"") or run
    table = _table(name, run, points, str(folder), facts)
    table.notes += notes
    return [table]


def _below(folder: Path) -> Iterator[tuple[Path, str]]:
    if not folder.is_dir():
        return
    for count, file in enumerate(sorted(folder.rglob("*"))):
        if count > MAX_FILES:
            raise InputError(f"{folder}: over {MAX_FILES} files: not a run of MLflow")
        if file.is_file():
            yield file, file.relative_to(folder).as_posix()


def _points(file: Path, key: str, notes: list[str]) -> Iterator[Point]:
    bad = 0
    lines = Lines(file)
    for line in lines:
        parts = line.split()
        # Before version 1.0 there was no step.
        step = to_float(parts[2]) if len(parts) > 2 else 0.0
        if len(parts) < 2 or not step.is_integer():
            bad += 1
            continue
        yield key, int(step), to_float(parts[0]), to_float(parts[1])
    if bad:
        notes.append(f"{bad} lines of {key} that are no points left out")
    if not lines.complete:
        notes.append(f"the last line of {key} has no line end: it may be cut off")


def _table(
    name: str, run: str, points: Iterable[Point], source: str, facts: dict[str, str]
) -> Table:
    """One row a step, in the order of their times; a value logged again begins a new row."""
    rows: list[dict[str, object]] = []
    open_rows: dict[int, dict[str, object]] = {}
    for key, step, time, value in points:
        row = open_rows.get(step)
        if row is None or key in row:
            row = open_rows[step] = {"step": step, "timestamp": time}
            rows.append(row)
        row[key] = value
    return Table(name, from_rows(rows, source), source, facts=facts, id=run)


IMPORTER = Importer(
    read=lambda path: read_run(path) if path.is_dir() else read_store(path),
    sniff=lambda path, head: CERTAIN if head.startswith(MAGIC) and is_store(path) else 0.0,
    is_run=is_run,
)
