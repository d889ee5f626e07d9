"""The log format that W&B and SwanLab share: a LevelDB log (blocks of 32 KiB, each piece with a
checksum) after a header of seven bytes. A record cut off at the end is what a running or killed job
leaves: read up to it, and noted. A wrong checksum means damage, and the file is refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers.files import read_bytes

_HEADER = 7
_BLOCK = 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(path: Path, notes: list[str], whose: str) -> Iterator[bytes]:
    """The records of a log, up to the last whole one."""
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
            raise InputError(f"{path}: the {whose} log is damaged at byte {at}")
        if len(piece) < size:
            break
        if zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum:
            raise InputError(f"{path}: the {whose} log is damaged at byte {at}")
        at += 7 + size
        if kind in (_FULL, _FIRST):
            pieces = []
        pieces.append(piece)
        if kind in (_FULL, _LAST):
            yield b"".join(pieces)
            pieces = []
    if at < len(data) or pieces:
        notes.append(f"the {whose} log is cut off: read up to its last whole record")
