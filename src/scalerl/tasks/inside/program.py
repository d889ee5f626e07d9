"""Runs a program inside the sandbox: once, on an input, or as a server of calls from the tests.

The program shares this process and may change anything in it. A reply from here is trusted only as
"this is the value the program claims": expected values never come in, and nothing is compared here.
"""

# Importing pathlib would delay the start of every program.
# ruff: noqa: PTH123, SIM115

from __future__ import annotations

import builtins
import os
import sys
from types import ModuleType

from scalerl.tasks.inside import restrictions, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Target of the link /dev/stdin, which normally leads to /proc; the sandbox has no /proc.
INPUT = "/tmp/input"
#: What a test may ask an object of the program for, as data.
CLAIMS: dict[str, Callable[[Any], object]] = {
    claim.__name__: claim for claim in (len, bool, int, float, str, repr)
}
#: Items of an iterator sent in one message. The tests ask for 1, 2, 4 … items: an endless iterator
#: costs nothing, and a long one few messages.
MOST_ITEMS = 1024


def main(job: dict[str, Any]) -> None:
    """Run the program on the job's input, or as a server if there is none."""
    if "input" in job:
        run(job)
    else:
        serve(job)


def run(job: dict[str, Any]) -> None:
    """Run the program on an input; what it prints is its answer."""
    with open(INPUT, "wb") as file:
        file.write(job["input"].encode("utf-8", "surrogatepass"))
    given = os.open(INPUT, os.O_RDONLY)
    os.dup2(given, 0)
    os.close(given)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    # After the input is written, before the first line of the program.
    restrictions.apply(job["limits"])
    execute(job["code"], "__main__")


def serve(job: dict[str, Any]) -> None:
    """Run the program, then answer calls until the connection is closed."""
    # The program's standard streams lead to /dev/null: what it prints must not mix with replies.
    channel = os.dup(0)
    nothing = os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    restrictions.apply(job["limits"])
    imports, code = wire.decode(wire.receive(channel))
    try:
        names = execute(code, "answer", imports)
        answer: tuple[object, ...] = ("value", None)
    except BaseException as error:
        names, answer = {}, raised(error)
    server = Server(names)
    wire.send(channel, server.encode(answer))
    while True:
        try:
            message = wire.receive(channel)
        except EOFError:
            os._exit(0)  # at once: the program may have registered exit handlers or threads
        request = wire.decode(message, lambda number, *_: server.objects[number])
        wire.send(channel, server.reply(request))


def execute(code: str, name: str, imports: str = "") -> dict[str, Any]:
    """Run a program as a module of this name and return what it defines. As a server, a program
    that calls exit() or reads missing input still counts with what it has defined so far."""
    module = ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    for word in ("exit", "quit"):
        # The site module, which is not loaded here, usually defines them.
        setattr(builtins, word, sys.exit)
    sys.modules[name] = module
    compiled = compile(code, "answer.py", "exec", dont_inherit=True)
    exec(imports, module.__dict__)
    try:
        exec(compiled, module.__dict__)
    except (SystemExit, EOFError):
        if name == "__main__":
            raise
    return module.__dict__


def raised(error: BaseException) -> tuple[object, ...]:
    """An exception as a reply: its class and its text."""
    try:
        words = str(error)[:200]
    except BaseException:  # the exception may be of the program's own class
        words = ""
    return ("raised", type(error).__name__, words)


class Server:
    """Answers the requests of the tests. Objects that are not data stay here; the tests refer to
    them by number."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.objects: list[Any] = []

    def handle(self, value: object) -> int:
        self.objects.append(value)
        return len(self.objects) - 1

    def encode(self, answer: tuple[object, ...]) -> bytes:
        return wire.encode(answer, self.handle)

    def reply(self, request: Any) -> bytes:
        what, *arguments = request
        try:
            message = self.encode(("value", getattr(self, "do_" + what)(*arguments)))
            if len(message) > wire.LONGEST:
                raise wire.NotData(f"a value of more than {wire.LONGEST} bytes")
            return message
        except BaseException as error:
            return self.encode(raised(error))

    def do_names(self, wanted: list[str]) -> dict[str, Any]:
        return {name: self.names[name] for name in wanted if name in self.names}

    def do_call(self, function: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        return function(*arguments, **named)

    def do_get(self, owner: Any, name: str) -> Any:
        return getattr(owner, name)

    def do_set(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)

    def do_item(self, owner: Any, key: Any) -> Any:
        return owner[key]

    def do_set_item(self, owner: Any, key: Any, value: Any) -> None:
        owner[key] = value

    def do_iterate(self, owner: Any) -> Any:
        return Items(iter(owner))

    def do_next(self, items: Any, most: int) -> list[Any]:
        """The next items, at most this many; none at the end."""
        if not isinstance(items, Items):
            items = Items(items)
        found: list[Any] = []
        while len(found) < min(most, MOST_ITEMS):
            try:
                found.append(next(items.source))
            except StopIteration:
                break
        return found

    def do_as(self, kind: str, owner: Any) -> Any:
        """The length, truth value, number or text that an object claims."""
        return CLAIMS[kind](owner)


class Items:
    """Wraps an iterator, so that it is sent as a handle even if its class is a kind of list."""

    def __init__(self, source: Any) -> None:
        self.source = source
