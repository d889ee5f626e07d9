"""Names that a recipe may hold, known without importing what they name.

What a name stands for needs torch, a recipe is read without it. So the built-in names are listed
on this side, `Registry.register` adds those it is given, and a misspelt one is refused when the
file is read. A name that only a decorator gives has to be registered (its module imported) before
the recipe is loaded; where no code of the user runs first, as on the command line, the import path
`package.module:name` says where to look.
"""

from __future__ import annotations

import difflib
import re

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


class Names:
    """The names of one kind of thing: those that come with scalerl, and registered ones."""

    def __init__(self, kind: str, *builtin: str) -> None:
        self.kind = kind
        self._known = list(builtin)

    def add(self, name: str) -> None:
        """Let recipes use this name as well."""
        if name not in self._known:
            self._known.append(name)

    def check(self, text: str) -> str:
        """The text, if it is a known name or an import path; else a ValueError with the nearest.

        >>> Names("loss", "cispo", "dapo").check("cispoo")
        Traceback (most recent call last):
        ValueError: "cispoo" is no loss; did you mean cispo?
        """
        if text in self._known or is_path(text):
            return text
        near = difflib.get_close_matches(text, self._known, n=1, cutoff=0.6)
        hint = (
            f"did you mean {near[0]}?"
            if near
            else f"choose from {', '.join(self._known)}, or give your own as "
            "package.module:function"
        )
        raise ValueError(f'"{text}" is no {self.kind}; {hint}')


def is_path(text: str) -> bool:
    """Whether the text is an import path.

    >>> is_path("mine.losses:soft"), is_path("mine.losses")
    (True, False)
    """
    module, _, attribute = text.partition(":")
    return attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def name_or_path(text: str) -> str:
    """The text, if it could be a name or an import path: what it stands for is found, with the
    nearest name where there is none, when the run is put together."""
    if _NAME.fullmatch(text) or is_path(text):
        return text
    raise ValueError(f'"{text}" is neither a name nor an import path, package.module:name')
