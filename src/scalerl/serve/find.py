"""What lies under the directories: runs of ours, logs of others, studies. Nothing outside of them
is found, whatever links lead there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalerl.errors import InputError
from scalerl.runs.importers.files import is_inside
from scalerl.runs.sources import MAX_DEPTH, Reader, find_logs, part_of_a_run

STUDY = "study.toml"
#: Of these a directory has one, and recipe.toml, as soon as a run of ours is begun in it.
BEGUN = ("evals.jsonl", "steps.jsonl", "events.jsonl", "status.json", "lock")
#: Directories that are looked into, at most.
MAX_FOLDERS = 20_000


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
            if not each.exists():
                raise InputError(f"{each}: no such file or directory: give what holds runs")
        self.real = [os.path.realpath(each) for each in self.given]
        self.names = _names(self.real)

    def holds(self, path: str | Path) -> bool:
        return is_inside(path, self.real)

    def name(self, path: Path) -> str:
        """Relative to the root it is under, with the root's own name before it."""
        for each, first in zip(self.given, self.names, strict=True):
            if path == each or each in path.parents:
                inside = path.relative_to(each).as_posix()
                return first if inside == "." else f"{first}/{inside}"
        return path.name


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
        ours = list(_ours(root, roots, seen, 0)) if root.is_dir() else []
        found += ours
        found += _logs(root, roots, ours, seen)
    return found


def is_run(folder: Path) -> bool:
    """A run of ours, also one that has only just begun."""
    if (folder / "evals.jsonl").is_file():
        return True
    return (folder / "recipe.toml").is_file() and any((folder / n).is_file() for n in BEGUN)


def _ours(folder: Path, roots: Roots, seen: set[str], depth: int) -> Iterator[Place]:
    real = os.path.realpath(folder)
    if depth > MAX_DEPTH or real in seen or not roots.holds(real) or len(seen) > MAX_FOLDERS:
        return
    seen.add(real)
    if is_run(folder):
        yield Place("run", folder, roots.name(folder))
        return
    below = [folder]
    if (folder / STUDY).is_file() and roots.holds(folder / STUDY):
        yield Place("study", folder, roots.name(folder))
        below = [folder / "runs"]
    for each in below:
        try:
            children = sorted(os.scandir(each), key=lambda entry: entry.name)
        except OSError:
            continue
        for child in children:
            if child.is_dir() and not child.name.startswith("."):
                yield from _ours(Path(child.path), roots, seen, depth + 1)


def _logs(root: Path, roots: Roots, ours: Sequence[Place], seen: set[str]) -> Iterator[Place]:
    """What the importers read: files that are parts of one run are one place."""
    taken = {os.path.realpath(place.path) for place in ours}

    def leave_out(path: Path) -> bool:
        real = os.path.realpath(path)
        return real in taken or not roots.holds(real)

    together: dict[str, list[tuple[Path, Reader]]] = {}
    for where, reader in find_logs(root, leave_out):
        path = Path(where)
        real = os.path.realpath(path)
        if not path.is_dir() and real in seen:
            continue
        seen.add(real)
        home = None if path.is_dir() else part_of_a_run(path)
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
