"""A lock on the run directory, so that one process at a time writes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from scalerl.errors import InputError
from scalerl.files import RefusedFile, open_regular

try:
    import fcntl
except ImportError:  # Windows: two runs on one directory are not noticed there
    fcntl = None  # type: ignore[assignment]


class RunLock:
    """Held while a run is written. The system releases it when the process ends, even by a kill."""

    def __init__(self, path: Path) -> None:
        self.path = path / "lock"
        try:
            # Not "w", which would empty the file of the process that holds the lock.
            self._file = open_regular(self.path, "a+", encoding="utf-8")
        except RefusedFile as error:
            raise InputError(f"{self.path}: {error.strerror}: remove it") from None
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}: choose another directory") from None
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            owner = self._file.read(100).strip() or "another process"
            self._file.close()
            raise InputError(
                f"{path} is being written by {owner}: wait for it, or choose another directory"
            ) from None
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()}\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def is_locked(path: Path) -> bool:
    """Whether a process is writing this run; False on systems without file locks."""
    if fcntl is None:
        return False
    try:
        file = open_regular(path / "lock")
    except OSError:
        return False
    with file:
        try:
            # Shared, so that two processes that ask at the same time do not see each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
