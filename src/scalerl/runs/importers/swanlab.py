"""SwanLab's own log of a run, `run-*/*.swanlab`, written online and offline alike.

The file is a log (`protobuf.py`) of records: JSON up to version 0.6 (`backup.swanlab`), protobuf
later (`run-ID.swanlab`). The run's configuration is `files/config.yaml` beside it.
"""

from __future__ import annotations

import re
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers import CERTAIN, Importer, by_suffix, protobuf
from scalerl.runs.importers.json_logs import parse
from scalerl.runs.importers.protobuf import leveldb_records
from scalerl.runs.importers.text_files import read_text
from scalerl.runs.limits import Meter
from scalerl.runs.table import Table, from_rows

MAGIC = b":SWL"
#: Prefix of the metrics of the machine, which the library logs by itself.
_OF_THE_MACHINE = "__swanlab__."


def read_swanlab(path: Path) -> Table:
    """The scalars of one run, its name, id and configuration."""
    table = Table(path.resolve().parent.name, {}, str(path))
    rows: dict[int, dict[str, object]] = {}
    meter = Meter(path)
    try:
        for record in leveldb_records(path, table.notes, "SwanLab"):
            read = _from_json if record.startswith(b"{") else _from_wire
            point = read(record, table)
            meter.add(point is not None)
            if point is not None and not point[1].startswith(_OF_THE_MACHINE):
                step, key, value = point
                rows.setdefault(step, {"step": step})[key] = value
    except (protobuf.ProtobufError, RecursionError):
        raise InputError(f"{path}: a record of the SwanLab log is damaged") from None
    if not rows:
        raise InputError(f"{path}: the run has logged nothing")
    table.columns = from_rows(rows.values(), path)
    _read_config(path.parent / "files" / "config.yaml", table)
    return table


def _from_json(record: bytes, table: Table) -> tuple[int, str, object] | None:
    value = parse(record.decode("utf-8", "replace"))
    data = value.get("data") if isinstance(value, dict) else None
    if not isinstance(data, dict):
        raise protobuf.ProtobufError("not a record")
    if value.get("model_type") == "Experiment":
        table.id = str(data.get("id") or "")
        table.name = str(data.get("name") or "") or table.id or table.name
    metric = data.get("metric")
    if value.get("model_type") != "Scalar" or not isinstance(metric, dict):
        return None
    step = data.get("step", metric.get("index"))
    return (step, str(data.get("key")), metric.get("data")) if isinstance(step, int) else None


def _from_wire(record: bytes, table: Table) -> tuple[int, str, object] | None:
    for number, value in protobuf.fields(record):
        if number == 10:
            start = dict(protobuf.fields(protobuf.message(value)))
            table.id = protobuf.text(start.get(10, b""))
            table.name = protobuf.text(start.get(4, b"")) or table.id or table.name
        elif number == 13:
            scalar = dict(protobuf.fields(protobuf.message(value)))
            step = scalar.get(2, 0)
            inside = dict(protobuf.fields(protobuf.message(scalar.get(5, b""))))
            if isinstance(step, int) and 1 in inside:
                key = protobuf.text(scalar.get(1, b""))
                return protobuf.signed(step), key, protobuf.number(inside[1], "<d")
    return None


def _read_config(path: Path, table: Table) -> None:
    """Keys and values of the configuration's first level: the file is YAML of one fixed layout."""
    try:
        text = read_text(path) if path.is_file() else ""
    except InputError:
        table.notes.append("config.yaml beside it cannot be read: no configuration")
        return
    for key, body in re.findall(r"^([^\s:#][^:\n]*):\n((?:[ ]+.*\n?)*)", text, re.MULTILINE):
        value = re.search(r"^  value: (.+)$", body, re.MULTILINE)
        if value:
            table.facts[key.strip("'\"")] = value[1].strip().strip("'\"")


IMPORTER = Importer(
    read=lambda path: [read_swanlab(path)],
    sniff=lambda path, head: CERTAIN if head.startswith(MAGIC) else 0.0,
    is_log=by_suffix(".swanlab"),
)
