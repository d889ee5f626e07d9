"""A start that is refused leaves the disk as it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scalerl.runs.lines import EvalLine, StepLine


def undo_for(path: Path) -> Callable[[], None]:
    """Call before a new run writes into `path`. The returned function removes what the run has
    written there since: the files, and the directories that it had to make. It removes nothing
    once the run has a step or a validation, since that is work that a resume can use.

    >>> import tempfile
    >>> runs = Path(tempfile.mkdtemp())
    >>> undo = undo_for(runs / "new" / "first")
    >>> (runs / "new" / "first").mkdir(parents=True)
    >>> undo()
    >>> list(runs.iterdir())
    []
    """
    before = set(path.iterdir()) if path.is_dir() else set()
    made = [folder for folder in (path, *path.parents) if not folder.exists()]

    def undo() -> None:
        if any((path / kind.FILE).exists() for kind in (StepLine, EvalLine)):
            return
        # What cannot be removed stays: the error that refused the run is the one to be shown.
        for each in set(path.iterdir()) - before:
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                with suppress(OSError):
                    each.unlink()
        for folder in made:
            with suppress(OSError):  # also: not empty, because another run has begun in it
                folder.rmdir()

    return undo
