"""Commands shown in messages, quoted so that they work when pasted, whatever the path.

>>> print(resume("my runs/it's", "optimiser.lr=1e-06", step=20))
scalerl train --resume 'my runs/it'"'"'s' --from 20 optimiser.lr=1e-06
"""

from __future__ import annotations

import shlex
from pathlib import Path


def resume(run: str | Path, *changes: str, step: int | str | None = None) -> str:
    """The command that resumes a run, from an earlier checkpoint if `step` is given, with changes
    of its recipe."""
    since = [] if step is None else ["--from", str(step)]
    return shlex.join(["scalerl", "train", "--resume", path_word(run), *since, *changes])


def report(run: str | Path) -> str:
    """The command that writes the report of a run into its directory."""
    return shlex.join(["scalerl", "report", path_word(run), "-o", f"{path_word(run)}/report"])


def path_word(path: str | Path) -> str:
    """The path as a word of a command."""
    text = str(path)
    # A name that begins with a dash would be read as an option.
    return f"./{text}" if text.startswith("-") else text
