"""Opens recorded episodes: those of a run directory, or rollouts of another framework."""

from __future__ import annotations

from pathlib import Path

from scalerl.errors import InputError
from scalerl.files import is_file, is_folder
from scalerl.runs.episode_log import EpisodeLog
from scalerl.runs.lines import EPISODE_FILES


def open_episodes(path: str | Path) -> EpisodeLog:
    """The episodes in a run directory, or in files of another framework; InputError where there
    are none."""
    place = Path(path)
    if not is_folder(place) and not is_file(place):
        raise InputError(f"{path}: no such file or directory: give a run, or rollouts")
    if has_recorded(place):
        return EpisodeLog.from_run(place)
    raise InputError(f"{path} holds no episodes: a run has them in {', '.join(sorted(_files()))}")


def has_recorded(folder: Path) -> bool:
    """Whether a directory holds episodes that `scalerl train` wrote."""
    return any(is_file(folder / name) for name in _files())


def _files() -> list[str]:
    return [kind.FILE for kind in EPISODE_FILES.values()]
