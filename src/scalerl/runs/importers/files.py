"""Opening other people's files: only regular files, only up to a size, one line at a time.

Everything that reads from disk goes through here, so that a named pipe, a device, a missing
permission or a file of one endless line ends in one line of explanation.
"""

from __future__ import annotations

import codecs
import stat
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from scalerl.errors import InputError
from scalerl.files import confined, is_inside, largest_log, open_regular, read_limited

__all__ = ["Lines", "check_file", "confined", "is_inside", "read_bytes", "read_head", "read_text"]

#: Larger files are refused: no log of scalar metrics needs them, and they would fill the memory.
MAX_BYTES = 2_000_000_000
#: Longer lines are refused: a line of a log is a row of numbers.
MAX_LINE = 10_000_000

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


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
    limit = largest_log(MAX_BYTES)
    if info.st_size > limit:
        raise InputError(
            f"{path}: {info.st_size / 1e9:.1f} GB is over the limit of {limit / 1e9:g} GB: "
            "export only the metrics you need"
        )
    return info.st_size


def read_head(path: Path, size: int = 4096) -> bytes:
    """The first bytes of a file: enough to tell its format."""
    check_file(path)
    try:
        with open_regular(path) as file:
            head: bytes = file.read(size)
            return head
    except OSError as error:
        raise InputError(f"{path}: {_reason(error)}") from None


def read_bytes(path: Path) -> bytes:
    """The whole file."""
    check_file(path)
    try:
        return read_limited(path, MAX_BYTES)
    except OSError as error:
        raise InputError(f"{path}: {_reason(error)}") from None


def read_text(path: Path) -> str:
    """The whole file as text."""
    data = read_bytes(path)
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
        try:
            with open_regular(self.path, "r", encoding=encoding, newline="") as file:
                while line := file.readline(MAX_LINE + 1):
                    number += 1
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
    return next((name for bom, name in _BOMS if head.startswith(bom)), "utf-8")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split())
