"""The run record on disk: append-only lines that can be read while the run goes on.

A line is written whole and flushed; readers leave out a last line that a kill cut short, and a
resumed run appends after it. Files that are not lines are replaced whole.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from scalerl.errors import InputError
from scalerl.files import MAX_LINE, to_json, write_atomic
from scalerl.runs.episode_entries import ENTRY_BYTES, entry_of, index_path
from scalerl.runs.lines import (
    EpisodeLine,
    EvalAnswers,
    EvalLine,
    Line,
    Status,
    StepLine,
    SystemLine,
)
from scalerl.runs.reader import RECIPE, USED_RECIPE, RunReader, answers_file
from scalerl.runs.system import MAX_BYTES, SystemSampler
from scalerl.runs.tail import parse_line

#: A request for generators; the run removes the file when it has taken it.
SCALE = "scale.json"


class RunStore(RunReader):
    """One run directory, to write and to read. `resume` opens an existing run; without it, a
    directory that holds a run is refused."""

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        super().__init__(path)
        self._system = SystemSampler()
        if resume:
            if not self.path.is_dir():
                raise InputError(f"{path} holds no run: give the directory that --out named")
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}: choose another --out") from None
        if any((self.path / kind.FILE).exists() for kind in (EvalLine, StepLine)):
            raise InputError(f"{path} holds a run already: choose another --out, or --resume it")

    # -- writing ----------------------------------------------------------------------------------

    def write_recipe(self, toml: str) -> None:
        """Write `recipe.toml`: the resolved recipe, enough to repeat the run."""
        self._replace(RECIPE, toml)

    def write_used_recipe(
        self, recipe: dict[str, Any], pending: dict[str, Any] | None = None
    ) -> None:
        """Write `recipe.json`: the recipe as the run uses it, which is not edited by hand, and what
        is left to do until the directory agrees with it (`scalerl.pipeline.branches`)."""
        self._replace(USED_RECIPE, to_json({"recipe": recipe, "pending": pending}))

    def append(self, line: Line) -> None:
        """Append a line to the file of its type; it is on the disk when this returns."""
        with self._appending(line.FILE) as file:
            file.write(encode(line))
            file.flush()
            os.fsync(file.fileno())

    def append_episodes(
        self, lines: Iterable[bytes], most: int, kind: type[EpisodeLine] = EpisodeLine
    ) -> None:
        """Append episodes, encoded, as long as their file has at most `most` bytes, and one in any
        case; those that readers would pass over are left out. Their entries follow in the index.
        `lines` is read no further than the bytes allow."""
        with self._writing():
            (self.path / kind.FILE).parent.mkdir(exist_ok=True)
        entries = []
        with self._appending(kind.FILE) as file:
            size = file.tell()
            for line in lines:
                if size and size + len(line) > most:
                    break
                if len(line) <= MAX_LINE:
                    # Not synced: samples to read are not worth the wait for the disk.
                    file.write(line)
                    entries.append(_entry(line[:-1], size))
                    size += len(line)
        self._append_entries(kind, b"".join(entries))

    def _append_entries(self, kind: type[EpisodeLine], entries: bytes) -> None:
        """Append to the index of a file of episodes, behind a whole entry."""
        with self._writing(), index_path(self.path / kind.FILE).open("ab") as file:
            if torn := file.tell() % ENTRY_BYTES:
                file.truncate(file.tell() - torn)
            file.write(entries)

    @contextmanager
    def _appending(self, name: str) -> Iterator[BinaryIO]:
        """A file at its end, behind a whole line."""
        with self._writing(), (self.path / name).open("ab+") as file:
            if file.tell() and not _ends_whole(file):
                file.write(b"\n")  # a kill or a full disk cut the line before short
            yield file

    def put(self, line: Line) -> None:
        """Write a line in the order of its step, in place of an earlier line of that step."""
        kept = [each for each in self.read(type(line)) if each.step != line.step]
        lines = sorted([*kept, line], key=lambda each: each.step)
        self._replace(line.FILE, "".join(to_json(each.to_dict()) + "\n" for each in lines))

    def status(self, status: Status) -> None:
        """Replace `status.json`, with the time of now."""
        # Not synced: it is written every second, and after a power failure an old status is as good
        # as none.
        self._replace(
            status.FILE, to_json(replace(status, time=time.time()).to_dict()), durable=False
        )
        # A run on a virtual clock has no processes, and its record is to be the same every time.
        if status.pids:
            self._append_sample(self._system.sample(status.step, status.pids.values()))

    def _append_sample(self, sample: SystemLine | None) -> None:
        """Append a sample of the machine, if one was due, up to a limit of the file."""
        if sample is None:
            return
        with self._appending(sample.FILE) as file:
            if file.tell() < MAX_BYTES:
                file.write(encode(sample, compact=True))

    def save_answers(self, answers: EvalAnswers) -> None:
        """Write `evals/step_N.json` of a validation."""
        with self._writing():
            (self.path / EvalAnswers.FOLDER).mkdir(exist_ok=True)
        self._replace(answers_file(answers.step), to_json(answers.to_dict(), compact=True))

    def ask_for(self, generators: int) -> None:
        """Request a number of generators from the run in this directory, which checks for requests
        about once a second."""
        self._replace(SCALE, to_json({"generators": generators}))

    def take_generator_request(self) -> int | None:
        """The number of generators requested since the last call; None without a request."""
        path = self.path / SCALE
        if not path.exists():
            return None
        found = self.document(SCALE)
        with self._writing():
            path.unlink(missing_ok=True)
        asked = found.get("generators") if isinstance(found, dict) else None
        return asked if type(asked) is int else None

    def cut_after(self, kind: type[Line], step: int) -> None:
        """Drop the lines beyond a step, which a resumed run will write again, and damaged ones. The
        other bytes are kept as they are, in a new file that replaces the old one."""
        path = self.path / kind.FILE
        if path.exists():
            index = index_path(path) if issubclass(kind, EpisodeLine) else None
            if index is not None:
                with self._writing():
                    # Before the lines: an index of other lines would be worse than none.
                    index.unlink(missing_ok=True)
            kept, entries, size = [], [], 0
            for line in self.raw_lines(kind):
                found = parse_line(line) or {}
                at = found.get("step")
                if isinstance(at, int) and at <= step:
                    kept.append(line + b"\n")
                    if index is not None:
                        entries.append(entry_of(found, line, size) or b"")
                        size += len(line) + 1
            self._replace(kind.FILE, b"".join(kept))
            if index is not None:
                self._replace(f"{index.parent.name}/{index.name}", b"".join(entries))
        if kind is EvalLine:
            for at in self.answered():
                if at > step:
                    with self._writing():
                        (self.path / answers_file(at)).unlink(missing_ok=True)

    def _replace(self, name: str, content: str | bytes, *, durable: bool = True) -> None:
        with self._writing():
            write_atomic(self.path / name, content, durable=durable)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """An error of the disk becomes an InputError that says what to do."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"the record in {self.path} cannot be written: {error.strerror}; put that right, "
                "then go on with --resume"
            ) from None


def _entry(line: bytes, offset: int) -> bytes:
    """The entry of an encoded line in the index; empty for one that readers would pass over."""
    return entry_of(parse_line(line) or {}, line, offset) or b""


def encode(line: Line, *, compact: bool = False) -> bytes:
    """A line as the record has it, with its end."""
    return (to_json(line.to_dict(), compact=compact) + "\n").encode()


def _ends_whole(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def undo_new_run(path: Path) -> Callable[[], None]:
    """A function that removes what a refused start has written into `path`, to be made before the
    run writes anything.

    It removes the new files and the directories that had to be made. Once the run has a step or a
    validation it removes nothing, because a resume can use that work.

    >>> import tempfile
    >>> runs = Path(tempfile.mkdtemp())
    >>> undo = undo_new_run(runs / "new" / "first")
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
