"""Runs the tests in an interpreter that never sees the program, and asks for the program's values.

The tests are Python as their author wrote it. A name that the program has to define stands for
something elsewhere (`Remote`): calling it sends the arguments, as data, to the process of the
program, and what comes back is data too, which the test then looks at *here*. For

    assert abs(root(2) - 1.414) < 1e-3

2 goes out, a number comes in; the subtraction, `abs` and `<` are this interpreter's own, and 1.414
goes nowhere. So the program decides about its values and nothing else:

- an object of the program's own class stays there. It can be asked for attributes, items and claims
  (its length, its truth, its text), but it compares with nothing and takes no part in arithmetic:
  otherwise `root(2) - 1.414` would be asked of an object that calls every difference 0;
- what a function gives has no methods of data (`startswith`, `issubset`) unless it *is* data. What
  `Stack()` gives, a class by its capital letter, may have methods of any name;
- within a test the same call with the same arguments is made once: a function cannot be large for
  `f(2) > 1.4` and small for `f(2) < 1.5`;
- an error there is an error here, but for those that end a loop or a process.
"""

from __future__ import annotations

import builtins
import os

from scalerl.tasks.inside import walls, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Never, TypeVar

    T = TypeVar("T")

DATA = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range)
#: Names of methods that data have, and hence what a function's result may not pretend to have.
METHODS = {name for kind in DATA for name in dir(kind) if not name.startswith("__")}
#: Not passed on: they would end a loop, a generator or this process.
CONTROL = (
    "StopIteration",
    "StopAsyncIteration",
    "GeneratorExit",
    "SystemExit",
    "KeyboardInterrupt",
)


class ProgramEnded(Exception):
    """The program's process has ended."""


class Unfit(Exception):
    """A test that cannot be judged: it wants to give the program what is no data."""


class WayIn:
    """The way to the program."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked = 0
        #: What calls gave, within one test.
        self.known: dict[bytes, bytes] = {}

    def ask(self, *request: object, made: bool = False, once: bool = False) -> Any:
        """What the program gives; `made` if that is an object of a class."""
        message = wire.encode(request, number_of)
        if len(message) > wire.LONGEST:
            raise Unfit(f"the program would be given more than {wire.LONGEST} bytes")
        reply = self.known.get(message) if once else None
        if reply is None:
            reply = self.exchange(message)
        objects: list[int] = []

        def remote(number: int, kind: str) -> Remote:
            objects.append(number)
            return Remote(number, kind, made)

        value = self.read(reply, remote)
        if once and not objects:
            self.known[message] = reply
        return value

    def run(self, imports: str, code: str) -> None:
        """Have the program run, up to its end."""
        self.read(self.exchange(wire.encode((imports, code))), None)

    def read(self, reply: bytes, remote: Callable[[int, str], object] | None) -> Any:
        """The value of a reply, or its error."""
        try:
            what, *content = wire.decode(reply, remote)
            name, words = (None, *content) if what == "value" else content
        except (ValueError, TypeError) as error:
            raise RuntimeError(f"the program's process does not make sense: {error}") from None
        if name is not None:
            raise error_of(str(name), str(words))
        return words

    def exchange(self, message: bytes) -> bytes:
        self.asked += 1
        try:
            wire.send(self.number, message)
            return wire.receive(self.number)
        except (EOFError, OSError):
            raise ProgramEnded from None
        except ValueError as error:
            raise RuntimeError(f"the program's process does not make sense: {error}") from None


def number_of(value: object) -> int:
    """The handle of what goes back to where it came from."""
    if type(value) is not Remote:
        raise Unfit(f"the program would be given what is no data ({type(value).__name__})")
    return int(value._remote_number)


def error_of(name: str, words: str) -> Exception:
    """What an error there is here."""
    kind = getattr(builtins, name, None)
    if name not in CONTROL and isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(words)
        except TypeError:  # a Unicode error wants more than words
            pass
    return RuntimeError(f"{name}: {words}")


class Remote:
    """An object in the program's process, and the name that the test reached it by."""

    __slots__ = ("_remote_first", "_remote_kind", "_remote_made", "_remote_name", "_remote_number")
    channel: WayIn

    def __init__(self, number: int, kind: str, made: bool) -> None:
        given = (False, kind, made, "", number)
        for name, value in zip(self.__slots__, given, strict=True):
            object.__setattr__(self, name, value)

    def _remote_named(self, name: str, first: bool = False) -> Remote:
        """The same as a function or, by its capital letter, a class; `first` if the test starts
        from it."""
        object.__setattr__(self, "_remote_name", name)
        object.__setattr__(self, "_remote_first", first)
        return self

    def __call__(self, *arguments: object, **named: object) -> Any:
        made = self._remote_name[:1].isupper()
        plain = arguments and not any(type(value) is Remote for value in arguments)
        once = bool(self._remote_first and plain and not made)
        return self.channel.ask("call", self, list(arguments), named, made=made, once=once)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (name in METHODS and not self._remote_may_have_methods()):
            raise AttributeError(f"{self._remote_kind} is no data: no {name}")
        value = self.channel.ask("get", self, name)
        return value._remote_named(name) if type(value) is Remote else value

    def _remote_may_have_methods(self) -> bool:
        return bool(self._remote_made or self._remote_name[:1].isupper())

    def __setattr__(self, name: str, value: object) -> None:
        self.channel.ask("set", self, name, value)

    def __getitem__(self, key: object) -> Any:
        if not self._remote_made:
            raise TypeError(f"{self._remote_kind} is no data: no items")
        return self.channel.ask("item", self, key)

    def __setitem__(self, key: object, value: object) -> None:
        self.channel.ask("set_item", self, key, value)

    def __iter__(self) -> Iterator[Any]:
        items = self.channel.ask("iterate", self)
        most = 1
        while found := self.channel.ask("next", items, most):
            yield from found
            most *= 2

    def __next__(self) -> Any:
        for value in self.channel.ask("next", self, 1):
            return value
        raise StopIteration

    def __len__(self) -> int:
        return claim(self, "len", int)

    def __bool__(self) -> bool:
        return claim(self, "bool", bool)

    def __int__(self) -> int:
        return claim(self, "int", int)

    def __float__(self) -> float:
        return claim(self, "float", float)

    def __str__(self) -> str:
        return claim(self, "str", str)

    def __repr__(self) -> str:
        return claim(self, "repr", str)

    def _remote_incomparable(self, other: object) -> Never:
        raise TypeError(f"{self._remote_kind} is no data: it cannot be compared")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _remote_incomparable
    __hash__ = None  # type: ignore[assignment]


def claim(owner: Remote, what: str, kind: type[T]) -> T:
    """What an object says it is, as data."""
    value = owner.channel.ask("as", what, owner)
    if not isinstance(value, kind):
        raise TypeError(f"{owner._remote_kind} gives no {what}")
    return value


def main(job: dict[str, Any]) -> None:
    """Say `ok` for each test that holds; what else is said is the last word."""
    channel = WayIn(os.dup(1))
    nothing = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    walls.raise_walls(job["limits"])
    said = os.dup(2)
    os.dup2(nothing, 2)  # what tests print, and warnings about them, is no verdict
    Remote.channel = channel
    for word in verdicts(job, channel):
        os.write(said, " ".join(word.split())[:300].encode("utf-8", "replace") + b"\n")


def verdicts(job: dict[str, Any], channel: WayIn) -> Iterator[str]:
    names: dict[str, Any] = {"__name__": "test", "__builtins__": builtins}
    stage = "program"
    try:
        channel.run(job["imports"], job["code"])
        stage = "setup"
        for number, text in enumerate([job["setup"], *job["tests"]]):
            channel.known.clear()
            found = channel.ask("names", job["names"])
            for name in job["names"]:
                if name not in found:
                    raise NameError(f"name {name!r} is not defined", name=name)
                value = found[name]
                if type(value) is Remote:
                    value = value._remote_named(name, first=True)
                names[name] = value
            channel.asked = 0
            exec(compile(text, "test", "exec", dont_inherit=True), names)
            if number:
                yield "ok"
            stage = "test"
    except ProgramEnded:
        yield "gone"
    except Unfit as error:
        yield f"unfit {error}"
    except AssertionError:
        yield "wrong value"
    except BaseException as error:
        missing = isinstance(error, NameError) and error.name in job["names"]
        blame = stage != "setup" or channel.asked or missing
        yield f"{'wrong' if blame else 'unfit'} {type(error).__name__}: {error}"
