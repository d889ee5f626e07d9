"""Importers: one object for each log format, which makes tables of its files, in a registry.

A format of your own is one file that ends in one line:

    def read(path: Path) -> list[Table]:
        rows = [{"step": ..., "val_acc": ...}, ...]
        return [Table(path.stem, from_rows(rows, path), str(path))]

    IMPORTERS.add("mine", Importer(read, sniff=lambda path, head: head.startswith(b"MINE")))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from scalerl.errors import InputError
from scalerl.registry import Registry
from scalerl.runs.table import Table

#: The file has a signature that no other format has: no further importer is asked.
CERTAIN = 1.0
#: The content has the form of this format.
LIKELY = 0.5
#: Nothing speaks against it: used where no importer is surer.
FALLBACK = 0.1

A = TypeVar("A")
B = TypeVar("B")
Tables = list[Table]
Reader = Callable[[], Tables]
Collected = tuple[Reader, set[Path]]


@dataclass(frozen=True)
class Importer:
    """One format: `read` makes tables of a file or directory, the others say which are its own.

    All but `read` have a default that claims nothing. A file that cannot be read is an InputError
    of one line, with what to do.
    """

    #: The tables in a file that `sniff` claimed, or in a directory that `is_run` claimed.
    read: Callable[[Path], Tables]
    #: How sure it is, from 0 (no) to 1 (CERTAIN), that a file is of this format, given its path and
    #: its first 4096 bytes. The surest importer reads the file; of equals, the first in the list.
    sniff: Callable[[Path, bytes], float] = lambda path, head: 0.0
    #: Whether a directory as a whole is one run of this format.
    is_run: Callable[[Path], bool] = lambda folder: False
    #: Whether a file that was found in a directory is worth reading; a file given by its own path
    #: always is.
    is_log: Callable[[Path], bool] = lambda path: False
    #: Runs made of several entries of a directory: a reader of them, and the entries that need no
    #: further reading; None where there are no such runs.
    collect: Callable[[Path, list[Path]], Collected | None] = lambda folder, entries: None


def by_suffix(*suffixes: str) -> Callable[[Path], bool]:
    """An `is_log` that goes by the end of the name, in any case.

    >>> by_suffix(".csv", ".tsv")(Path("runs/A.CSV"))
    True
    """
    return lambda path: path.suffix.lower() in suffixes


def apply_to_each(make: Callable[[A], B], items: Iterable[A]) -> tuple[list[B], list[InputError]]:
    """The results for items that can be read, and the errors of the others: one damaged file does
    not keep the other runs of a directory from being read."""
    made: list[B] = []
    problems: list[InputError] = []
    for item in items:
        try:
            made.append(make(item))
        except InputError as error:
            problems.append(error)
    return made, problems


#: By name. Those that are added from outside are asked before those of this package, the newest
#: first.
IMPORTERS: Registry[Importer] = Registry("importer", accepts=lambda it: isinstance(it, Importer))
