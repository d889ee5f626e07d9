"""Runs the tests in an interpreter that never sees the program, and asks for the program's values.

The tests are Python as their author wrote it. A name that the program has to define stands for
something elsewhere (`Remote`): calling it sends the arguments, as data, to the process of the
program, and what comes back is data too, which the test then looks at *here*. For

    assert abs(root(2) - 1.414) < 1e-3

2 goes out, a number comes in; the subtraction, `abs` and `<` are this interpreter's own, and 1.414
goes nowhere. So the program decides about its values and nothing else:

- an object of the program's own class stays there. It can be asked for attributes, items and claims
  (its length, its truth, its text), but it compares with nothing and takes no part in arithmetic:
  otherwise `root(2) - 1.414` would be asked of an object that calls every difference 0. What stands
  for it here can be called, iterated over or measured only if the object says that it can;
- what a function gives has no methods of data (`startswith`, `issubset`) unless it *is* data. What
  `Stack()` gives, a class by its capital letter, may have methods of any name;
- within a test the same call with the same arguments is made once: a function cannot be large for
  `f(2) > 1.4` and small for `f(2) < 1.5`. Nor can an object be, between two calls;
- an error there is an error here, but for those that end a loop;
- a program that ends, or whose process sends nonsense, fails its test whatever the test catches
  (`TestOver`).
"""

from __future__ import annotations

import builtins
import os

from scalerl.tasks.inside import restrictions, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any, Never, TypeVar

    T = TypeVar("T")

DATA = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range)
#: Names of methods that data have, and hence what a function's result may not pretend to have.
METHODS = {name for kind in DATA for name in dir(kind) if not name.startswith("__")}
#: Not passed on: they would end a loop or a generator of the test.
CONTROL = ("StopIteration", "StopAsyncIteration")
#: The program wants to end. Passed on, these would end the judge.
ENDS = ("GeneratorExit", "SystemExit", "KeyboardInterrupt")


class TestOver(BaseException):
    """Why a test is over, as the verdict says it. `except Exception` does not catch it; what
    catches it all the same does not change the verdict, which the channel keeps."""


class ProgramClient:
    """The way to the program."""

    def __init__(self, number: int) -> None:
        self.number = number
        #: Whether the test has a value of the program's.
        self.answered = False
        self.fault: TestOver | None = None
        #: What calls gave, within one test.
        self.known: dict[bytes, bytes] = {}
        #: What objects said of themselves, up to the next call.
        self.seen: dict[bytes, bytes] = {}

    def ask(
        self, *request: object, made: bool = False, once: bool = False, looks: bool = False
    ) -> Any:
        """What the program gives; `made` if that is an object of a class, `once` if it is asked
        only once in a test, `looks` if nothing is changed by it."""
        message = wire.encode(request, self.number_of)
        if len(message) > wire.LONGEST:
            # What the program gave is too large to be given back to it, or the test's own data is.
            whose = "wrong TooLarge:" if self.answered else "unfit"
            self.fail(f"{whose} the program would be given more than {wire.LONGEST} bytes")
        kept = self.known if once else self.seen if looks else {}
        reply = kept.get(message)
        if reply is None:
            if not looks:
                self.seen.clear()
            reply = self.exchange(message)
        objects: list[int] = []

        def remote(number: int, kind: str, able: tuple[str, ...]) -> Remote:
            objects.append(number)
            return stand_in(number, kind, able, made)

        value = self.read(reply, remote)
        self.answered = True
        if not objects:
            kept[message] = reply
        return value

    def run(self, imports: str, code: str) -> None:
        """Have the program run, up to its end."""
        self.read(self.exchange(wire.encode((imports, code))), None)

    def read(self, reply: bytes, remote: wire.Handle | None) -> Any:
        """The value of a reply, or its error."""
        try:
            what, *content = wire.decode(reply, remote)
            name, words = (None, *content) if what == "value" else content
        except (ValueError, TypeError) as error:
            self.fail(f"wrong Nonsense: from the program's process: {error}")
        if name in ENDS:
            self.fail(f"wrong {name}: the program wants to end: {words}")
        if name is not None:
            raise error_of(str(name), str(words))
        return words

    def exchange(self, message: bytes) -> bytes:
        if self.fault is not None:
            raise self.fault
        try:
            wire.send(self.number, message)
            return wire.receive(self.number)
        except (EOFError, OSError):
            self.fail("gone")
        except ValueError as error:
            self.fail(f"wrong Nonsense: from the program's process: {error}")

    def fail(self, word: str) -> Never:
        """End the test with this verdict, unless there is one already."""
        self.fault = self.fault or TestOver(word)
        raise self.fault

    def number_of(self, value: object) -> int:
        """The handle of what goes back to where it came from."""
        if not isinstance(value, Remote):
            kind = type(value).__name__
            self.fail(f"unfit the program would be given what is no data ({kind})")
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
    """An object in the program's process, and the name that the test reached it by. `stand_in`
    makes one with the methods that the object has."""

    __slots__ = ("_remote_first", "_remote_kind", "_remote_made", "_remote_name", "_remote_number")
    channel: ProgramClient

    def __init__(self, number: int, kind: str, made: bool) -> None:
        given = (False, kind, made, "", number)
        for name, value in zip(Remote.__slots__, given, strict=True):
            object.__setattr__(self, name, value)

    def _remote_named(self, name: str, first: bool = False) -> Remote:
        """The same as a function or, by its capital letter, a class; `first` if the test starts
        from it."""
        object.__setattr__(self, "_remote_name", name)
        object.__setattr__(self, "_remote_first", first)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (name in METHODS and not self._remote_may_have_methods()):
            raise AttributeError(f"{self._remote_kind} is no data: no {name}")
        value = self.channel.ask("get", self, name, looks=True)
        return value._remote_named(name) if isinstance(value, Remote) else value

    def _remote_may_have_methods(self) -> bool:
        return bool(self._remote_made or self._remote_name[:1].isupper())

    def __setattr__(self, name: str, value: object) -> None:
        self.channel.ask("set", self, name, value)

    def __bool__(self) -> bool:
        return claim(self, "bool", bool)

    def __str__(self) -> str:
        return claim(self, "str", str)

    def __repr__(self) -> str:
        return claim(self, "repr", str)

    def _remote_incomparable(self, other: object) -> Never:
        raise TypeError(f"{self._remote_kind} is no data: it cannot be compared")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _remote_incomparable
    __hash__ = None  # type: ignore[assignment]


class Able(Remote):
    """The methods that not every object has, from which `stand_in` takes those that one has."""

    __slots__ = ()

    def __call__(self, *arguments: object, **named: object) -> Any:
        made = self._remote_name[:1].isupper()
        plain = arguments and not any(isinstance(value, Remote) for value in arguments)
        once = bool(self._remote_first and plain and not made)
        return self.channel.ask("call", self, list(arguments), named, made=made, once=once)

    def __getitem__(self, key: object) -> Any:
        if not self._remote_made:
            raise TypeError(f"{self._remote_kind} is no data: no items")
        return self.channel.ask("item", self, key)  # a cache may count that it was used

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

    def __int__(self) -> int:
        return claim(self, "int", int)

    def __float__(self) -> float:
        return claim(self, "float", float)


#: Classes of what stands for objects, by what these can do.
STAND_INS: dict[tuple[str, ...], type[Remote]] = {}


def stand_in(number: int, kind: str, able: tuple[str, ...], made: bool) -> Remote:
    """What stands for an object of the program's. `callable` and the classes of `collections.abc`
    look at its class for these methods."""
    if able not in STAND_INS:
        methods = {name: Able.__dict__[name] for name in able}
        STAND_INS[able] = type("Remote", (Remote,), {"__slots__": (), **methods})
    return STAND_INS[able](number, kind, made)


def claim(owner: Remote, what: str, kind: type[T]) -> T:
    """What an object says it is, as data."""
    value = owner.channel.ask("as", what, owner, looks=True)
    if not isinstance(value, kind):
        raise TypeError(f"{owner._remote_kind} gives no {what}")
    return value


def main(job: dict[str, Any]) -> None:
    """Say `ok` for each test that holds; what else is said is the last word."""
    channel = ProgramClient(os.dup(1))
    nothing = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    restrictions.apply(job["limits"])
    said = os.dup(2)
    os.dup2(nothing, 2)  # what tests print, and warnings about them, is no verdict
    Remote.channel = channel
    for word in verdicts(job, channel):
        os.write(said, " ".join(word.split())[:300].encode("utf-8", "replace") + b"\n")


def verdicts(job: dict[str, Any], channel: ProgramClient) -> Iterator[str]:
    names: dict[str, Any] = {"__name__": "test", "__builtins__": builtins}
    ours = False
    try:
        channel.run(job["imports"], job["code"])
        for number, text in enumerate([job["setup"], *job["tests"]]):
            channel.known.clear()
            channel.seen.clear()
            ours = True
            code = compile(text, "test", "exec", dont_inherit=True)
            ours = False
            names.update(found_names(job["names"], channel))
            # An error of the set-up is the program's if that has a part in it: an answer that is
            # missing, or of the wrong type, is wrong.
            ours = number == 0 and not mentioned(code) & set(job["names"])
            exec(code, names)
            if channel.fault is not None:
                raise channel.fault
            if number:
                yield "ok"
    except BaseException as error:
        yield verdict(error, channel.fault, ours)


def verdict(error: BaseException, fault: TestOver | None, ours: bool) -> str:
    """The last word on a test that has ended with an error."""
    if fault is not None:
        return str(fault)
    if isinstance(error, AssertionError) and not ours:
        return "wrong value"
    return f"{'unfit' if ours else 'wrong'} {type(error).__name__}: {error}"


def found_names(wanted: list[str], channel: ProgramClient) -> dict[str, Any]:
    """What the program defines, by name."""
    answered = channel.answered
    found = channel.ask("names", wanted)
    for name in wanted:
        if name not in found:
            raise NameError(f"name {name!r} is not defined", name=name)
        if isinstance(found[name], Remote):
            found[name]._remote_named(name, first=True)
        else:
            answered = True
    channel.answered = answered
    return {name: found[name] for name in wanted}


def mentioned(code: CodeType) -> set[str]:
    """All names in a piece of code."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            found |= mentioned(constant)
    return found
