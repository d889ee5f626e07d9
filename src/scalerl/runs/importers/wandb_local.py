"""W&B's own log of a run, `run-*/run-ID.wandb`, written online and offline alike.

The file is a LevelDB log (blocks of 32 KiB, each piece with a checksum) of protobuf records. A
record cut off at the end is what a running or killed job leaves: read up to it, and noted. A
wrong checksum means damage, and the file is refused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers import wire
from scalerl.runs.importers.files import read_bytes
from scalerl.runs.importers.records import parse
from scalerl.runs.table import Table, flatten, from_rows

MAGIC = b":W&B"
_HEADER = 7
_BLOCK = 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read_wandb(path: Path) -> Table:
    """The history of one run, its display name, group and configuration."""
    table = Table(path.resolve().parent.name, {}, str(path))
    rows: list[dict[str, object]] = []
    try:
        for record in _records(path, table.notes):
            for number, value in wire.fields(record):
                if number == 2:
                    rows.append(_history(wire.message(value)))
                elif number == 17:
                    _read_run(wire.message(value), table)
        table.columns = from_rows(rows)
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
    table.name = name or run_id or table.name


def _records(path: Path, notes: list[str]) -> Iterator[bytes]:
    data = read_bytes(path)
    at, pieces = _HEADER, list[bytes]()
    while at < len(data):
        room = _BLOCK - at % _BLOCK
        if room < 7:
            at += room
            continue
        if at + 7 > len(data):
            break
        checksum, size, kind = struct.unpack_from("<IHB", data, at)
        if checksum == size == kind == 0:
            at += room
            continue
        piece = data[at + 7 : at + 7 + size]
        if 7 + size > room:
            raise InputError(f"{path}: the W&B log is damaged at byte {at}")
        if len(piece) < size:
            break
        if zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum:
            raise InputError(f"{path}: the W&B log is damaged at byte {at}")
        at += 7 + size
        if kind in (_FULL, _FIRST):
            pieces = []
        pieces.append(piece)
        if kind in (_FULL, _LAST):
            yield b"".join(pieces)
            pieces = []
    if at < len(data) or pieces:
        notes.append("the W&B log is cut off: read up to its last whole record")
