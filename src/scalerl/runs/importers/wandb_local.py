"""W&B's own log of a run, `run-*/run-ID.wandb`, written online and offline alike.

The file is a log (`record_log.py`) of protobuf records.
"""

from __future__ import annotations

from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers import wire
from scalerl.runs.importers.record_log import records
from scalerl.runs.importers.records import parse
from scalerl.runs.limits import Meter
from scalerl.runs.table import Table, flatten, from_rows

MAGIC = b":W&B"


def read_wandb(path: Path) -> Table:
    """The history of one run, its display name, group and configuration."""
    table = Table(path.resolve().parent.name, {}, str(path))
    rows: list[dict[str, object]] = []
    meter = Meter(path)
    try:
        for record in records(path, table.notes, "W&B"):
            for number, value in wire.fields(record):
                if number == 2:
                    rows.append(_history(wire.message(value)))
                    meter.add(len(rows[-1]))
                elif number == 17:
                    _read_run(wire.message(value), table)
        table.columns = from_rows(rows, path)
    except (wire.WireError, RecursionError):
        raise InputError(f"{path}: a record of the W&B log is damaged") from None
    if not rows:
        raise InputError(f"{path}: the run has logged nothing")
    return table


def _history(data: bytes) -> dict[str, object]:
    row: dict[str, object] = {}
    for number, value in wire.fields(data):
        if number == 1:
            path, cell = _item(wire.message(value))
            row[path] = cell
        elif number == 2:
            step = dict(wire.fields(wire.message(value))).get(1, 0)
            if isinstance(step, int):
                row.setdefault("_step", wire.signed(step))
    return row


def _item(data: bytes) -> tuple[str, object]:
    """One key and value. Older versions write every value as JSON, newer ones by its type."""
    keys: list[str] = []
    cell: object = None
    for number, value in wire.fields(data):
        if number in (1, 2):
            keys.append(wire.text(value))
        elif number == 5 and isinstance(value, int):
            cell = (value >> 1) ^ -(value & 1)
        elif number == 6:
            cell = wire.number(value, "<d")
        elif number in (8, 16):
            cell = parse(wire.text(value))
    return "/".join(keys), cell


def _read_run(data: bytes, table: Table) -> None:
    run_id = name = ""
    for number, value in wire.fields(data):
        if number == 1:
            run_id = wire.text(value)
        elif number == 8:
            name = wire.text(value)
        elif number == 6:
            table.group = wire.text(value) or None
        elif number == 4:
            for inner, update in wire.fields(wire.message(value)):
                if inner == 1:
                    key, cell = _item(wire.message(update))
                    nested = cell if isinstance(cell, dict) else {"": cell}
                    for sub, fact in flatten(nested):
                        if fact is not None:
                            table.facts[f"{key}/{sub}".rstrip("/")] = str(fact)
    table.name, table.id = name or run_id or table.name, run_id
