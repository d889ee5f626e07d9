"""TensorBoard event files: every scalar, whether written as a plain value or as a tensor.

(TensorBoard's own accumulator keeps a random sample of long series by default.)

A file is a sequence of records, each with checksums of its length and of its data. A record cut
off at the end is what a running or killed job leaves: read up to it, and noted. A wrong checksum
before the end means damage, and the file is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers import CERTAIN, Collected, Importer, protobuf
from scalerl.runs.importers.text_files import open_binary
from scalerl.runs.limits import Meter
from scalerl.runs.table import Table, from_rows

# TensorProto: data type -> (struct layout of its raw bytes, number of its own field).
_DTYPES = {1: ("<f", 5), 2: ("<d", 6), 3: ("<i", 7), 9: ("<q", 10), 19: ("<e", 13)}


def is_event_file(head: bytes) -> bool:
    """Whether these are the first bytes of an event file: a length and its checksum."""
    return len(head) >= 12 and _masked_crc(head[:8]) == struct.unpack("<I", head[8:12])[0]


def read_events(paths: list[Path], name: str) -> Table:
    """One run from its event files, which a resumed job leaves several of, oldest first."""
    rows: list[dict[str, object]] = []
    notes: list[str] = []
    for path in paths:
        # Most writers make an event of each scalar: those of a step are one row, until a tag
        # comes again.
        row: dict[str, object] = {}
        for step, wall_time, values in _events(path, notes):
            if row.get("step") != step or any(tag in row for tag in values):
                row = {"step": step, "wall_time": wall_time}
                rows.append(row)
            row.update(values)
    if not rows:
        raise InputError(f"{paths[0]}: no scalars in the event file")
    where = paths[0] if len(paths) == 1 else paths[0].parent
    return Table(name, from_rows(rows, where), str(where), notes)


def _events(path: Path, notes: list[str]) -> Iterator[tuple[int, float, dict[str, object]]]:
    meter = Meter(path)
    with open_binary(path) as (file, length):
        at = 0
        while at + 12 <= length:
            header = file.read(12)
            if len(header) < 12:
                break
            size, checksum = struct.unpack("<QI", header)
            if _masked_crc(header[:8]) != checksum:
                raise InputError(f"{path}: the event file is damaged at byte {at}")
            if at + 12 + size + 4 > length:
                break
            record, end = file.read(size), file.read(4)
            if len(end) < 4:
                break
            try:
                step, wall_time, values = _event(record)
            except protobuf.ProtobufError:
                raise InputError(f"{path}: the event file is damaged at byte {at}") from None
            meter.add(len(values))
            # Only records that hold scalars are worth the checksum: images and texts are large.
            if values:
                if _masked_crc(record) != struct.unpack("<I", end)[0]:
                    raise InputError(f"{path}: the event file is damaged at byte {at}")
                yield step, wall_time, values
            at += 12 + size + 4
    if at < length:
        notes.append(f"{path.name} is cut off: read up to its last whole record")


def _event(data: bytes) -> tuple[int, float, dict[str, object]]:
    step, wall_time = 0, 0.0
    values: dict[str, object] = {}
    # Field numbers, here and below, are those of TensorFlow's event.proto and summary.proto.
    for number, value in protobuf.fields(data):
        if number == 1:
            wall_time = protobuf.number(value, "<d")
        elif number == 2 and isinstance(value, int):
            step = protobuf.signed(value)
        elif number == 5:
            for inner, summary in protobuf.fields(protobuf.message(value)):
                if inner == 1:
                    tag, scalar = _value(protobuf.message(summary))
                    if scalar is not None:
                        values[tag] = scalar
    return step, wall_time, values


def _value(data: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, value in protobuf.fields(data):
        if number == 1:
            tag = protobuf.text(value)
        elif number == 2:
            scalar = protobuf.number(value, "<f")
        elif number == 8:
            scalar = _tensor(protobuf.message(value))
    return tag, scalar


def _tensor(data: bytes) -> float | None:
    """The number in a tensor of one element, None for any other tensor."""
    found = dict(protobuf.fields(data))
    layout, own_field = _DTYPES.get(found.get(1, 0), ("", 0))  # type: ignore[arg-type]
    if not layout:
        return None
    raw = found.get(4) or found.get(own_field)
    if isinstance(raw, int):
        return float(protobuf.signed(raw)) if layout in ("<i", "<q") else None
    if raw is None or len(raw) != struct.calcsize(layout):
        return None
    return protobuf.number(raw, layout)


def _crc_table() -> list[int]:
    # CRC-32C (Castagnoli), which zlib does not have, by its reversed polynomial.
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _crc_table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    # TensorFlow's mask: the checksum of data that holds checksums would be a weak one.
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def collect(folder: Path, entries: list[Path]) -> Collected | None:
    """The event files of a directory are one run: a resumed job leaves several."""
    events = [entry for entry in entries if "tfevents" in entry.name and entry.is_file()]
    name = folder.resolve().name
    return (lambda: [read_events(events, name)], set()) if events else None


IMPORTER = Importer(
    read=lambda path: [read_events([path], path.resolve().parent.name)],
    sniff=lambda path, head: CERTAIN if is_event_file(head) else 0.0,
    collect=collect,
)
