"""Writing a recipe as TOML. (Reading is the standard library's tomllib.)

Our own writer instead of tomli-w, which cannot write comments: one for each unset field, and one
after a number that says where it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
#: TOML allows no control character in a string; five characters have an escape of two.
_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x20), 0x7F)}
_ESCAPES |= str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})


def string(text: str) -> str:
    """
    >>> print(string('say "hi"'))
    "say \\"hi\\""
    """
    return '"' + text.translate(_ESCAPES) + '"'


def value(item: Any) -> str:
    """A value as TOML: a string, a number, a truth value, an array or an inline table.

    >>> value([1, 2.5]), value({"a b": True}), value(5e-7)
    ('[1, 2.5]', '{"a b" = true}', '5e-07')
    """
    # Before int, of which bool is a subclass.
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int | float):
        # The shortest text that is read back as the same float.
        return repr(item)
    if isinstance(item, str):
        return string(item)
    if isinstance(item, list | tuple):
        return "[" + ", ".join(value(part) for part in item) + "]"
    if isinstance(item, Mapping):
        pairs = (f"{_key(k)} = {value(v)}" for k, v in item.items())
        return "{" + ", ".join(pairs) + "}"
    raise TypeError(f"TOML has no word for {item!r}")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else string(name)


def write(data: Mapping[str, Any], marks: Mapping[str, str] | None = None) -> str:
    """A mapping of values and of sections as TOML. Unset fields are comments; `marks` (dotted
    path → text) become comments after their values."""
    marks = marks or {}
    lines = [line(k, v, marks.get(k)) for k, v in data.items() if not isinstance(v, Mapping)]
    for section, body in data.items():
        if isinstance(body, Mapping):
            lines += ["", f"[{_key(section)}]"]
            lines += [line(k, v, marks.get(f"{section}.{k}")) for k, v in body.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def line(key: str, item: Any, mark: str | None) -> str:
    """A key and its value, with a comment after it; an unset one is a comment.

    >>> line("k", 8, "paper"), line("minutes", None, None)
    ('k = 8  # paper', '# minutes is unset')
    """
    if item is None:
        return f"# {key} is unset"
    return f"{_key(key)} = {value(item)}" + (f"  # {mark}" if mark else "")
