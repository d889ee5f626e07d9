"""Checkpoints of a run: written under a temporary name, sealed by a list of hashes, renamed.

A directory called step_N is never half written: its manifest is its last file, and the rename comes
after everything is on the disk. A damaged one (a file cut short, flipped bytes) is skipped for the
one before it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scalerl.errors import InputError
from scalerl.files import flush_to_disk, read_limited

MANIFEST = "manifest.json"
#: The state of the loop: without it a checkpoint cannot be resumed from.
STATE = "run.json"


def folder_of(out: Path) -> Path:
    return out / "checkpoints"


def step_of(path: Path) -> int:
    """The step in a checkpoint's name."""
    return int(path.name.removeprefix("step_"))


def list_checkpoints(out: Path) -> list[Path]:
    """All checkpoints of a run, oldest first, damaged ones included."""
    names = [p for p in folder_of(out).glob("step_*") if p.name[5:].isdigit()]
    return sorted(names, key=step_of)


@contextmanager
def writing(out: Path, step: int, *, healthy: bool = True) -> Iterator[Path]:
    """A temporary directory for the files of a checkpoint, which is sealed with a manifest and
    renamed afterwards; nothing is left of one that failed."""
    folder = folder_of(out)
    target = folder / f"step_{step}"
    temporary = folder / f"step_{step}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        files = {}
        for path in sorted(p for p in temporary.rglob("*") if p.is_file()):
            about = {"size": path.stat().st_size, "sha256": _hash(path)}
            files[str(path.relative_to(temporary))] = about
        manifest = temporary / MANIFEST
        manifest.write_text(json.dumps({"step": step, "healthy": healthy, "files": files}))
        # Before the rename: a power cut could else leave the final name with empty files.
        for path in [*temporary.rglob("*"), temporary]:
            flush_to_disk(path)
        old = folder / f"step_{step}.old.tmp"
        # A rename onto a directory that is not empty fails. `prune` removes the old one if this
        # process is killed here.
        if target.exists():
            target.rename(old)
        temporary.rename(target)
        flush_to_disk(folder)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"no checkpoint of step {step} could be written to {folder}: "
            f"{error.strerror or error}; make room or repair it, then --resume"
        ) from None
    finally:  # a failed checkpoint must not fill the disk further
        shutil.rmtree(temporary, ignore_errors=True)


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint; None if it is complete and unchanged."""
    try:
        manifest = json.loads(read_limited(path / MANIFEST))
        known = {str(n): (int(f["size"]), str(f["sha256"])) for n, f in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or unreadable"
    for name in {STATE, *known}:
        file = path / name
        size, sha256 = known.get(name, (-1, ""))
        if not file.is_file() or size < 0:
            return f"{name} is missing"
        # The size first: most damaged files were cut short, and hashing gigabytes takes seconds.
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
        if _hash(file) != sha256:
            return f"the content of {name} has changed"
    return None


def latest(out: Path, say: Callable[[str], None]) -> Path | None:
    """The newest undamaged checkpoint; `say` gets a warning for each one that is skipped."""
    for path in reversed(list_checkpoints(out)):
        wrong = find_damage(path)
        if wrong is None:
            return path
        say(f"warning: checkpoint {path.name} is damaged ({wrong}): going back to the one before")
    return None


def resolve(out: Path, step: int | str) -> Path:
    """The undamaged checkpoint of a step, or (`healthy`) the newest written without an alarm."""
    whole = [p for p in list_checkpoints(out) if find_damage(p) is None]
    fits = [p for p in whole if step == step_of(p) or (step == "healthy" and is_healthy(p))]
    if fits:
        return fits[-1]
    wanted = "healthy checkpoint" if step == "healthy" else f"whole checkpoint of step {step}"
    there = ", ".join(f"--from {step_of(p)}" for p in whole)
    raise InputError(
        f"{out} has no {wanted}: " + (f"choose {there}" if there else "it has none at all")
    )


def is_healthy(path: Path) -> bool:
    """Whether no alarm was on when it was written."""
    try:
        return bool(json.loads(read_limited(path / MANIFEST)).get("healthy", True))
    except (OSError, ValueError, AttributeError):
        return False


def prune(out: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the newest healthy one; and leftovers of
    runs that were killed."""
    for leftover in folder_of(out).glob("step_*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    paths = list_checkpoints(out)
    healthy = [p for p in paths if is_healthy(p)][-1:]
    for path in paths[:-keep]:
        if path not in healthy:
            shutil.rmtree(path, ignore_errors=True)


def last_healthy(out: Path) -> Path | None:
    """The newest checkpoint without an alarm."""
    return next((p for p in reversed(list_checkpoints(out)) if is_healthy(p)), None)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
