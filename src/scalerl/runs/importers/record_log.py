"""The log format that W&B and SwanLab share: a LevelDB log (blocks of 32 KiB, each piece with a
checksum) after a header of seven bytes. A record cut off at the end is what a running or killed job
leaves: read up to it, and noted. A wrong checksum means damage, and the file is refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers.files import open_binary

_HEADER = 7
_BLOCK = 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(path: Path, notes: list[str], whose: str) -> Iterator[bytes]:
    """The records of a log, up to the last whole one."""
    with open_binary(path) as (file, length):
        at, pieces = _HEADER, list[bytes]()
        while at < length:
            room = _BLOCK - at % _BLOCK
            if room < 7:
                at += room
                continue
            file.seek(at)
            header = file.read(7)
            if len(header) < 7:
                break
            checksum, size, kind = struct.unpack("<IHB", header)
            if checksum == size == kind == 0:
                at += room
                continue
            if 7 + size > room:
                raise InputError(f"{path}: the {whose} log is damaged at byte {at}")
            piece = file.read(size)
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
    if at < length or pieces:
        notes.append(f"the {whose} log is cut off: read up to its last whole record")
