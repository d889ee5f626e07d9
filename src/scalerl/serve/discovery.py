"""Finds runs, logs of other frameworks and studies under the served directories.

Links that lead out of the directories are not followed.
"""

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
#: A directory with recipe.toml and one of these holds a run that has started.
STARTED = ("evals.jsonl", "steps.jsonl", "events.jsonl", "status.json", "lock")
#: Directories that a search visits: bounds the time of one on a home directory.
MAX_FOLDERS = 20_000
#: Bytes of a log of another framework. In memory its rows take several times as much, and a server
#: holds many; the commands read larger ones.
MAX_LOG = 200_000_000
#: An absolute path with several components in a message; the group is its last component.
ABSOLUTE = re.compile(r"(?<![^\s'\"(=:])/(?:[^\s/'\":]+/)+([^\s/'\":]*)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run, a log or a study was found."""

    kind: Literal["run", "log", "study"]
    path: Path
    #: Its path as the page shows it, relative to the served directory. Ids and links are made from
    #: it, so it is the same after a restart.
    name: str
    #: Importers for a log.
    readers: tuple[Reader, ...] = ()
    #: Files of a log.
    files: tuple[Path, ...] = ()


class Roots:
    """The served directories (or files)."""

    def __init__(self, given: Sequence[str | Path]) -> None:
        self.given = [Path(each).expanduser() for each in given]
        for each in self.given:
            if not os.path.exists(each):  # noqa: PTH110 (it raises nothing)
                raise InputError(f"{each}: no such file or directory: give what holds runs")
        self.real = [os.path.realpath(each) for each in self.given]
        self.names = _names(self.real)
        #: Name of the directory that a search is visiting.
        self.searching = ""

    def confined(self) -> AbstractContextManager[None]:
        """A context that refuses files outside of the directories and logs above MAX_LOG."""
        return confined(self.real, MAX_LOG)

    def holds(self, path: str | Path) -> bool:
        return is_inside(path, self.real)

    def name(self, path: Path) -> str:
        """The path relative to its root, with the root's name before it."""
        for each, first in zip(self.given, self.names, strict=True):
            if path == each or each in path.parents:
                inside = path.relative_to(each).as_posix()
                return first if inside == "." else f"{first}/{inside}"
        return path.name

    def without_paths(self, text: str) -> str:
        """A message without paths of this machine: served paths by their names, the last component
        of any other absolute path."""
        for real, given, name in zip(self.real, self.given, self.names, strict=True):
            # Where / is served, every path would begin with it.
            for start in {real, str(given.absolute())} - {os.sep}:
                text = text.replace(start, name)
        return ABSOLUTE.sub(lambda found: found[1] or found[0], text)


def _names(real: Sequence[str]) -> list[str]:
    """The last component of each path, or the last two where the last would repeat.

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
    """All places, ordered by name; a place reached by two paths counts once."""
    found: list[Place] = []
    seen: set[str] = set()
    for root in roots.given:
        own = list(_own_places(root, roots, seen, 0)) if is_folder(root) else []
        found += own
        found += _logs(root, roots, own, seen)
    return found


def is_run(folder: Path) -> bool:
    """Whether a directory holds a run of `scalerl train`, also one that has just started."""
    if is_file(folder / "evals.jsonl"):
        return True
    return _exists(folder / "recipe.toml") and any(_exists(folder / n) for n in STARTED)


def _exists(path: Path) -> bool:
    """Whether the name exists, also as a broken link or a pipe, which reading then reports."""
    return os.path.lexists(path)


def _own_places(folder: Path, roots: Roots, seen: set[str], depth: int) -> Iterator[Place]:
    real = os.path.realpath(folder)
    # `seen` holds resolved paths: links may form a circle.
    if depth > MAX_DEPTH or real in seen or not roots.holds(real) or len(seen) > MAX_FOLDERS:
        return
    seen.add(real)
    roots.searching = roots.name(folder)
    if is_run(folder):
        yield Place("run", folder, roots.name(folder))
        return
    below = [folder]
    if is_file(folder / STUDY) and roots.holds(folder / STUDY):
        yield Place("study", folder, roots.name(folder))
        # The other directories of a study hold no runs.
        below = [folder / "runs"]
    for each in below:
        try:
            # Sorted: the order of a directory differs between file systems.
            children = sorted(os.scandir(each), key=lambda entry: entry.name)
        except OSError:
            continue
        for child in children:
            if is_folder(child.path) and not child.name.startswith("."):
                yield from _own_places(Path(child.path), roots, seen, depth + 1)


def _logs(root: Path, roots: Roots, own: Sequence[Place], seen: set[str]) -> Iterator[Place]:
    """Logs that the importers read; files that belong to one run are one place."""
    taken = {os.path.realpath(place.path) for place in own}

    def leave_out(path: Path) -> bool:
        real = os.path.realpath(path)
        return real in taken or not roots.holds(real)

    by_run: dict[str, list[tuple[Path, Reader]]] = {}
    with roots.confined():
        logs = find_logs(root, leave_out)
    for where, reader in logs:
        path = Path(where)
        real = os.path.realpath(path)
        if not is_folder(path) and real in seen:
            continue
        seen.add(real)
        home = None if is_folder(path) else part_of_a_run(path)
        by_run.setdefault(str(home or path), []).append((path, reader))
    for files in by_run.values():
        first = files[0][0]
        path = first if len(files) == 1 else first.parent
        yield Place(
            "log",
            path,
            roots.name(path),
            tuple(reader for _, reader in files),
            tuple(each for each, _ in files),
        )
