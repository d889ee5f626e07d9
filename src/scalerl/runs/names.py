"""Finding the column that a name means, and saying what there is when none does."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from scalerl.errors import InputError
from scalerl.runs.table import Table


def resolve(asked: str, table: Table, usable: list[str], flag: str) -> str:
    """The column meant by a name: exact, else in another case, else by its last part if unique."""
    if asked in usable:
        return asked
    lower = asked.lower()
    for match in (
        [c for c in usable if c.lower() == lower],
        [c for c in usable if c.lower().endswith("/" + lower)],
    ):
        if len(match) == 1:
            return match[0]
        if match:
            raise InputError(f"{table.name}: {flag} {asked} could be {listing(match)}")
    if asked in table.columns:
        raise InputError(f"{table.name}: {asked} holds no numbers: {suggest(asked, usable, flag)}")
    raise InputError(f"{table.name}: no column {asked!r}: {suggest(asked, usable, flag)}")


def suggest(asked: str, known: list[str], flag: str = "") -> str:
    """What was probably meant, nearest first."""
    by_lower = {c.lower(): c for c in known}
    near = [by_lower[c] for c in difflib.get_close_matches(asked.lower(), by_lower, 8, 0.5)]
    near += [c for c in known if asked.lower() in c.lower() and c not in near]
    use = f"use {flag} with" if flag else "try"
    return f"{use} {listing(near or known)}" if known else "the table has no such columns"


def listing(names: Iterable[object], most: int = 8) -> str:
    """At most eight names, and how many more there are."""
    all_names = [shorten(str(name)) for name in names]
    text = ", ".join(all_names[:most])
    return text + (f" and {len(all_names) - most} more" if len(all_names) > most else "")


def shorten(text: str, most: int = 80) -> str:
    """The text on one line, printable, and not longer than a name should be."""
    line = "".join(ch if ch.isprintable() else "?" for ch in text)
    return line if len(line) <= most else line[: most - 1] + "…"
