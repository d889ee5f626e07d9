"""Two binary containers: the protobuf wire format, and the LevelDB log of W&B and SwanLab.

The readers of these libraries take seconds to import, and W&B's is no longer written in Python.
Scalars need three things of protobuf: varints, fixed numbers, and length-delimited bytes.

A LevelDB log is a header of seven bytes and blocks of 32 KiB, each piece with a checksum. A record
cut off at the end is what a running or killed job leaves: it is left out and noted. A wrong
checksum means damage, and the file is refused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers.text_files import open_binary


class ProtobufError(ValueError):
    """The bytes are not a protobuf message."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbered fields of a message: varints as int, all others as their bytes.

    >>> list(fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02]) + b"hi"))
    [(1, 150), (2, b'hi')]
    """
    at, end = 0, len(data)
    while at < end:
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ProtobufError(f"field of kind {kind}")
        if size > end - at:
            raise ProtobufError("field is longer than its message")
        yield number, data[at : at + size]
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The variable-length integer at an offset, and the offset after it."""
    value = 0
    # At most ten bytes: each holds seven bits, and an integer has 64.
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise ProtobufError("integer without an end")


def signed(value: int) -> int:
    """An int64 field, which protobuf writes as its two's complement."""
    return value - 2**64 if value >= 2**63 else value


def number(data: int | bytes, layout: str) -> float:
    """The one number of a fixed-width field, for example layout "<f" or "<d"."""
    if not isinstance(data, bytes) or len(data) != struct.calcsize(layout):
        raise ProtobufError("number of another width")
    return float(struct.unpack(layout, data)[0])


def text(data: int | bytes) -> str:
    """A string field."""
    try:
        return message(data).decode()
    except UnicodeDecodeError:
        raise ProtobufError("text that is not UTF-8") from None


def message(data: int | bytes) -> bytes:
    """A nested message, still as bytes."""
    if not isinstance(data, bytes):
        raise ProtobufError("number where a message or text should be")
    return data


# -- LevelDB logs ---------------------------------------------------------------------------------


_FILE_HEADER = 7
_BLOCK = 32768
#: Bytes before each piece: checksum, size, kind.
_PIECE_HEADER = struct.Struct("<IHB")
# Kinds of a piece: a whole record, or its first or last piece (2 is followed by any number of 3).
_FULL = 1
_FIRST = 2
_LAST = 4


def leveldb_records(path: Path, notes: list[str], library: str) -> Iterator[bytes]:
    """The records of a LevelDB log, up to the last whole one; `library` is named in errors."""
    with open_binary(path) as (file, length):
        at, pieces = _FILE_HEADER, list[bytes]()
        while at < length:
            room = _BLOCK - at % _BLOCK
            if room < _PIECE_HEADER.size:
                at += room
                continue
            file.seek(at)
            header = file.read(_PIECE_HEADER.size)
            if len(header) < _PIECE_HEADER.size:
                break
            checksum, size, kind = _PIECE_HEADER.unpack(header)
            # Zeros: the rest of a block that was set aside and not written.
            if checksum == size == kind == 0:
                at += room
                continue
            if _PIECE_HEADER.size + size > room:
                raise InputError(f"{path}: the {library} log is damaged at byte {at}")
            piece = file.read(size)
            if len(piece) < size:
                break
            # Not LevelDB's own masked CRC-32C: both libraries write the CRC-32 of zlib.
            if zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum:
                raise InputError(f"{path}: the {library} log is damaged at byte {at}")
            at += _PIECE_HEADER.size + size
            if kind in (_FULL, _FIRST):
                pieces = []
            pieces.append(piece)
            if kind in (_FULL, _LAST):
                yield b"".join(pieces)
                pieces = []
    if at < length or pieces:
        notes.append(f"the {library} log is cut off: read up to its last whole record")
