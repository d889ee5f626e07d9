"""Reading a file of lines that is still being written: each byte once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from scalerl.files import MAX_LINE, LineReader, open_regular

L = TypeVar("L")
#: As messages have it.
LIMIT = f"{MAX_LINE / 1e6:g} MB"


def identity(found: Any) -> dict[str, Any] | None:
    """A line as JSON has it."""
    return found if isinstance(found, dict) else None


class TailReader(Generic[L]):
    """New lines of a file, from where it stopped the last time.

    A look costs what was written since the one before (and a comparison of 256 bytes), however long
    the file is; the state is a place in the file and those bytes. A last line without its end is
    left for later. When a resumed run has cut or replaced the file, `restarted` is True for that
    look, which gives all lines from the beginning: what was given before no longer holds.

        on disk      1 2 3            1 2 3 4 5½       1 2 3 4 5        1 2 3½  (resumed at 2)
        new()        [1, 2, 3]        [4]              [5]              [1, 2], restarted

    `make` makes a line of a JSON object, or None where it is none. `most` bounds the bytes of a
    look, so that a long file takes many looks and little memory. What is not a regular file is not
    opened, and lines over the limit of `scalerl.files` are skipped: `problem` says so.
    """

    def __init__(
        self, path: Path, make: Callable[[Any], L | None], most: int | None = None
    ) -> None:
        self.path = path
        self.make = make
        self.most = most
        #: Whether the last look began anew.
        self.restarted = False
        #: Why the file, or some of its lines, could not be read at the last look.
        self.problem: str | None = None
        self._reader = LineReader()
        self._inode = -1

    @property
    def bytes_read(self) -> int:
        """What following has cost so far."""
        return self._reader.bytes_read

    @property
    def at(self) -> int:
        """The position in the file up to which lines were given or skipped."""
        return self._reader.at

    def new(self) -> list[L]:
        """Lines that have come since the last look; none for a file that is not there."""
        self.restarted, self.problem = False, None
        try:
            with open_regular(self.path, buffering=0) as file:
                # Of the open file: if another takes its name meanwhile, the next look notices.
                inode = os.fstat(file.fileno()).st_ino
                if self.at and not (inode == self._inode and self._read_before(file)):
                    self.restarted, cost = True, self.bytes_read
                    self._reader = LineReader()
                    self._reader.bytes_read = cost
                self._inode = inode
                lines = list(self._reader.read(file, self.most))
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problem = f"{self.path.name}: {error.strerror or error}: not read"
            return []
        if self._reader.skipped:
            many = self._reader.skipped
            self.problem = (
                f"{self.path.name}: {many} line{'s' * (many > 1)} longer than {LIMIT}: skipped"
            )
        made = (self.make(parse_line(line)) for line in lines)
        return [line for line in made if line is not None]

    def _read_before(self, file: IO[bytes]) -> bool:
        """Whether what lies before the place where reading stopped is what lay there."""
        mark = self._reader.mark
        file.seek(self.at - len(mark))
        there = file.read(len(mark))
        self._reader.bytes_read += len(there)
        return there == mark


def parse_line(line: bytes) -> dict[str, Any] | None:
    """A JSON object; None for a line that a kill cut short, or bytes that are no text."""
    try:
        found = _quickly()(line)
    except ValueError:
        try:  # half a character, or half of a pair of them
            found = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, dict) else None


@cache
def _quickly() -> Callable[[bytes], Any]:
    """Three times as fast as Python's own, and as lenient with numbers. (Imported late: most
    commands read no lines of ours.)"""
    from pydantic_core import from_json

    return from_json
