"""Writing files whole or not at all, under names that cannot leave their directory."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scalerl.errors import InputError

MAX_SLUG = 60


def write_whole(path: str | Path, data: bytes) -> Path:
    """Write to a temporary name beside `path` and rename: a reader never sees half a file."""
    target = Path(path)
    temporary: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        reason = error.strerror or type(error).__name__
        raise InputError(
            f"cannot write {str(target)!r}: {reason}; choose a directory you can write to"
        ) from None
    return target


def slug(name: str) -> str:
    """A file name's worth of the run's name.

    >>> slug("../../etc/passwd"), slug("GRPO lr=3e-5"), slug("💥")
    ('etc-passwd', 'GRPO-lr-3e-5', 'run')
    """
    text = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    text = re.sub(r"\.{2,}", "-", text).strip("-._")[:MAX_SLUG].rstrip("-._")
    return text or "run"


def slugs(names: Iterable[str]) -> list[str]:
    """One slug per name, all different, also where file names ignore case.

    >>> slugs(["a/b", "a b", "A-B", "a-b-2"])
    ['a-b', 'a-b-2', 'A-B-3', 'a-b-2-2']
    """
    taken: set[str] = set()
    out = []
    for name in names:
        base = text = slug(name)
        n = 1
        while text.lower() in taken:
            n += 1
            text = f"{base}-{n}"
        taken.add(text.lower())
        out.append(text)
    return out
