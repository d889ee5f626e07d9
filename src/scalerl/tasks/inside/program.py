"""Runs a program: once, on an input, or as a server of calls that the judge makes.

The program shares this process and may own all of it. Nothing said from here is believed beyond
"this is the value I claim": what a value should be never comes in, and no comparison is made here.
"""

# pathlib would add to the start of every run of every program.
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

#: What /dev/stdin is a link to: there is no /proc for it to lead to.
INPUT = "/tmp/input"
CLAIMS: dict[str, Callable[[Any], object]] = {
    "len": len,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "repr": repr,
}
#: At most so many items of an iterator are taken at once.
MOST_ITEMS = 1024


def main(job: dict[str, Any]) -> None:
    """The program on an input, or as a server where there is none."""
    if "input" in job:
        run(job)
    else:
        serve(job)


def run(job: dict[str, Any]) -> None:
    """The program on an input; what it prints is its answer."""
    with open(INPUT, "wb") as file:
        file.write(job["input"].encode("utf-8", "surrogatepass"))
    given = os.open(INPUT, os.O_RDONLY)
    os.dup2(given, 0)
    os.close(given)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    restrictions.apply(job["limits"])
    execute(job["code"], "__main__")


def serve(job: dict[str, Any]) -> None:
    """The program, then the calls that come in, until there are no more."""
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
            os._exit(0)
        request = wire.decode(message, lambda number, *_: server.objects[number])
        wire.send(channel, server.reply(request))


def execute(code: str, name: str, imports: str = "") -> dict[str, Any]:
    """Run a program as the module of that name. What it leaves behind when it says exit(), or when
    it wants to read where there is nothing, counts."""
    module = ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    for word in ("exit", "quit"):
        setattr(builtins, word, sys.exit)  # as the site module would, which is not loaded
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
    try:
        words = str(error)[:200]
    except BaseException:
        words = ""
    return ("raised", type(error).__name__, words)


class Server:
    """Answers requests. Objects that are no data stay here, and are spoken of by number."""

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
        """Up to so many items, and none at the end."""
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
        """Its claim to a length, a truth, a number or a text."""
        return CLAIMS[kind](owner)


class Items:
    """An iterator, which must not look like data even if it is a program's list."""

    def __init__(self, source: Any) -> None:
        self.source = source
