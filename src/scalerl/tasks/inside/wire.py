"""How values travel between the program, the judge and the checker: as data that keeps its type.

A value is a letter and its content, `i2a;` for 42 or `l2:TN` for [True, None]: decoding it runs no
code of the sender's. What is no data (an object of the program's own class, a generator) stays
where it is, and travels as a number, its *handle*, with the name of its class and which of the
methods in ABILITIES it has. A subclass travels as the data it is built on: a
named tuple as a tuple, an int that calls itself equal to everything as the int that it is.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing these takes longer than all the rest
    from collections.abc import Callable
    from typing import Any

    #: Number, name of the class and abilities of an object give what stands for it.
    Handle = Callable[[int, str, tuple[str, ...]], object]

#: Letters of what holds further values.
MANY: dict[type, str] = {list: "l", tuple: "t", set: "S", frozenset: "Z", dict: "d"}
#: Classes of modules that not every program loads: how to take one apart into what, given to the
#: class, puts it together again. What a defaultdict gives for a missing key is code, and stays.
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
#: What the parts of such a class are, exactly: not an object that looks like them. In particular no
#: defaultdict can be sent whose missing keys are made by a function of the sender's.
PART_TYPES = (list, dict, str, int, type(None))
#: Special methods of an object that the receiver may want to know of.
ABILITIES = (
    *("__call__", "__iter__", "__next__", "__len__", "__getitem__", "__setitem__"),
    *("__int__", "__float__"),
)
DEEPEST = 100
#: The longest message, in bytes.
LONGEST = 2**22


class NotData(ValueError):
    """A value that does not travel."""


def encode(value: object, handle: Callable[[object], object] | None = None) -> bytes:
    """A value as bytes; `handle` gives a number for what is no data, else that raises NotData."""
    parts: list[bytes] = []
    _put(value, parts, handle, 0)
    return b"".join(parts)


def _put(
    value: Any, parts: list[bytes], handle: Callable[[object], object] | None, depth: int
) -> None:
    if depth > DEEPEST:
        raise NotData("nested too deeply")
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
        raise NotData(f"an object of class {kind.__name__} is no data")
    else:
        parts.append(b"h")
        _put((handle(value), kind.__name__, abilities(kind)), parts, handle, depth + 1)


def abilities(kind: type) -> tuple[str, ...]:
    """Which of the methods in ABILITIES objects of a class have. (`hasattr` would find those of
    the class of the class: every class can be called.)"""
    found = {name: method for base in reversed(kind.__mro__) for name, method in vars(base).items()}
    return tuple(name for name in ABILITIES if found.get(name) is not None)


def _parts(value: object, kind: type) -> tuple[Any, ...] | None:
    module = kind.__module__
    take = PARTS.get(module, {}).get(kind.__name__)
    if take is None or kind is not getattr(sys.modules.get(module), kind.__name__, None):
        return None
    if getattr(value, "tzinfo", None) is not None:
        return None
    return (module, kind.__name__, *take(value))


def decode(data: bytes, handle: Handle | None = None) -> Any:
    """The value of these bytes; NotData if no sender of ours wrote them.

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
    if depth > DEEPEST + 2:
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
    if not 0 <= size <= len(data) - at:
        raise NotData("a length that cannot be")
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
            raise NotData("an object where there can be none")
        number, name, able = found
        return handle(int(number), str(name), tuple(a for a in ABILITIES if a in able))
    module, name, *parts = found
    if name not in PARTS[module] or any(type(part) not in PART_TYPES for part in parts):
        raise NotData("a class that does not travel")
    return getattr(__import__(module), name)(*parts)


def send(to: int, message: bytes) -> None:
    """Write a message and its length."""
    if len(message) > LONGEST:
        raise NotData(f"more than {LONGEST} bytes")
    left = memoryview(b"%08x" % len(message) + message)
    while left:
        left = left[os.write(to, left) :]


def receive(source: int) -> bytes:
    """The next message; EOFError if there will be none."""
    size = int(exactly(source, 8), 16)
    if not 0 <= size <= LONGEST:
        raise NotData(f"more than {LONGEST} bytes")
    return exactly(source, size)


def exactly(source: int, size: int) -> bytes:
    """So many bytes; EOFError if there are fewer."""
    found = b""
    while len(found) < size:
        chunk = os.read(source, size - len(found))
        if not chunk:
            raise EOFError
        found += chunk
    return found
