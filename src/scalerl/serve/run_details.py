"""The panels of a run that a visitor has opened.

The last few opened runs are cached; new lines are read from where the last reading stopped, and
downsampled, so that a run of any length takes the same memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from scalerl.errors import InputError
from scalerl.files import is_file, is_inside
from scalerl.recipe import Recipe
from scalerl.recipe.diff import diff
from scalerl.report import panels
from scalerl.report.blocks import Block, Bullets, Heading, Paragraph, to_html
from scalerl.report.episodes import read_episodes
from scalerl.report.run_record import RunRecord, make_record, read_recipe
from scalerl.runs.lines import EvalAnswers, EvalLine, EventLine, Line, StepLine
from scalerl.runs.store import RunStore
from scalerl.runs.tail import TailReader
from scalerl.serve.catalogue import Entry
from scalerl.serve.queries import LruCache
from scalerl.serve.sources import OwnRun

#: Runs in the cache.
MAX_OPEN_RUNS = 8
#: Lines of each file that are kept for a run: more than the panels have pixels for.
MAX_LINES = 480
#: Bytes that are read at a time.
BLOCK_BYTES = 4_000_000
#: Bytes of a file that are read for one request. A longer record takes several requests.
MAX_READ_BYTES = 64_000_000
#: Validations offered to read answers of.
MAX_STEPS = 200

L = TypeVar("L", bound=Line)


class DownsampledLines(Generic[L]):
    """Evenly spaced lines of a growing file, and its last line. When there are too many, every
    second one is dropped.

    lines  1 2 3 4 5 6 7 8 9          MAX_LINES = 4
    kept   1 2 3 4 | 1 3 5 7 | 1 5 9
    """

    def __init__(self, path: Path, kind: type[L], slim: Callable[[L], L] = lambda x: x) -> None:
        self._slim = slim
        self._reader: TailReader[L] = TailReader(path, kind.from_dict, BLOCK_BYTES)
        self._clear()

    def _clear(self) -> None:
        self._kept: list[L] = []
        self._last: L | None = None
        self._every = 1
        self.count = 0

    def refresh(self) -> None:
        """Read the new lines."""
        end = self._reader.bytes_read + MAX_READ_BYTES
        while self._reader.bytes_read < end:
            at = self._reader.at
            new = self._reader.new()
            if self._reader.at == at and not self._reader.restarted:
                return
            if self._reader.restarted:
                self._clear()
            for line in new:
                slim = self._slim(line)
                if self.count % self._every == 0:
                    self._kept.append(slim)
                    if len(self._kept) > MAX_LINES:
                        self._kept = self._kept[::2]
                        self._every *= 2
                self._last = slim
                self.count += 1

    def lines(self) -> list[L]:
        last = [] if self._last is None or self._kept[-1] is self._last else [self._last]
        return [*self._kept, *last]


def _slim(line: StepLine) -> StepLine:
    # The prompts are most of a line, and no panel shows them.
    return replace(line, prompts=())


class OpenRun:
    """The record of one opened run, refreshed as the run goes on."""

    def __init__(self, path: Path, name: str, where: str) -> None:
        self.path, self.name, self.where = path, name, where
        self._steps = DownsampledLines(path / StepLine.FILE, StepLine, _slim)
        self._evals = DownsampledLines(path / EvalLine.FILE, EvalLine)
        self._events = DownsampledLines(path / EventLine.FILE, EventLine)
        self._store = RunStore(path, resume=True)

    def answered(self) -> list[int]:
        """The latest steps with answers to read."""
        # The folder may be a link that leads out of the served directories.
        inside = is_inside(self.path / EvalAnswers.FOLDER)
        return self._store.answered()[-MAX_STEPS:] if inside else []

    def steps(self) -> list[StepLine]:
        """Evenly spaced steps as of now, and the last one."""
        self._steps.refresh()
        return self._steps.lines()

    @property
    def step_count(self) -> int:
        """Steps that have been read."""
        return self._steps.count

    def record(self, step: int | None = None) -> RunRecord:
        """The record as of now, with the answers of one validation, by default the last. Its path
        is the directory's name: the page shows no paths of this machine."""
        for each in (self._steps, self._evals, self._events):
            each.refresh()
        at = step if step is not None else next(reversed(self.answered()), None)
        steps = self._steps.lines()
        found = make_record(
            self.name,
            self.path,
            steps,
            self._evals.lines(),
            self._events.lines(),
            None if at is None else self._store.read_answers(at),
            episodes=read_episodes(self._store, steps),
        )
        return replace(found, path=Path(self.where))


class OpenRunCache:
    """The runs that were opened last."""

    def __init__(self) -> None:
        self._open: LruCache[OpenRun] = LruCache(MAX_OPEN_RUNS)

    def open(self, entry: Entry) -> OpenRun | None:
        """The open run of an entry; None for a log of another framework, which has no panels."""
        if not isinstance(entry.source, OwnRun):
            return None
        place = entry.source.place
        if not is_file(place.path / "recipe.toml"):
            return None
        found = self._open.get(entry.id)
        return found or self._open.put(entry.id, OpenRun(place.path, entry.name, place.name))

    def record(self, entry: Entry) -> RunRecord | None:
        """The record of a run, with the answers of its last validation."""
        found = self.open(entry)
        return None if found is None else found.record()

    def recipe(self, entry: Entry) -> Recipe:
        """The recipe of a run."""
        found = read_recipe(entry.source.place.path) if self.open(entry) is not None else None
        if found is None:
            raise InputError(f"{entry.name} has no recipe that can be read")
        return found

    def panels(self, entry: Entry, step: int | None) -> dict[str, Any]:
        """The panels of the report, and the validations with answers to choose from."""
        found = self.open(entry)
        notes = [] if entry.run is None else list(entry.run.notes)
        notes = [entry.source.roots.without_paths(note) for note in notes]
        read: list[Block] = [Heading("How it was read", 3), Bullets(notes)] if notes else []
        if found is None:
            problem = [] if entry.problem is None else [Paragraph(entry.problem)]
            return {"html": to_html([*problem, *read]), "answered": [], "answers": ""}
        one = found.record(step)
        return {
            "html": fragment(to_html([*panels.panels(replace(one, answers=None)), *read])),
            "answers": fragment(to_html(panels.answers_part(one))),
            "answered": found.answered(),
            "step": None if one.answers is None else one.answers.step,
        }


def difference(name: str, other: str, mine: Recipe, theirs: Recipe) -> str:
    """The table of differences between two recipes."""
    rows = diff(theirs, mine)
    if not rows:
        return "<p>The same recipe.</p>"
    caption = f"Settings of {name} that differ from {other}"
    return fragment(panels.differences_table(caption, (other, name), rows).to_html())


def fragment(html: str) -> str:
    """Markup with style attributes renamed: the page's Content-Security-Policy refuses inline
    styles, and its script sets them."""
    return re.sub(r'(<[^<>]*?)\sstyle="', r'\1 data-style="', html)
