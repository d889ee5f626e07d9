"""Runs the unit tests in an interpreter that never sees the program, and asks for its values.

The tests are Python as their author wrote it. A name that the program has to define is a `Remote`
here: calling it sends the arguments, as data, to the program's process; the reply is data too, and
the test uses it in *this* process. For

    assert abs(root(2) - 1.414) < 1e-3

2 is sent and a number comes back; the subtraction, `abs` and `<` are this interpreter's own, and
1.414 is never sent. So the program determines its values and nothing else:

- an object of the program's own class stays in its process. A test can ask it for attributes, items
  and claims (its length, truth value, text), but cannot compare it or calculate with it: otherwise
  an object could answer 0 to `root(2) - 1.414`. Its stand-in here can be called, iterated over or
  measured only if the object has the method for it;
- the result of a function has no methods of data (`startswith`, `issubset`) unless it *is* data.
  What `Stack()` returns, a class by its capital letter, may have methods of any name;
- within a test the same call with the same arguments is made once: a function cannot be large for
  `f(2) > 1.4` and small for `f(2) < 1.5`. Nor can an object change between two calls;
- an exception there is an exception here, except those that end a loop;
- a program that ends, or sends something that cannot be decoded, fails its test whatever the test
  catches (`TestOver`).
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
#: Names of the methods that data has: the result of a function may not pretend to have them.
METHODS = {name for kind in DATA for name in dir(kind) if not name.startswith("__")}
#: Exceptions that are not passed on: they would end a loop or a generator of the test.
CONTROL = ("StopIteration", "StopAsyncIteration")
#: Exceptions by which a program ends. Passed on, they would end this process.
ENDS = ("GeneratorExit", "SystemExit", "KeyboardInterrupt")


class TestOver(BaseException):
    """Ends a test; the text is its result. `except Exception` does not catch it. A test that
    catches it all the same fails, because the client keeps it as its `fault`."""


class ProgramClient:
    """The connection to the program's process."""

    def __init__(self, number: int) -> None:
        #: File descriptor of the connection.
        self.number = number
        #: Whether the test has received a value from the program.
        self.answered = False
        #: Why the test has failed for good.
        self.fault: TestOver | None = None
        #: Replies to calls, kept for one test.
        self.known: dict[bytes, bytes] = {}
        #: Replies to questions about objects, kept until the next call.
        self.seen: dict[bytes, bytes] = {}

    def ask(
        self, *request: object, made: bool = False, once: bool = False, looks: bool = False
    ) -> Any:
        """The program's reply to a request. `made`: the reply is an object of a class; `once`: the
        reply is kept for the whole test; `looks`: the request changes nothing, so the reply is kept
        until a request that may."""
        message = wire.encode(request, self.number_of)
        if len(message) > wire.LONGEST:
            # If the program has given a value, its size is to blame; if not, the test's own data.
            result = "wrong TooLarge:" if self.answered else "unfit"
            self.fail(f"{result} more than {wire.LONGEST} bytes would be sent to the program")
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
        # A reply with objects is not kept: their numbers stand for objects that may change.
        if not objects:
            kept[message] = reply
        return value

    def run(self, imports: str, code: str) -> None:
        """Run the program's code to its end."""
        self.read(self.exchange(wire.encode((imports, code))), None)

    def read(self, reply: bytes, remote: wire.Handle | None) -> Any:
        """The value in a reply; raises the exception in it."""
        try:
            what, *content = wire.decode(reply, remote)
            name, words = (None, *content) if what == "value" else content
        except (ValueError, TypeError) as error:
            self.fail(f"wrong Nonsense: from the program's process: {error}")
        if name in ENDS:
            self.fail(f"wrong {name}: the program ends itself: {words}")
        if name is not None:
            raise error_of(str(name), str(words))
        return words

    def exchange(self, message: bytes) -> bytes:
        """Send a message and return the reply."""
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
        """End the test with this result, unless it has one already."""
        self.fault = self.fault or TestOver(word)
        raise self.fault

    def number_of(self, value: object) -> int:
        """The number of an object that goes back to the program's process."""
        if not isinstance(value, Remote):
            kind = type(value).__name__
            self.fail(f"unfit an argument for the program is not data ({kind})")
        return int(value._remote_number)


def error_of(name: str, words: str) -> Exception:
    """The exception here for one that was raised in the program's process."""
    kind = getattr(builtins, name, None)
    if name not in CONTROL and isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(words)
        except TypeError:  # UnicodeDecodeError takes more than a text
            pass
    return RuntimeError(f"{name}: {words}")


class Remote:
    """Stand-in for an object in the program's process, with the name by which the test reached it.
    `stand_in` makes one with the methods that the object has."""

    # Names with a prefix, since any other attribute is one of the program's object.
    __slots__ = ("_remote_first", "_remote_kind", "_remote_made", "_remote_name", "_remote_number")
    channel: ProgramClient

    def __init__(self, number: int, kind: str, made: bool) -> None:
        given = (False, kind, made, "", number)
        for name, value in zip(Remote.__slots__, given, strict=True):
            object.__setattr__(self, name, value)

    def _remote_named(self, name: str, first: bool = False) -> Remote:
        """This stand-in under a name: that of a function, or of a class if it has a capital letter.
        `first`: the name is one that the program defines."""
        object.__setattr__(self, "_remote_name", name)
        object.__setattr__(self, "_remote_first", first)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (name in METHODS and not self._remote_may_have_methods()):
            raise AttributeError(f"{self._remote_kind} is not data: it has no {name}")
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
        raise TypeError(f"{self._remote_kind} is not data: it cannot be compared")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _remote_incomparable
    __hash__ = None  # type: ignore[assignment]


class Able(Remote):
    """The methods that only some objects have; `stand_in` takes from here those that one has."""

    __slots__ = ()

    def __call__(self, *arguments: object, **named: object) -> Any:
        made = self._remote_name[:1].isupper()
        plain = arguments and not any(isinstance(value, Remote) for value in arguments)
        once = bool(self._remote_first and plain and not made)
        return self.channel.ask("call", self, list(arguments), named, made=made, once=once)

    def __getitem__(self, key: object) -> Any:
        if not self._remote_made:
            raise TypeError(f"{self._remote_kind} is not data: it has no items")
        # Not kept as a reply: reading an item may change the object, as in a cache.
        return self.channel.ask("item", self, key)

    def __setitem__(self, key: object, value: object) -> None:
        self.channel.ask("set_item", self, key, value)

    def __iter__(self) -> Iterator[Any]:
        items = self.channel.ask("iterate", self)
        most = 1  # doubled below: few messages for a long iterator, few items from an endless one
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


#: Classes of stand-ins, by the methods that they have.
STAND_INS: dict[tuple[str, ...], type[Remote]] = {}


def stand_in(number: int, kind: str, able: tuple[str, ...], made: bool) -> Remote:
    """The stand-in for an object. The methods are in its class, because `callable` and the classes
    of `collections.abc` look for them there."""
    if able not in STAND_INS:
        methods = {name: Able.__dict__[name] for name in able}
        STAND_INS[able] = type("Remote", (Remote,), {"__slots__": (), **methods})
    return STAND_INS[able](number, kind, made)


def claim(owner: Remote, what: str, kind: type[T]) -> T:
    """The length, truth value, number or text that an object claims, as data."""
    value = owner.channel.ask("as", what, owner, looks=True)
    if not isinstance(value, kind):
        raise TypeError(f"{owner._remote_kind} has no {what}")
    return value


def main(job: dict[str, Any]) -> None:
    """Run the tests. Writes `ok` for each test that passes; any other line is the last one, and
    says why a test failed (`wrong …`, `gone`) or cannot be scored (`unfit …`)."""
    channel = ProgramClient(os.dup(1))
    nothing = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    restrictions.apply(job["limits"])
    said = os.dup(2)
    os.dup2(nothing, 2)  # what tests print, and warnings about them, are no results
    Remote.channel = channel
    for word in results(job, channel):
        os.write(said, " ".join(word.split())[:300].encode("utf-8", "replace") + b"\n")


def results(job: dict[str, Any], channel: ProgramClient) -> Iterator[str]:
    """The result of each test, up to the first that does not pass."""
    names: dict[str, Any] = {"__name__": "test", "__builtins__": builtins}
    ours = False
    try:
        channel.run(job["imports"], job["code"])
        for number, text in enumerate([job["setup"], *job["tests"]]):
            channel.known.clear()
            channel.seen.clear()
            # `ours`: an error would be the test's, not the program's.
            ours = True
            code = compile(text, "test", "exec", dont_inherit=True)
            ours = False
            names.update(found_names(job["names"], channel))
            # An error in the set-up is the program's if the set-up uses it: a value that is
            # missing, or of the wrong type, is a wrong answer.
            ours = number == 0 and not mentioned(code) & set(job["names"])
            exec(code, names)
            if channel.fault is not None:  # which the test has caught
                raise channel.fault
            if number:
                yield "ok"
    except BaseException as error:
        yield last_result(error, channel.fault, ours)


def last_result(error: BaseException, fault: TestOver | None, ours: bool) -> str:
    """The result of a test that has ended with an exception."""
    if fault is not None:
        return str(fault)
    if isinstance(error, AssertionError) and not ours:
        return "wrong value"
    return f"{'unfit' if ours else 'wrong'} {type(error).__name__}: {error}"


def found_names(wanted: list[str], channel: ProgramClient) -> dict[str, Any]:
    """The objects that the program defines, by name; NameError if one is missing."""
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
