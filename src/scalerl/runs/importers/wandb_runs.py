"""W&B runs: its own log `run-*/run-ID.wandb`, written online and offline alike, and its server.

The file is a LevelDB log of protobuf records (`protobuf.py`).
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from scalerl.errors import InputError
from scalerl.runs.importers import CERTAIN, Importer, by_suffix, protobuf
from scalerl.runs.importers.json_logs import parse
from scalerl.runs.importers.protobuf import leveldb_records
from scalerl.runs.limits import Meter
from scalerl.runs.table import Table, from_rows, to_facts
from scalerl.text import one_line

MAGIC = b":W&B"


def read_wandb(path: Path) -> Table:
    """The history of one run, its display name, group and configuration."""
    table = Table(path.resolve().parent.name, {}, str(path))
    rows: list[dict[str, object]] = []
    meter = Meter(path)
    try:
        for record in leveldb_records(path, table.notes, "W&B"):
            for number, value in protobuf.fields(record):
                # Field numbers, here and below, are those of wandb_internal.proto.
                if number == 2:
                    rows.append(_history(protobuf.message(value)))
                    meter.add(len(rows[-1]))
                elif number == 17:
                    _read_run(protobuf.message(value), table)
        table.columns = from_rows(rows, path)
    except (protobuf.ProtobufError, RecursionError):
        raise InputError(f"{path}: a record of the W&B log is damaged") from None
    if not rows:
        raise InputError(f"{path}: the run has logged nothing")
    return table


def _history(data: bytes) -> dict[str, object]:
    row: dict[str, object] = {}
    for number, value in protobuf.fields(data):
        if number == 1:
            path, cell = _item(protobuf.message(value))
            row[path] = cell
        elif number == 2:
            step = dict(protobuf.fields(protobuf.message(value))).get(1, 0)
            if isinstance(step, int):
                row.setdefault("_step", protobuf.signed(step))
    return row


def _item(data: bytes) -> tuple[str, object]:
    """One key and value. Older versions write every value as JSON, newer ones by its type."""
    keys: list[str] = []
    cell: object = None
    for number, value in protobuf.fields(data):
        if number in (1, 2):
            keys.append(protobuf.text(value))
        elif number == 5 and isinstance(value, int):
            # A zigzag integer: 0, -1, 1, -2 … are written as 0, 1, 2, 3 …
            cell = (value >> 1) ^ -(value & 1)
        elif number == 6:
            cell = protobuf.number(value, "<d")
        elif number in (8, 16):
            cell = parse(protobuf.text(value))
    return "/".join(keys), cell


def _read_run(data: bytes, table: Table) -> None:
    run_id = name = ""
    for number, value in protobuf.fields(data):
        if number == 1:
            run_id = protobuf.text(value)
        elif number == 8:
            name = protobuf.text(value)
        elif number == 6:
            table.group = protobuf.text(value) or None
        elif number == 4:
            for inner, update in protobuf.fields(protobuf.message(value)):
                if inner == 1:
                    key, cell = _item(protobuf.message(update))
                    table.facts |= to_facts({key: cell})
    table.name, table.id = name or run_id or table.name, run_id


# -- runs on a server -----------------------------------------------------------------------------


def read_wandb_online(address: str, wanted: Callable[[str], bool]) -> list[Table]:
    """The runs at ENTITY/PROJECT or ENTITY/PROJECT/RUN_ID, every row of their histories.

    Of runs with a name that is not wanted only the name is fetched.
    """
    parts = [part for part in address.strip("/").split("/") if part]
    if len(parts) == 4 and parts[2] == "runs":
        del parts[2]
    if len(parts) not in (2, 3):
        raise InputError(f"wandb:{address}: write wandb:ENTITY/PROJECT or wandb:ENTITY/PROJECT/RUN")
    try:
        import wandb
    except ImportError:
        raise InputError(
            "reading runs from W&B's server needs wandb: pip install 'scalerl[wandb]'"
        ) from None
    if not _has_key():
        raise InputError("reading runs from W&B's server needs a key: run `wandb login` first")
    broken = (wandb.errors.Error, OSError, ValueError, TypeError, AttributeError)
    try:
        api = wandb.Api(timeout=60)
        path = "/".join(parts)
        runs = [api.run(path)] if len(parts) == 3 else list(api.runs(path))
        tables = [_table(run, path, wanted) for run in runs]
    except broken as error:
        reason = one_line(str(error), 160)
        raise InputError(f"wandb:{address}: {reason or type(error).__name__}") from None
    if not tables:
        raise InputError(f"wandb:{address}: the project has no runs")
    return tables


def _table(run: Any, path: str, wanted: Callable[[str], bool]) -> Table:
    name = run.name or run.id
    if not wanted(name):
        return Table(name, {})
    return Table(
        name,
        # Not `history`, which is a sample of 500 rows.
        from_rows(run.scan_history(), f"wandb:{path}"),
        f"wandb:{path}",
        facts=to_facts(dict(run.config)),
        group=getattr(run, "group", None) or None,
    )


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    file = os.environ.get("NETRC") or Path.home() / ".netrc"
    try:
        return netrc.netrc(str(file)).authenticators(server) is not None
    except (OSError, netrc.NetrcParseError):
        return False


IMPORTER = Importer(
    read=lambda path: [read_wandb(path)],
    sniff=lambda path, head: CERTAIN if head.startswith(MAGIC) else 0.0,
    is_log=by_suffix(".wandb"),
)
