"""Files and JSON: bounded reading of untrusted files, atomic writing, JSON without NaN.

A name in a run directory can belong to a named pipe, a device, a socket, a link that leads
elsewhere, or a file of gigabytes. `open()` on a named pipe waits until another process opens the
other end, and `read()` of a whole file takes as much memory as the file has bytes. Everything that
reads a run directory, an imported log or a served directory opens files with `open_regular`.

Whole files are written with `write_atomic`: a reader sees the old content or the new, never a part.
"""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

#: Bytes read at a time by `LineReader`.
BLOCK = 1 << 20
#: Bytes of one line of a run's record. The longest known lines, steps of 768 prompts, have 0.3 MB.
MAX_LINE = 4_000_000
#: Bytes of a whole file that describes a run: recipe.toml, recipe.json, status.json, study.toml.
#: The largest known, the recipe of a mixture of a hundred tasks, has 0.1 MB.
MAX_DOCUMENT = 2_000_000
#: Bytes before a position that identify the place: they hold the numbers of the last line, which
#: differ from line to line.
MARK = 256

#: Real paths outside of which nothing is read; None: no restriction.
_ROOTS: ContextVar[tuple[str, ...] | None] = ContextVar("roots", default=None)
#: Bytes of the largest log that `confined` lets be read whole; None: no limit of its own.
_LARGEST: ContextVar[int | None] = ContextVar("largest", default=None)


class RefusedFile(OSError):
    """A file that exists and is not read; `strerror` is the reason."""


@contextmanager
def confined(roots: Sequence[str | Path], largest: int | None = None) -> Iterator[None]:
    """Inside this, files outside of `roots` are refused, whatever links lead to them, and so are
    logs of more than `largest` bytes."""
    token = _ROOTS.set(tuple(os.path.realpath(root) for root in roots))
    limit = _LARGEST.set(largest)
    try:
        yield
    finally:
        _LARGEST.reset(limit)
        _ROOTS.reset(token)


def largest_log(otherwise: int) -> int:
    """Bytes of the largest log that may be read whole here."""
    limit = _LARGEST.get()
    return otherwise if limit is None else min(limit, otherwise)


def is_inside(path: str | Path, roots: Sequence[str] | None = None) -> bool:
    """Whether a path, with all links followed, is one of these real paths or below one; without
    `roots`, those of `confined`."""
    allowed = _ROOTS.get() if roots is None else roots
    return allowed is None or _below(os.path.realpath(path), allowed)


def _below(real: str, roots: Sequence[str]) -> bool:
    return any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


# Path.is_file and Path.is_dir raise where a directory may not be looked into, or a link leads to
# itself. For a place that others may have written, the answer there is no.


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a regular file; False where that cannot be found out."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a directory; False where that cannot be found out."""
    return os.path.isdir(path)  # noqa: PTH112


def open_regular(
    path: str | os.PathLike[str],
    mode: str = "rb",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
) -> IO[Any]:
    """`open()` for regular files. Anything else raises RefusedFile at once, also a file outside of
    the directories that `confined` names."""
    return open(path, mode, buffering, encoding, newline=newline, opener=_opener)


def _opener(path: str, flags: int) -> int:
    # Before the open: to open a device can have effects of its own, for example rewind a tape.
    # (A file that is not there is created below, or the open raises the same error.)
    with suppress(FileNotFoundError):
        _check_regular(Path(path).stat(), path)
    # O_NONBLOCK: if a named pipe takes the name meanwhile, the open still returns at once.
    extra = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC"))
    descriptor = os.open(path, flags | extra, 0o666)
    try:
        _check_regular(os.fstat(descriptor), path)
        roots = _ROOTS.get()
        if roots is not None and not _below(_real_path(descriptor, path), roots):
            raise RefusedFile(errno.EXDEV, "a link that leads out of the directory", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise RefusedFile(errno.EINVAL, "not a regular file", path)


def _real_path(descriptor: int, path: str) -> str:
    """Of the file that was opened, not of what has its name now."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:  # no /proc
        return os.path.realpath(path)


def read_limited(path: str | os.PathLike[str], most: int = MAX_DOCUMENT) -> bytes:
    """A whole file of at most `most` bytes; RefusedFile for a larger one, which is not read."""
    with open_regular(path, buffering=0) as file:
        found = b""
        if os.fstat(file.fileno()).st_size <= most:
            while len(found) <= most and (block := file.read(most + 1 - len(found))):
                found += block
            if len(found) <= most:
                return found
        raise RefusedFile(errno.EFBIG, f"larger than {most / 1e6:g} MB", os.fspath(path))


def write_atomic(
    path: str | os.PathLike[str], content: str | bytes, *, durable: bool = True, mode: int = 0o666
) -> Path:
    """Write a whole file in place of an old one, and return its path. Readers see the old content
    or the new; after an error (OSError) the old file is unchanged and nothing is left beside it.

    `durable`: the content is on the disk when this returns, also if the machine loses power.
    `mode`: permissions of the new file, before the process's umask is applied.
    """
    target = Path(path)
    # A name of its own for each writer: two processes that write the same report must not write
    # into one temporary file. The name begins with a dot, so that globs of results do not match it.
    writer = f"{os.getpid()}-{threading.get_ident()}"
    temporary = target.with_name(f".{target.name}.{writer}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                # Before the rename: some file systems order a rename before the data it renames,
                # and a power cut would leave an empty file under the final name.
                file.flush()
                os.fsync(descriptor)
        temporary.replace(target)
        if durable:
            flush_to_disk(target.parent)  # the rename itself is a change of the directory
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target


def flush_to_disk(path: str | os.PathLike[str]) -> None:
    """Wait until a file's content, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(
    value: Any, *, indent: int | None = None, compact: bool = False, ascii_only: bool = True
) -> str:
    """Strict JSON of nested dicts, lists and tuples: NaN and infinity, which JSON lacks, are null.

    >>> to_json({"low": 0.5, "high": float("inf")})
    '{"low": 0.5, "high": null}'
    """
    write = functools.partial(
        json.dumps, indent=indent, separators=(",", ":") if compact else None,
        ensure_ascii=ascii_only, allow_nan=False,
    )  # fmt: skip
    try:
        return write(value)
    except ValueError:
        # Hardly ever: looking for NaN beforehand would take twice as long as writing.
        return write(finite(value))


def to_json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """`to_json` as UTF-8. Half of a surrogate pair, which UTF-8 cannot hold, is written escaped."""
    return to_json(value, indent=indent, ascii_only=False).encode("utf-8", "backslashreplace")


def finite(value: Any) -> Any:
    """The value with NaN and infinity replaced by None, at any depth."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class LineReader:
    r"""Whole lines of a file that may still grow, from where the last reading stopped.

    A last line without its end is left for later. A line longer than MAX_LINE is skipped: the
    position moves on through it, so that its bytes are read once and never held together. Holes of
    a sparse file are passed over without being read.

    >>> import tempfile
    >>> with tempfile.TemporaryFile(buffering=0) as file:
    ...     _ = file.write(b"one\ntwo\nthr")
    ...     reader = LineReader()
    ...     list(reader.read(file)), reader.at
    ([b'one', b'two'], 8)
    """

    def __init__(self) -> None:
        #: Position in the file, and the bytes right before it, at most MARK.
        self.at = 0
        self.mark = b""
        #: Lines that were skipped because of their length.
        self.skipped = 0
        #: Bytes that were read, also those of a last line that was left.
        self.bytes_read = 0
        self._in_long_line = False

    def read(self, file: IO[bytes], most: int | None = None) -> Iterator[bytes]:
        """The lines that follow, without their ends; after about `most` bytes no more. `file` is
        unbuffered."""
        return (line for _, line in self.read_placed(file, most))

    def read_placed(self, file: IO[bytes], most: int | None = None) -> Iterator[tuple[int, bytes]]:
        """`read`, with the position in the file at which each line begins."""
        left = b""
        begun, end = self.at, self.bytes_read + (most or 0)
        file.seek(self.at)
        while most is None or self.bytes_read < end or self.at == begun:
            if self._in_long_line:
                self._pass_hole(file)
            block = file.read(BLOCK if most is None else min(BLOCK, most))
            if not block:
                return
            self.bytes_read += len(block)
            if self._in_long_line:
                block = self._end_of_long_line(block)
            left += block
            whole = left[: left.rfind(b"\n") + 1]
            left = left[len(whole) :]
            at = self.at
            self._advance(whole)
            if len(left) > MAX_LINE:
                self.skipped += 1
                self._in_long_line = True
                self._advance(left)
                left = b""
            yield from self._short(whole, at)

    def jump(self, at: int, mark: bytes) -> None:
        """Go to the beginning of a line, behind the bytes `mark`."""
        self.at, self.mark = at, mark[-MARK:]
        self._in_long_line = False

    def _short(self, whole: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        for line in whole.split(b"\n")[:-1]:
            if len(line) <= MAX_LINE:
                yield at, line
            else:
                self.skipped += 1
            at += len(line) + 1

    def _advance(self, data: bytes) -> None:
        self.at += len(data)
        self.mark = (self.mark + data[-MARK:])[-MARK:]

    def _end_of_long_line(self, block: bytes) -> bytes:
        """What of a block lies after the line that is being skipped."""
        end = block.find(b"\n") + 1
        self._in_long_line = end == 0
        self._advance(block[: end or len(block)])
        return block[end:] if end else b""

    def _pass_hole(self, file: IO[bytes]) -> None:
        """Move to the next bytes that are stored: what lies before them reads as zeros."""
        try:
            there = os.lseek(file.fileno(), self.at, os.SEEK_DATA)
        except (OSError, AttributeError) as error:
            # ENXIO: nothing is stored up to the end. Anything else: no support for holes here.
            missing = isinstance(error, OSError) and error.errno == errno.ENXIO
            there = os.fstat(file.fileno()).st_size if missing else self.at
        if there > self.at:
            self.mark = (self.mark + bytes(min(there - self.at, MARK)))[-MARK:]
            self.at = there
        file.seek(self.at)


def lines_of(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a file, at most MAX_LINE bytes long, with a last one that has no end."""
    reader = LineReader()
    with open_regular(path, buffering=0) as file:
        yield from reader.read(file)
        file.seek(reader.at)
        last = file.read(MAX_LINE + 1)
        if 0 < len(last) <= MAX_LINE and b"\n" not in last:
            yield last


def lines_backwards(file: IO[bytes], block: int, most: int) -> Iterator[bytes]:
    """The lines of an unbuffered file from its end, without those longer than MAX_LINE; at most the
    last `most` bytes that are stored are read, `block` at a time."""
    at = file.seek(0, os.SEEK_END)
    end = b""  # the end of a line, until its beginning is read
    too_long = False
    while at > 0 and most > 0:
        size = min(block, at)
        hole = _hole_before(file, at, size)
        at -= max(size, hole)
        if hole:
            found = b"\0"  # stands for the hole: no line end is in it
            too_long |= hole > MAX_LINE
        else:
            file.seek(at)
            found = file.read(size)
            most -= size
        first, *whole = (found + end).split(b"\n")
        if whole and too_long:
            whole.pop()  # of this line only the end was kept
            too_long = False
        yield from (line for line in reversed(whole) if len(line) <= MAX_LINE)
        too_long |= len(first) > MAX_LINE
        end = b"" if too_long else first
    if at == 0 and not too_long:
        yield end


def _hole_before(file: IO[bytes], at: int, size: int) -> int:
    """Bytes before a position that are not stored, found by doubling; 0 where the last `size` bytes
    hold something."""
    hole = 0
    while size <= at:
        try:
            if os.lseek(file.fileno(), at - size, os.SEEK_DATA) < at:
                break
        except (OSError, AttributeError) as error:
            if not isinstance(error, OSError) or error.errno != errno.ENXIO:
                break
        hole, size = size, 2 * size
    return hole
