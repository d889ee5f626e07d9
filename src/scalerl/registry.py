"""Names for the parts one may choose between, open to the outside: by a line of code that adds to
them, or by `package.module:name`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from scalerl.errors import InputError
from scalerl.text import one_line

T = TypeVar("T")


class Registry(Generic[T]):
    """A named collection of things of one kind. `accepts` says whether something that was imported
    by its path is of that kind: by default anything that can be called. `announce` is told every
    name that is added, for those who check names without importing this registry.

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
        """Make a thing available under a name."""
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
        """The thing itself, given by name or as it is."""
        return self[choice] if isinstance(choice, str) else choice

    def _import(self, path: str) -> T:
        module, _, attribute = path.partition(":")
        try:
            found: T = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # somebody else's module may raise anything
            why = one_line(f"{type(error).__name__}: {error}")
            raise InputError(f"{self.kind} {path!r} cannot be imported: {why}") from None
        if not self._accepts(found):
            raise InputError(
                f"{path!r} is not a {self.kind} but a {type(found).__name__}: name another"
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)
