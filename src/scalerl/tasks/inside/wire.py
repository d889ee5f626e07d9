"""Encoding of values that are sent between the program, the tests and the checker.

A value is a letter and its content, `i2a;` for 42 or `l2:TN` for [True, None]. Decoding runs no
code of the sender. An object that is not data (of the program's own class, a generator) stays in
its process; a number, its *handle*, is sent with the name of its class and those of the methods in
ABILITIES that it has. A subclass is sent as the data it is built on: a named tuple as a tuple, an
int that claims to equal everything as the int that it is.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing these takes longer than the rest of the module
    from collections.abc import Callable
    from typing import Any

    #: Makes the stand-in of an object from its number, the name of its class and its abilities.
    Handle = Callable[[int, str, tuple[str, ...]], object]

#: Letters of the containers.
MANY: dict[type, str] = {list: "l", tuple: "t", set: "S", frozenset: "Z", dict: "d"}
#: Classes of the standard library: how to take an object apart into arguments from which the class
#: makes it again. The default factory of a defaultdict is code and is left out.
PARTS: dict[str, dict[str, Callable[[Any], tuple[Any, ...]]]] = {
    "collections": {
        "deque": lambda v: (list(v), v.maxlen),
        "Counter": lambda v: (dict(v),),
        "OrderedDict": lambda v: (dict(v),),
        "defaultdict": lambda v: (None, dict(v)),
    },
    "decimal": {"Decimal": lambda v: (str(v),)},
    "fractions": {"Fraction": lambda v: (v.numerator, v.denominator)},
    "datetime": {
        "date": lambda v: (v.year, v.month, v.day),
        "timedelta": lambda v: (v.days, v.seconds, v.microseconds),
        "time": lambda v: (v.hour, v.minute, v.second, v.microsecond),
        "datetime": lambda v: (
            *(v.year, v.month, v.day),
            *(v.hour, v.minute, v.second, v.microsecond),
        ),
    },
}
#: The exact types of such arguments. Subclasses are refused: they could have methods of the
#: sender, and a defaultdict could call a function of the sender for missing keys.
PART_TYPES = (list, dict, str, int, type(None))
#: Special methods that the stand-in of an object may have.
ABILITIES = (
    *("__call__", "__iter__", "__next__", "__len__", "__getitem__", "__setitem__"),
    *("__int__", "__float__"),
)
#: Deepest nesting of a value. Encoding recurses, and Python's stack ends at 1,000 calls.
DEEPEST = 100
#: Longest message in bytes: 4 MiB, far more than an answer to a unit test needs.
LONGEST = 2**22


class NotData(ValueError):
    """The value cannot be sent."""


def encode(value: object, handle: Callable[[object], object] | None = None) -> bytes:
    """The value as bytes. `handle` gives a number for an object that is not data; without it such
    an object raises NotData."""
    parts: list[bytes] = []
    _put(value, parts, handle, 0)
    return b"".join(parts)


def _put(
    value: Any, parts: list[bytes], handle: Callable[[object], object] | None, depth: int
) -> None:
    if depth > DEEPEST:
        raise NotData("nested too deeply")
    # By type and not by `isinstance` alone: an object may claim any class as its `__class__`.
    kind = type(value)
    apart = _parts(value, kind)
    if apart is None and kind not in (bool, int, float, str):
        kind = next((k for k in (int, float, str, *MANY) if isinstance(value, k)), kind)
    if value is None:
        parts.append(b"N")
    elif apart is not None:
        parts.append(b"m")
        _put(apart, parts, handle, depth + 1)
    elif kind is bool:
        parts.append(b"T" if value else b"F")
    elif kind is int:
        # Here and below the methods are those of the built-in class: a subclass may override its
        # own. Hexadecimal has no limit on digits and keeps floats exact.
        parts.append(b"i%s;" % format(int.__index__(value), "x").encode())
    elif kind is float:
        parts.append(b"f%s;" % float.hex(value).encode())
    elif kind is complex:
        parts.append(b"c%s;%s;" % (value.real.hex().encode(), value.imag.hex().encode()))
    elif kind is str:
        text = str.encode(value, "utf-8", "surrogatepass")
        parts.append(b"s%d:%s" % (len(text), text))
    elif kind in (bytes, bytearray):
        parts.append(b"%s%d:%s" % (b"b" if kind is bytes else b"B", len(value), bytes(value)))
    elif kind is range:
        parts.append(b"r")
        _put((value.start, value.stop, value.step), parts, handle, depth + 1)
    elif kind in MANY:
        items = [*(dict.items(value) if kind is dict else kind.__iter__(value))]
        parts.append(b"%s%d:" % (MANY[kind].encode(), len(items)))
        for item in items:
            for part in item if kind is dict else (item,):
                _put(part, parts, handle, depth + 1)
    elif handle is None:
        raise NotData(f"an object of class {kind.__name__} is not data")
    else:
        parts.append(b"h")
        _put((handle(value), kind.__name__, abilities(kind)), parts, handle, depth + 1)


def abilities(kind: type) -> tuple[str, ...]:
    """Those of the methods in ABILITIES that objects of this class have. (`hasattr` would also find
    methods of the metaclass: every class can be called.)"""
    found = {name: method for base in reversed(kind.__mro__) for name, method in vars(base).items()}
    return tuple(name for name in ABILITIES if found.get(name) is not None)


def _parts(value: object, kind: type) -> tuple[Any, ...] | None:
    module = kind.__module__
    take = PARTS.get(module, {}).get(kind.__name__)
    # The name alone proves nothing: a program can name its own class "Decimal".
    if take is None or kind is not getattr(sys.modules.get(module), kind.__name__, None):
        return None
    if getattr(value, "tzinfo", None) is not None:
        return None  # a time zone is an object with code
    return (module, kind.__name__, *take(value))


def decode(data: bytes, handle: Handle | None = None) -> Any:
    """The value in these bytes; NotData if `encode` cannot have written them.

    >>> decode(encode([1, (2.5, "x"), {3: {4}}, 10**20]))
    [1, (2.5, 'x'), {3: {4}}, 100000000000000000000]
    """
    try:
        value, end = _take(data, 0, handle, 0)
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        ArithmeticError,
        AttributeError,
        StopIteration,
    ) as error:
        raise NotData(f"not a value ({error})") from None
    if end != len(data):
        raise NotData("more than a value")
    return value


def _take(data: bytes, at: int, handle: Handle | None, depth: int) -> tuple[Any, int]:
    if depth > DEEPEST + 2:  # more than `encode` allows: it must never refuse its own messages
        raise NotData("nested too deeply")
    letter = data[at : at + 1].decode("ascii")
    at += 1
    if letter in ("N", "T", "F"):
        return {"N": None, "T": True, "F": False}[letter], at
    if letter in ("r", "m", "h"):
        found, at = _take(data, at, handle if letter == "m" else None, depth + 1)
        return _build(letter, found, handle), at
    end = data.index(b";" if letter in "ifc" else b":", at)
    head = data[at:end].decode("ascii")
    at = end + 1
    if letter == "i":
        return int(head, 16), at
    if letter == "f":
        return float.fromhex(head), at
    if letter == "c":
        end = data.index(b";", at)
        return complex(float.fromhex(head), float.fromhex(data[at:end].decode())), end + 1
    size = int(head)
    # Every item takes at least a byte: a large claimed length costs no memory.
    if not 0 <= size <= len(data) - at:
        raise NotData("a length beyond the end of the message")
    if letter in "sbB":
        content = data[at : at + size]
        if letter == "s":
            return content.decode("utf-8", "surrogatepass"), at + size
        return (content if letter == "b" else bytearray(content)), at + size
    items = []
    for _ in range(size * (2 if letter == "d" else 1)):
        item, at = _take(data, at, handle, depth + 1)
        items.append(item)
    if letter == "d":
        return dict(zip(items[::2], items[1::2], strict=True)), at
    return next(kind for kind, known in MANY.items() if known == letter)(items), at


def _build(letter: str, found: tuple[Any, ...], handle: Handle | None) -> Any:
    if letter == "r":
        return range(*found)
    if letter == "h":
        if handle is None:
            raise NotData("an object where only data is allowed")
        number, name, able = found
        return handle(int(number), str(name), tuple(a for a in ABILITIES if a in able))
    module, name, *parts = found
    if name not in PARTS[module] or any(type(part) not in PART_TYPES for part in parts):
        raise NotData("a class that cannot be sent")
    return getattr(__import__(module), name)(*parts)


def send(to: int, message: bytes) -> None:
    """Write the length of a message, then the message."""
    if len(message) > LONGEST:
        raise NotData(f"more than {LONGEST} bytes")
    left = memoryview(b"%08x" % len(message) + message)
    while left:
        left = left[os.write(to, left) :]


def receive(source: int) -> bytes:
    """Read the next message; EOFError at the end of the stream."""
    size = int(exactly(source, 8), 16)
    if not 0 <= size <= LONGEST:
        raise NotData(f"more than {LONGEST} bytes")
    return exactly(source, size)


def exactly(source: int, size: int) -> bytes:
    """Read this many bytes; EOFError if there are fewer."""
    found = b""
    while len(found) < size:
        chunk = os.read(source, size - len(found))
        if not chunk:
            raise EOFError
        found += chunk
    return found
