"""Writing files whole or not at all, under names that cannot leave their directory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from scalerl.errors import InputError
from scalerl.files import write_atomic

MAX_SLUG = 60


def write_whole(path: str | Path, data: bytes) -> Path:
    """Write a result file, its directory included; a reader never sees half a file."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not durable: a report that a power cut loses is written again by the same command.
        return write_atomic(target, data, durable=False)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(
            f"cannot write {str(target)!r}: {reason}; choose a directory you can write to"
        ) from None


def slug(name: str) -> str:
    """A file name's worth of the run's name.

    >>> slug("../../etc/passwd"), slug("GRPO lr=3e-5"), slug("💥")
    ('etc-passwd', 'GRPO-lr-3e-5', 'run')
    """
    text = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    # Two dots could lead to the parent directory.
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
