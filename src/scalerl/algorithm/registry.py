"""Names for functions, open to the outside: by decorator, or by `package.module:name`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from scalerl.errors import InputError
from scalerl.recipe.names import Names

F = TypeVar("F", bound=Callable[..., object])


class Registry(Generic[F]):
    """A named collection of functions of one kind.

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

    def __init__(self, kind: str, names: Names | None = None) -> None:
        """`names`: those that recipes may use, which registered ones join."""
        self.kind = kind
        self._names = names
        self._found: dict[str, F] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """Decorator: make the function available under a name."""

        def add(function: F) -> F:
            if self._found.get(name, function) is not function:
                raise InputError(f"there is a {self.kind} {name!r} already: choose another name")
            self._found[name] = function
            if self._names is not None:
                self._names.add(name)
            return function

        return add

    def __getitem__(self, name: str) -> F:
        if name in self._found:
            return self._found[name]
        if ":" in name:
            return self._import(name)
        near = get_close_matches(name, self._found, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(self))}"
        raise InputError(f"no {self.kind} {name!r}: {hint}")

    def resolve(self, choice: str | F) -> F:
        """The function itself, given by name or as it is."""
        return self[choice] if isinstance(choice, str) else choice

    def _import(self, path: str) -> F:
        module, _, attribute = path.partition(":")
        try:
            found: F = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise InputError(f"{self.kind} {path!r} cannot be imported: {error}") from None
        if not callable(found):
            raise InputError(f"{self.kind} {path!r} is not a function")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)
