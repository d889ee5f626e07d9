"""Reading a file of lines that is still being written: each byte once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

L = TypeVar("L")
#: Bytes before the place where reading stopped that are compared with what was there: they hold
#: the numbers of the last line, of which no two are alike.
MARK = 256


def as_it_is(found: Any) -> dict[str, Any] | None:
    """A line as JSON has it."""
    return found if isinstance(found, dict) else None


class Follower(Generic[L]):
    """New lines of a file, from where it stopped the last time.

    A look costs what was written since the one before (and a comparison of 256 bytes), however long
    the file is; the state is a place in the file and those bytes. A last line without its end is
    left for later. When a resumed run has cut or replaced the file, `restarted` is True for that
    look, which gives all lines from the beginning: what was given before no longer holds.

        on disk      1 2 3            1 2 3 4 5½       1 2 3 4 5        1 2 3½  (resumed at 2)
        new()        [1, 2, 3]        [4]              [5]              [1, 2], restarted

    `make` makes a line of a JSON object, or None where it is none. `most` bounds the bytes of a
    look, so that a long file takes many looks and little memory.
    """

    def __init__(
        self, path: Path, make: Callable[[Any], L | None], most: int | None = None
    ) -> None:
        self.path = path
        self.make = make
        self.most = most
        #: Whether the last look began anew.
        self.restarted = False
        #: What following has cost so far.
        self.bytes_read = 0
        self._at = 0
        self._inode = -1
        self._mark = b""

    def new(self) -> list[L]:
        """Lines that have come since the last look; none for a file that is not there."""
        self.restarted = False
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            # Of the open file: if another takes its name meanwhile, the next look notices.
            inode = os.fstat(file.fileno()).st_ino
            if self._at and not (inode == self._inode and self._read_before(file)):
                self.restarted, self._at, self._mark = True, 0, b""
            self._inode = inode
            file.seek(self._at)
            found = file.read(self.most if self.most is not None else -1)
            while len(found) == self.most and b"\n" not in found and (more := file.read(self.most)):
                found += more
        self.bytes_read += len(found)
        whole = found[: found.rfind(b"\n") + 1]
        self._at += len(whole)
        self._mark = (self._mark + whole)[-MARK:]
        made = (self.make(parsed(line)) for line in whole.split(b"\n"))
        return [line for line in made if line is not None]

    def _read_before(self, file: BinaryIO) -> bool:
        """Whether what lies before the place where reading stopped is what lay there."""
        file.seek(self._at - len(self._mark))
        there = file.read(len(self._mark))
        self.bytes_read += len(there)
        return there == self._mark


def parsed(line: bytes) -> dict[str, Any] | None:
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
