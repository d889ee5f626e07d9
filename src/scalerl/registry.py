"""Registries: engines, losses, tasks and others by name. Users extend them by registering a name,
or name their own by import path (`package.module:name`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from scalerl.errors import InputError
from scalerl.text import one_line

T = TypeVar("T")


class Registry(Generic[T]):
    """A collection of objects of one kind by name. `accepts` checks an object that was imported by
    its path: by default it must be callable. `announce` is called with every name that is added,
    for code that checks names without importing this registry.

    >>> greetings: Registry[Callable[[], str]] = Registry("greeting")
    >>> @greetings.register("hello")
    ... def hello() -> str:
    ...     return "hello"
    >>> greetings["hello"]()
    'hello'
    >>> greetings["helo"]
    Traceback (most recent call last):
    scalerl.errors.InputError: no greeting 'helo': did you mean 'hello'?
    """

    def __init__(
        self,
        kind: str,
        accepts: Callable[[object], bool] = callable,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        self.kind = kind
        self._accepts = accepts
        self._announce = announce
        self._found: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Add an object under a name."""
        if self._found.get(name, thing) is not thing:
            raise InputError(f"there is a {self.kind} {name!r} already: choose another name")
        self._found[name] = thing
        if self._announce is not None:
            self._announce(name)
        return thing

    def register(self, name: str) -> Callable[[T], T]:
        """`add` as a decorator."""
        return lambda thing: self.add(name, thing)

    def __getitem__(self, name: str) -> T:
        if name in self._found:
            return self._found[name]
        if ":" in name:
            return self._import(name)
        near = get_close_matches(name, self._found, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(self))}"
        raise InputError(f"no {self.kind} {name!r}: {hint}")

    def resolve(self, choice: str | T) -> T:
        """The object for a name; an object is returned as it is."""
        return self[choice] if isinstance(choice, str) else choice

    def _import(self, path: str) -> T:
        module, _, attribute = path.partition(":")
        try:
            found: T = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # a user's module may raise anything
            why = one_line(f"{type(error).__name__}: {error}")
            raise InputError(f"{self.kind} {path!r} cannot be imported: {why}") from None
        if not self._accepts(found):
            raise InputError(
                f"{path!r} is not a {self.kind} but a {type(found).__name__}: name another"
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)
