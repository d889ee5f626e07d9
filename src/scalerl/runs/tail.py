"""A cursor in a file of JSON lines that is still being written: each byte is read once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from scalerl.files import MAX_LINE, LineReader, open_regular

L = TypeVar("L")


@dataclass(eq=False)
class TailReader(Generic[L]):
    """New lines of a file, from where the last call of `new` stopped.

    A call reads what was written since the call before (and compares 256 bytes), however long the
    file is; the state is a position in the file and those bytes. A last line without its end is
    left for later. When a resumed run has cut or replaced the file, `restarted` is True for that
    call, which gives all lines from the beginning: lines of earlier calls are no longer valid.

        on disk      1 2 3            1 2 3 4 5½       1 2 3 4 5        1 2 3½  (resumed at 2)
        new()        [1, 2, 3]        [4]              [5]              [1, 2], restarted

    `make` makes a value of a JSON object, or None to leave the line out. `max_bytes` bounds the
    bytes of a call, so that a long file takes many calls and little memory. Only regular files are
    opened, and lines over the limit of `scalerl.files` are skipped: `problem` reports both.
    """

    path: Path
    make: Callable[[Any], L | None]
    max_bytes: int | None = None
    #: Whether the last call started again at the beginning of the file.
    restarted: bool = False
    #: Why the file, or some of its lines, could not be read at the last call.
    problem: str | None = None
    _reader: LineReader = field(default_factory=LineReader)
    _inode: int = -1

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, over all calls."""
        return self._reader.bytes_read

    @property
    def at(self) -> int:
        """The position in the file up to which lines were given or skipped."""
        return self._reader.at

    def new(self) -> list[L]:
        """Lines that have been added since the last call; none for a file that is not there."""
        self.restarted, self.problem = False, None
        try:
            with open_regular(self.path, buffering=0) as file:
                # The inode of the open file, not of the path: if another file takes the name while
                # this one is read, the next call notices.
                inode = os.fstat(file.fileno()).st_ino
                if self.at and not (inode == self._inode and self._mark_matches(file)):
                    self.restarted, cost = True, self.bytes_read
                    self._reader = LineReader()
                    self._reader.bytes_read = cost
                self._inode = inode
                lines = list(self._reader.read(file, self.max_bytes))
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problem = f"{self.path.name}: {error.strerror or error}: not read"
            return []
        if self._reader.skipped:
            many = self._reader.skipped
            limit = f"{MAX_LINE / 1e6:g} MB"
            self.problem = (
                f"{self.path.name}: {many} line{'s' * (many > 1)} longer than {limit}: skipped"
            )
        made = (self.make(parse_line(line)) for line in lines)
        return [line for line in made if line is not None]

    def _mark_matches(self, file: IO[bytes]) -> bool:
        """Whether the bytes before the position are still those that were read there."""
        # A file that was cut and has grown past the position again has the same inode and a
        # plausible size: only its content shows that it was replaced.
        mark = self._reader.mark
        file.seek(self.at - len(mark))
        there = file.read(len(mark))
        self._reader.bytes_read += len(there)
        return there == mark


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a line; None for a line that a kill cut short, or that is no text."""
    try:
        found = _fast_json()(line)
    except ValueError:
        try:  # half a UTF-8 character or surrogate pair: Python's parser takes the replaced text
            found = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, dict) else None


def select_columns(columns: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...] | None]:
    """A function from a JSON object to the values of these columns, None for those it lacks; a
    slash leads into an object. It returns None for anything but an object.

    >>> select_columns(("step", "length/mean"))({"step": 3, "length": {"mean": 40.5, "max": 64}})
    (3, 40.5)
    """
    paths = tuple(tuple(column.split("/")) for column in columns)

    def select(found: Any) -> tuple[Any, ...] | None:
        if not isinstance(found, dict):
            return None
        values = []
        for path in paths:
            value: Any = found
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            values.append(value)
        return tuple(values)

    return select


@cache
def _fast_json() -> Callable[[bytes], Any]:
    # Three times as fast as the json module, and as lenient with NaN. Imported at the first line,
    # because most commands read no record and pydantic_core takes time to import.
    from pydantic_core import from_json

    return from_json
