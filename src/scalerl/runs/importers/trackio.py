"""trackio's SQLite file: one project, one row for each logged step of each run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers import LIKELY, Importer, by_suffix
from scalerl.runs.importers.json_logs import parse, to_columns
from scalerl.runs.importers.sqlite import MAGIC, columns_of, database
from scalerl.runs.limits import Meter
from scalerl.runs.table import Table, to_facts

_NEEDED = {"run_name", "step", "metrics", "timestamp"}


def read_trackio(path: Path) -> list[Table]:
    """The runs of a trackio project."""
    with database(path) as found:
        present = columns_of(found, "metrics")
        if not present >= _NEEDED:
            raise InputError(
                f"{path}: an SQLite file, but not trackio's or MLflow's: it has no metrics"
            )
        run = "run_id" if "run_id" in present else "run_name"
        rows = found.execute(
            f"SELECT {run}, run_name, step, timestamp, metrics FROM metrics ORDER BY id"
        )
        return _tables(rows, _configs(found), path)


def _tables(
    rows: Iterable[tuple[object, ...]], configs: dict[str, dict[str, str]], path: Path
) -> list[Table]:
    runs: dict[str, tuple[str, list[dict[str, object]]]] = {}
    bad: dict[str, int] = {}
    meter = Meter(path)
    for run, run_name, step, timestamp, text in rows:
        metrics = json_cell(text)
        _, records = runs.setdefault(str(run), (str(run_name), []))
        if isinstance(metrics, dict):
            meter.add(len(metrics))
            records.append({"step": step, "timestamp": timestamp} | metrics)
        else:
            bad[str(run)] = bad.get(str(run), 0) + 1
    tables = []
    for run, (name, records) in runs.items():
        facts = configs.get(name, {})
        table = Table(name, to_columns(records, path), str(path), facts=facts, id=run)
        table.group = facts.get("_Group")
        if run in bad:
            table.notes.append(f"{bad[run]} rows that are not JSON left out")
        tables.append(table)
    if not tables:
        raise InputError(f"{path}: the trackio project has no logged rows")
    return tables


def _configs(found: sqlite3.Connection) -> dict[str, dict[str, str]]:
    if not columns_of(found, "configs") >= {"run_name", "config"}:
        return {}
    configs = {}
    for name, text in found.execute("SELECT run_name, config FROM configs"):
        config = json_cell(text)
        if isinstance(config, dict):
            configs[str(name)] = to_facts(config)
    return configs


def json_cell(cell: object) -> object:
    """The value of a JSON cell, which newer versions write as bytes."""
    if isinstance(cell, bytes):
        try:
            cell = cell.decode()
        except UnicodeDecodeError:
            return None
    return parse(cell) if isinstance(cell, str) else None


IMPORTER = Importer(
    read=read_trackio,
    # Any SQLite file that is not MLflow's: where it has no table of metrics, reading it says so.
    sniff=lambda path, head: LIKELY if head.startswith(MAGIC) else 0.0,
    is_log=by_suffix(".db", ".sqlite"),
)
