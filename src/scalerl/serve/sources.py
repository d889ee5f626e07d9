"""Files that hold runs: refreshing one costs what was written since the last time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.files import is_file, is_folder, open_regular
from scalerl.runs import metrics
from scalerl.runs.compute import budget_use
from scalerl.runs.importers import apply_to_each
from scalerl.runs.importers.delimited import looks_delimited, read_delimited
from scalerl.runs.importers.json_logs import read_jsonl
from scalerl.runs.importers.run_directory import AXIS_COLUMNS
from scalerl.runs.importers.text_files import MAX_LINE, Lines
from scalerl.runs.live_run import LiveRun, file_stamp
from scalerl.runs.load import load_runs
from scalerl.runs.lock import is_locked
from scalerl.runs.reader import USED_RECIPE, RunReader
from scalerl.runs.record import Run
from scalerl.runs.table import Table
from scalerl.serve.discovery import Place, Roots
from scalerl.serve.recipes import FlatRecipe

#: Seconds for which a status file shows that a run is alive. Runs write it every second; a long
#: pause of the machine must not make them look dead.
FRESH_SECONDS = 30.0
#: Seconds since its last growth for which a log counts as growing.
GROWING_SECONDS = 60.0
#: A log that has to be read whole waits this many times its own reading time before the next
#: reading, so that reading takes at most a ninth of a thread.
REREAD_FACTOR = 8.0
#: Kinds of compute offered for a log.
MAX_AXES = 8
#: Files of a directory that are watched for changes.
MAX_FILES = 2000
#: Files of a run directory that are read.
FILES = ("evals.jsonl", "steps.jsonl", "events.jsonl", "status.json", "recipe.json", "recipe.toml")
#: Bytes of growth up to which only the new lines of a log are read.
MAX_NEW = 16_000_000


class OwnRun:
    """A run directory written by `scalerl train`."""

    def __init__(self, place: Place, roots: Roots) -> None:
        self.place = place
        self.roots = roots
        # Held while files are read: the position in a file belongs to one reader at a time.
        self.lock = threading.Lock()
        self.live = LiveRun(place.path)
        self._locked = (0.0, False)
        #: The recipe as the run uses it; None where none can be read.
        self.recipe: FlatRecipe | None = None
        self._recipe_stamp: Any = None

    def refresh(self) -> bool:
        """Read what is new; returns whether there was anything."""
        return self.live.refresh()

    def runs(self) -> list[Run]:
        if not len(self.live):
            raise InputError(next(iter(self.live.problems), "no validation yet"))
        return load_runs([self.live.table()])

    def on(self, run: Run, axis: str) -> Run:
        """The same run against another kind of compute."""
        return load_runs([self.live.table()], x=AXIS_COLUMNS.get(axis, axis))[0]

    def axes(self) -> list[str]:
        known = self.live.table().columns if len(self.live) else {}
        return [kind for kind, column in AXIS_COLUMNS.items() if column in known]

    def about(self) -> dict[str, Any]:
        """Status, step and other facts about its runs."""
        run, end = self.live, self.live.ended
        self._refresh_recipe()
        status, why = "stopped", None
        if end is not None and end.event == "failed":
            status, why = "failed", end.why
        elif self._alive():
            status = "running"
        elif end is not None:
            status, why = "ended", end.reason
        status_file = run.status
        budget = run.recipe.get("budget")
        use = None
        if isinstance(budget, dict):
            limits = {k: _positive(budget.get(k)) for k in ("steps", "gpu_hours", "minutes")}
            use = budget_use(SimpleNamespace(**limits), run.compute)
        return {
            "kind": "run",
            "status": status,
            "why": why,
            "step": run.step,
            "pass_rate": run.pass_rate,
            "waits_for": status_file.waits_for if status_file and status == "running" else None,
            "warnings": run.warnings,
            "budget": None if use is None else {"share": min(use.share, 1.0), "text": use.text},
            "recipe": run.recipe.get("name") or self._recipe(),
            "recipe_id": None if self.recipe is None else self.recipe.id,
            "seed": None if self.recipe is None else self.recipe.seed,
            "unread": "; ".join(run.problems) or None,
        }

    def _refresh_recipe(self) -> None:
        """Read the recipe again where its files have changed."""
        names = (USED_RECIPE, "recipe.toml")
        stamp = [file_stamp(self.place.path / name) for name in names]
        if stamp == self._recipe_stamp:
            return
        self._recipe_stamp = stamp
        # Runs of earlier versions have recipe.toml only.
        values = self.live.recipe or RunReader(self.place.path).read_recipe() or {}
        self.recipe = FlatRecipe.from_values(values)

    def _recipe(self) -> str | None:
        """The name of the recipe file, where the record does not name its recipe."""
        name = "recipe.toml"
        return name if is_file(self.place.path / name) else None

    def _alive(self) -> bool:
        status = self.live.status
        age = time.time() - (status.time or 0.0) if status is not None else None
        # A status from the future was written before the clock was set back: its age is unknown.
        if age is not None and 0.0 <= age < FRESH_SECONDS:
            return self.live.ended is None
        # A lock can only be tested by trying to take it, which could make a run that starts just
        # now fail: so it is tested seldom.
        asked, locked = self._locked
        if time.monotonic() - asked > FRESH_SECONDS:
            locked = is_locked(self.place.path)
            self._locked = time.monotonic(), locked
        return locked


def _positive(value: Any) -> Any:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return value if usable else None


@dataclass
class TextAsLines(Lines):
    """Text that is read as if it were the file."""

    text: str = ""

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        yield from self.text.splitlines(keepends=True)


@dataclass
class _End:
    """Where the last reading of a file of lines stopped."""

    #: Position in bytes.
    at: int
    inode: int
    #: The bytes before the position: if they have changed, the file was rewritten.
    mark: bytes
    #: The header line of a table; empty for JSONL.
    header: str
    read: Callable[[Path, str, Lines], Table]


@dataclass
class Log:
    """A log of another framework, read by the importers. Of a file of lines that holds one run,
    only new lines are read, as long as they continue its curve; everything else is read whole
    again, the less often the longer that takes."""

    place: Place
    roots: Roots
    found: list[Run] = field(default_factory=list)
    problem: str | None = None
    _axes: list[str] = field(default_factory=list)
    _stamp: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    _grew: float = 0.0
    _due: float = 0.0
    _end: _End | None = None

    def refresh(self) -> bool:
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return False
        # The first reading is no growth.
        if self._stamp is not None:
            self._grew = time.time()
        if self._read_new_lines():
            self._stamp = stamp
            return True
        if time.monotonic() < self._due:
            return False
        self._stamp = stamp
        self._read_whole()
        return True

    def runs(self) -> list[Run]:
        if self.problem is not None:
            raise InputError(self.problem)
        return self.found

    def on(self, run: Run, axis: str) -> Run:
        if axis in (run.x_name, run.x_kind):
            return run
        same = [r for r in load_runs(self._tables(), x=axis) if r.name == run.name]
        if not same:
            raise InputError(f"{run.name} has no {axis}")
        return same[0]

    def axes(self) -> list[str]:
        return self._axes

    def about(self) -> dict[str, Any]:
        growing = time.time() - self._grew < GROWING_SECONDS
        return {"kind": "log", "status": "growing" if growing else "quiet"}

    # -- reading ----------------------------------------------------------------------------------

    def _stamp_now(self) -> Any:
        stamps: list[Any] = []
        for path in self.place.files:
            if is_folder(path):
                stamps += [file_stamp(Path(each)) for each in _files(path)]
            else:
                stamps.append(file_stamp(path))
        return tuple(stamps)

    def _tables(self) -> list[Table]:
        found, problems = apply_to_each(lambda reader: reader(), self.place.readers)
        tables = [table for each in found for table in each]
        if not tables and problems:
            raise problems[0]
        return tables

    def _read_whole(self) -> None:
        begun = time.monotonic()
        self.problem, self._end = None, None
        try:
            end = self._mark()
            tables = self._tables()
            self.found = load_runs(tables)
            self._axes = _axes(self.found, tables)
            self._end = end if len(self.found) == 1 and not self.found[0].signs else None
        except InputError as error:
            self.found, self.problem = [], str(error)
        self._due = time.monotonic() + REREAD_FACTOR * (time.monotonic() - begun)

    def _mark(self) -> _End | None:
        """The end of a file of lines that ends in a whole line; None for other files."""
        if len(self.place.files) != 1 or self.place.files[0].is_dir():
            return None
        path = self.place.files[0]
        try:
            with open_regular(path) as file:
                header = file.readline(MAX_LINE)
                jsonl = header.lstrip().startswith(b"{")
                if not jsonl and not looks_delimited(path):
                    return None
                size = file.seek(0, os.SEEK_END)
                # 256 bytes: a log that was rewritten hardly ever has the same ones at that place.
                file.seek(max(size - 256, 0))
                mark = file.read(256)
                inode = os.fstat(file.fileno()).st_ino
            text = "" if jsonl else header.decode("utf-8-sig")
        except (OSError, UnicodeError, InputError):
            return None
        read = read_jsonl if jsonl else read_delimited
        return _End(size, inode, mark, text, read) if mark.endswith(b"\n") else None

    def _read_new_lines(self) -> bool:
        """Add the new lines; False where they do not simply continue the curve."""
        end, path = self._end, self.place.files[0]
        if end is None or self.problem is not None:
            return False
        try:
            with open_regular(path) as file:
                now = os.fstat(file.fileno())
                if now.st_ino != end.inode or now.st_size > end.at + MAX_NEW:
                    return False
                file.seek(end.at - len(end.mark))
                if file.read(len(end.mark)) != end.mark:
                    return False
                new = file.read(MAX_NEW)
        except OSError:
            return False
        # A line that is still being written is read next time.
        new = new[: new.rfind(b"\n") + 1]
        if not new:
            return True
        try:
            lines = TextAsLines(path)
            lines.text = end.header + new.decode()
            run = self.found[0]
            table = end.read(path, run.name, lines)
            # The columns of the first reading: chosen anew from a few lines, they might differ.
            (piece,) = load_runs([table], x=run.x_name, y=run.y_name)
        except (InputError, UnicodeError, ValueError):
            return False
        if not _continues(run, piece):
            return False
        self.found = [_joined(run, piece)]
        end.at += len(new)
        end.mark = (end.mark + new)[-256:]
        return True


def _files(folder: Path) -> list[str]:
    """Files in a directory and below it, at most MAX_FILES."""
    found: list[str] = []
    for top, below, names in os.walk(folder):
        below.sort()
        found += [os.path.join(top, name) for name in sorted(names)]  # noqa: PTH118
        if len(found) > MAX_FILES:
            break
    return found[:MAX_FILES]


def _axes(found: Sequence[Run], tables: Sequence[Table]) -> list[str]:
    own = [run.x_name for run in found]
    known = [
        name
        for table in tables
        for name in metrics.compute_columns(c for c in table.columns if table.is_numeric(c))
    ]
    return list(dict.fromkeys([*own[:1], *known]))[:MAX_AXES]


def _continues(run: Run, piece: Run) -> bool:
    return bool(
        len(run)
        and len(piece)
        and piece.compute[0] > run.compute[-1]
        and piece.x_kind == run.x_kind
        and piece.notes == run.notes
        and not piece.signs
        and (piece.n_eval is None) == (run.n_eval is None)
    )


def _joined(run: Run, piece: Run) -> Run:
    n_eval = None
    if run.n_eval is not None and piece.n_eval is not None:
        n_eval = np.concatenate([run.n_eval, piece.n_eval])
    return run.replace(
        compute=np.concatenate([run.compute, piece.compute]),
        score=np.concatenate([run.score, piece.score]),
        n_eval=n_eval,
    )


#: A file or directory that holds one or more runs.
Source = OwnRun | Log


def source_of(place: Place, roots: Roots) -> Source:
    """The source that reads a place."""
    return OwnRun(place, roots) if place.kind == "run" else Log(place, roots)
