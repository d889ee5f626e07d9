"""Names of losses and other choices that a recipe may use, checked without importing torch.

The built-in names are listed in the recipe package, and `Registry.register` adds further ones, so
that a misspelt name is refused when a file is read. A custom name has to be registered (its module
imported) before the recipe is loaded; on the command line, where no user code runs first, give the
import path `package.module:name` instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


class Names:
    """The known names of one kind: built-in and registered ones. `Annotated[str, NAMES]` is the
    type of a field that takes one of them, or an import path."""

    def __init__(self, kind: str, *builtin: str) -> None:
        self.kind = kind
        self._known = list(builtin)

    def add(self, name: str) -> None:
        """Accept this name in recipes."""
        if name not in self._known:
            self._known.append(name)

    def check(self, text: str) -> str:
        """The text, if it is a known name or an import path; ValueError with the nearest otherwise.

        >>> Names("loss", "cispo", "dapo").check("cispoo")
        Traceback (most recent call last):
        ValueError: "cispoo" is no loss; did you mean cispo?
        """
        if text in self._known or is_path(text):
            return text
        # 0.6 is difflib's own default: one or two wrong letters in a short name.
        near = difflib.get_close_matches(text, self._known, n=1, cutoff=0.6)
        hint = f"choose from {', '.join(self._known)}, or give your own as package.module:function"
        if near:
            hint = f"did you mean {near[0]}?"
        raise ValueError(f'"{text}" is no {self.kind}; {hint}')

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


def is_path(text: str) -> bool:
    """Whether the text is an import path.

    >>> is_path("mine.losses:soft"), is_path("mine.losses")
    (True, False)
    """
    module, _, attribute = text.partition(":")
    return attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def name_or_path(text: str) -> str:
    """The text, if it has the form of a name or an import path. Whether it exists is checked when a
    run is prepared."""
    if _NAME.fullmatch(text) or is_path(text):
        return text
    raise ValueError(f'"{text}" is neither a name nor an import path, package.module:name')
