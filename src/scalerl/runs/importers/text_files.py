"""Opening other people's files: only regular files, only up to a size, one line at a time.

Everything that reads from disk goes through here, so that a named pipe, a device, a missing
permission or a file of one endless line ends in one line of explanation.
"""

from __future__ import annotations

import codecs
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from scalerl.errors import InputError
from scalerl.files import is_inside, largest_log, open_regular
from scalerl.runs.limits import ImportLimits, Meter

#: Longer lines are refused: a line of a log is a row of numbers.
MAX_LINE = 10_000_000

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def check_file(path: Path) -> int:
    """The size of a regular, readable file, or an InputError that says why not."""
    if not is_inside(path):
        raise InputError(f"{path.name}: a link that leads out of the directory: not read")
    try:
        info = path.stat()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {_reason(error)}") from None
    if not stat.S_ISREG(info.st_mode):
        raise InputError(f"{path}: not a regular file: give a log file or a directory")
    limits = ImportLimits.from_environment()
    limits.check(path, "bytes", info.st_size)
    # The live page allows less than the command line, and no setting raises that.
    if info.st_size > (largest := largest_log(limits.bytes)):
        raise InputError(
            f"{path}: {info.st_size / 1e9:.3g} GB is over the limit of {largest / 1e9:.3g} GB: "
            "export only the metrics you need"
        )
    return info.st_size


@contextmanager
def open_binary(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """The file opened for reading, and its size in bytes."""
    size = check_file(path)
    try:
        with open_regular(path) as file:
            yield file, size
    except OSError as error:
        raise InputError(f"{path}: {_reason(error)}") from None


def read_head(path: Path, size: int = 4096) -> bytes:
    """The first bytes of a file: enough to tell its format."""
    with open_binary(path) as (file, _):
        return file.read(size)


def is_text(head: bytes) -> bool:
    """Whether a file with these first bytes is text: it is not compressed and has no NUL byte, but
    for those of UTF-16."""
    return not is_compressed(head) and (b"\0" not in head or head.startswith(_UTF_16))


def is_compressed(head: bytes) -> bool:
    """Whether a file with these first bytes is gzip or ZIP (a spreadsheet is a ZIP file)."""
    return head.startswith((b"\x1f\x8b", b"PK\x03\x04"))


def read_text(path: Path) -> str:
    """The whole file as text."""
    with open_binary(path) as (file, size):
        data = file.read(size)
    encoding = _encoding(data)
    try:
        text = data.decode(encoding)
    except UnicodeError:
        raise InputError(f"{path}: not {encoding.upper()} text: save it as UTF-8") from None
    if "\0" in text:
        raise InputError(f"{path}: it has a NUL byte: the file is binary or damaged")
    return text


@dataclass
class Lines:
    """The lines of a text file. After the last, `complete` says whether it ended in a line end."""

    path: Path
    complete: bool = field(default=True, init=False)

    def __iter__(self) -> Generator[str, None, None]:
        encoding = _encoding(read_head(self.path, 4))
        number = 0
        meter = Meter(self.path)
        try:
            # newline="": csv needs line ends inside of quoted cells as they are.
            with open_regular(self.path, "r", encoding=encoding, newline="") as file:
                while line := file.readline(MAX_LINE + 1):
                    number += 1
                    meter.add()
                    if len(line) > MAX_LINE:
                        raise InputError(
                            f"{self.path}: line {number} is longer than "
                            f"{MAX_LINE // 1_000_000} MB: not a log of metrics"
                        )
                    if "\0" in line:
                        raise InputError(
                            f"{self.path}: line {number} has a NUL byte: the file is binary "
                            "or damaged"
                        )
                    self.complete = line.endswith(("\n", "\r"))
                    yield line
        except UnicodeError:
            raise InputError(
                f"{self.path}: not {encoding.upper()} text after line {number}: save it as UTF-8"
            ) from None
        except OSError as error:
            raise InputError(f"{self.path}: {_reason(error)}") from None


def _encoding(head: bytes) -> str:
    if head.startswith(_UTF_16):
        return "utf-16"
    return "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else "utf-8"


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split())
