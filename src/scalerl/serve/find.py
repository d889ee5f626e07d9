"""What lies under the directories: runs of ours, logs of others, studies. Nothing outside of them
is found, whatever links lead there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalerl.errors import InputError
from scalerl.files import confined, is_file, is_folder, is_inside
from scalerl.runs.importers import Reader
from scalerl.runs.sources import MAX_DEPTH, find_logs, part_of_a_run

STUDY = "study.toml"
#: Of these a directory has one, and recipe.toml, as soon as a run of ours is begun in it.
BEGUN = ("evals.jsonl", "steps.jsonl", "events.jsonl", "status.json", "lock")
#: Directories that are looked into, at most.
MAX_FOLDERS = 20_000
#: Bytes of a log of another framework that is read whole: as rows it takes several times as much
#: memory. The commands read larger ones.
MAX_LOG = 200_000_000
#: An absolute path of several parts in a message, and its last part.
ABSOLUTE = re.compile(r"(?<![^\s'\"(=:])/(?:[^\s/'\":]+/)+([^\s/'\":]*)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was found. `name` is its path as people see it, from the directory that was
    given on; it is what links are made of, so it stays the same from start to start."""

    kind: Literal["run", "log", "study"]
    path: Path
    name: str
    readers: tuple[Reader, ...] = ()
    files: tuple[Path, ...] = ()


class Roots:
    """The directories (or files) that were given."""

    def __init__(self, given: Sequence[str | Path]) -> None:
        self.given = [Path(each).expanduser() for each in given]
        for each in self.given:
            if not os.path.exists(each):  # noqa: PTH110 (it raises nothing)
                raise InputError(f"{each}: no such file or directory: give what holds runs")
        self.real = [os.path.realpath(each) for each in self.given]
        self.names = _names(self.real)
        #: The directory that a search looks into just now, by its name.
        self.looking_at = ""

    def confined(self) -> AbstractContextManager[None]:
        """Inside this, nothing outside of the directories is read, and no log that is too large for
        a server that holds many."""
        return confined(self.real, MAX_LOG)

    def holds(self, path: str | Path) -> bool:
        return is_inside(path, self.real)

    def name(self, path: Path) -> str:
        """Relative to the root it is under, with the root's own name before it."""
        for each, first in zip(self.given, self.names, strict=True):
            if path == each or each in path.parents:
                inside = path.relative_to(each).as_posix()
                return first if inside == "." else f"{first}/{inside}"
        return path.name

    def without_paths(self, text: str) -> str:
        """A message as the page shows it: what lies under the directories by its name there, and of
        any other absolute path the last part alone."""
        for real, given, name in zip(self.real, self.given, self.names, strict=True):
            for start in {real, str(given.absolute())} - {os.sep}:
                text = text.replace(start, name)
        return ABSOLUTE.sub(lambda found: found[1] or found[0], text)


def _names(real: Sequence[str]) -> list[str]:
    """The last part of each path, and the part before it where two would have one name.

    >>> _names(["/data/a/runs", "/data/b/runs", "/old"])
    ['a/runs', 'b/runs', 'old']
    """
    last = [Path(each).name or "root" for each in real]
    longer = ["/".join(Path(each).parts[-2:]).lstrip("/") for each in real]
    found: list[str] = []
    for short, long in zip(last, longer, strict=True):
        name = short if last.count(short) == 1 else long
        found.append(name if name not in found else f"{name} #{len(found) + 1}")
    return found


def find(roots: Roots) -> list[Place]:
    """All places, in the order of their names; a place reached twice counts once."""
    found: list[Place] = []
    seen: set[str] = set()
    for root in roots.given:
        ours = list(_ours(root, roots, seen, 0)) if is_folder(root) else []
        found += ours
        found += _logs(root, roots, ours, seen)
    return found


def is_run(folder: Path) -> bool:
    """A run of ours, also one that has only just begun."""
    if is_file(folder / "evals.jsonl"):
        return True
    return _is_there(folder / "recipe.toml") and any(_is_there(folder / n) for n in BEGUN)


def _is_there(path: Path) -> bool:
    """Also as something else than a file: its run says that it cannot be read."""
    return os.path.lexists(path)


def _ours(folder: Path, roots: Roots, seen: set[str], depth: int) -> Iterator[Place]:
    real = os.path.realpath(folder)
    if depth > MAX_DEPTH or real in seen or not roots.holds(real) or len(seen) > MAX_FOLDERS:
        return
    seen.add(real)
    roots.looking_at = roots.name(folder)
    if is_run(folder):
        yield Place("run", folder, roots.name(folder))
        return
    below = [folder]
    if is_file(folder / STUDY) and roots.holds(folder / STUDY):
        yield Place("study", folder, roots.name(folder))
        below = [folder / "runs"]
    for each in below:
        try:
            children = sorted(os.scandir(each), key=lambda entry: entry.name)
        except OSError:
            continue
        for child in children:
            if is_folder(child.path) and not child.name.startswith("."):
                yield from _ours(Path(child.path), roots, seen, depth + 1)


def _logs(root: Path, roots: Roots, ours: Sequence[Place], seen: set[str]) -> Iterator[Place]:
    """What the importers read: files that are parts of one run are one place."""
    taken = {os.path.realpath(place.path) for place in ours}

    def leave_out(path: Path) -> bool:
        real = os.path.realpath(path)
        return real in taken or not roots.holds(real)

    together: dict[str, list[tuple[Path, Reader]]] = {}
    with roots.confined():
        logs = find_logs(root, leave_out)
    for where, reader in logs:
        path = Path(where)
        real = os.path.realpath(path)
        if not is_folder(path) and real in seen:
            continue
        seen.add(real)
        home = None if is_folder(path) else part_of_a_run(path)
        together.setdefault(str(home or path), []).append((path, reader))
    for parts in together.values():
        first = parts[0][0]
        path = first if len(parts) == 1 else first.parent
        yield Place(
            "log",
            path,
            roots.name(path),
            tuple(reader for _, reader in parts),
            tuple(each for each, _ in parts),
        )
