"""Enough of the protobuf wire format to read scalars from W&B and TensorBoard files.

Both libraries' own readers are heavy (seconds to import), and W&B's moved out of Python. What
a log of scalars needs of the format is: varints, fixed numbers, and length-delimited bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator


class WireError(ValueError):
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
            raise WireError(f"field of kind {kind}")
        if size > end - at:
            raise WireError("field is longer than its message")
        yield number, data[at : at + size]
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The variable-length integer at an offset, and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise WireError("integer without an end")


def signed(value: int) -> int:
    """An int64 field, which protobuf writes as its two's complement."""
    return value - 2**64 if value >= 2**63 else value


def number(data: int | bytes, layout: str) -> float:
    """The one number of a fixed-width field, for example layout "<f" or "<d"."""
    if not isinstance(data, bytes) or len(data) != struct.calcsize(layout):
        raise WireError("number of another width")
    return float(struct.unpack(layout, data)[0])


def text(data: int | bytes) -> str:
    """A string field."""
    if not isinstance(data, bytes):
        raise WireError("number where a text should be")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WireError("text that is not UTF-8") from None


def message(data: int | bytes) -> bytes:
    """A nested message, still as bytes."""
    if not isinstance(data, bytes):
        raise WireError("number where a message should be")
    return data
