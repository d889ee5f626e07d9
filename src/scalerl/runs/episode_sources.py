"""Opens recorded episodes: those of a run directory, or rollouts of another framework."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from scalerl.errors import InputError
from scalerl.files import is_file, is_folder, is_inside
from scalerl.runs.episode_log import EpisodeLog, Episodes
from scalerl.runs.lines import EPISODE_FILES
from scalerl.runs.rollout_episodes import RolloutFiles, head_of
from scalerl.runs.rollouts import ROLLOUTS, RolloutFormat
from scalerl.runs.rollouts.messages import is_validation, step_of

#: Formats of this package, each the `FORMAT` of a module of `scalerl.runs.rollouts`.
BUILT_IN = ("verl", "verifiers", "trl", "trackio")
#: Ends of the names of files that are looked at in a directory.
SUFFIXES = (".jsonl", ".parquet", ".db", ".sqlite")
#: Files of a directory that are looked at: a run of 10,000 steps has as many.
MAX_FILES = 20_000
#: Directories below the given one that are looked into.
MAX_DEPTH = 4


def open_episodes(path: str | Path) -> EpisodeLog:
    """The episodes in a run directory, or in a file or directory of rollouts of another framework;
    InputError where there are none."""
    place = Path(path)
    if not is_folder(place) and not is_file(place):
        raise InputError(f"{path}: no such file or directory: give a run, or rollouts")
    if has_recorded(place):
        return EpisodeLog.from_run(place)
    found = rollouts_in(place)
    if not found:
        names = ", ".join(_files())
        raise InputError(
            f"{path} holds no episodes: a run has {names}; of other frameworks, rollouts of "
            f"{', '.join(BUILT_IN)} are read"
        )
    return EpisodeLog(found)


def has_recorded(folder: Path) -> bool:
    """Whether a directory holds episodes that `scalerl train` wrote."""
    return any(is_file(folder / name) for name in _files())


def _files() -> list[str]:
    return [kind.FILE for kind in EPISODE_FILES.values()]


def rollouts_in(place: Path) -> dict[str, Episodes]:
    """The sources of rollouts in a file or directory, by name: `training` and `validation`, by what
    the names of files and directories say."""
    named: dict[str, list[tuple[Path, RolloutFormat]]] = {}
    seen: dict[str, RolloutFormat | None] = {}
    for path in [place] if is_file(place) else _candidates(place):
        # Files that differ in their numbers are of one format: a run has one for each step.
        kind = re.sub(r"\d+", "0", str(path))
        if kind not in seen:
            seen[kind] = format_of(path)
        form = seen[kind]
        if form is not None:
            source = "validation" if is_validation(path) else "training"
            named.setdefault(source, []).append((path, form))
    return {
        source: RolloutFiles(sorted(files, key=lambda each: (step_of(each[0]), str(each[0]))))
        for source, files in sorted(named.items())
    }


def format_of(path: Path) -> RolloutFormat | None:
    """The format of a file of rollouts; None where it is none."""
    head = head_of(path)
    found = [(form.sniff(path, head), form) for form in formats()] if head else []
    best = max(found, key=lambda each: each[0], default=None)
    return best[1] if best is not None and best[0] > 0 else None


def formats() -> list[RolloutFormat]:
    """All formats, those from outside first."""
    for name in BUILT_IN:
        if name not in list(ROLLOUTS):
            ROLLOUTS.add(name, import_module(f"scalerl.runs.rollouts.{name}").FORMAT)
    own = [name for name in ROLLOUTS if name not in BUILT_IN]
    return [ROLLOUTS[name] for name in (*reversed(own), *BUILT_IN)]


def _candidates(folder: Path) -> Iterator[Path]:
    """Files of a directory that may hold rollouts, without those that links lead out to."""
    count = 0
    for top, below, names in os.walk(folder):
        depth = len(Path(top).relative_to(folder).parts)
        below[:] = sorted(each for each in below if depth < MAX_DEPTH and not each.startswith("."))
        for name in sorted(names):
            path = Path(top, name)
            if name.lower().endswith(SUFFIXES) and is_inside(path) and is_file(path):
                yield path
                count += 1
                if count >= MAX_FILES:
                    return
